"""Judge the launch scripts of other people's repositories, from reading to starting, and print one table.

    .venv/bin/python scripts/judge/weekly_proof.py LIST… --mirror DIR [--vllm $(scripts/ci/unpack_vllm.sh)]
        [--fetch] [--json FILE] [-v]

LIST has lines ``owner/name commit folder script`` (tests/facts/unseen.txt); DIR holds the clones as
<owner>+<name>/repo. Commits that DIR lacks are fetched from GitHub with ``--fetch``, else counted and left
out. A script is

- **read** exactly where bash, which runs it in a sandbox without a network, starts the same mains with the
  same arguments; open where they differ in arguments that are said to be open; else wrong. A script that ends
  in the sandbox before a launch that we read (a variable, folder or program is missing) is counted apart. Its
  launches are read before bash runs, in a tree of its own. Python launchers have no bash beside them;
- **translated** where its first launch of main_ppo or main_dapo gives a YAML;
- **started** where the plan for GPUs passes the checks of ``start_corpus.py``, which asks stock veRL too;
- **different** where the audit says that a key is approximated, not supported, or not known.

Exit code 1 where a script is read wrong, or is refused by us alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import start_corpus
import unseen_corpus
import verl_clone

HOME = {"HOME": "/home/user", "SOURCE_DATE_EPOCH": "0"}  # as in verl_clone's sandbox
EXACT, OPEN, WRONG, EARLY = "exact", "open", "wrong", "bash ends before a launch"
NO_LAUNCH, NO_BASH = "no launch", "not judged"
RL = ("main_ppo", "main_dapo")
SAME = ("same", "ours only")  # outcomes of the audit with which every key keeps its meaning
_LIMIT_S = 120


@dataclass
class Script:
    """One script and its verdicts; ``start`` is the state of ``start_corpus``, empty without a plan.

    Bash starts in ``folder`` of the repository's ``tree``, and ``name`` is the script's path below it.
    """

    repo: str
    name: str
    tree: Path
    folder: str
    read: str = NO_BASH
    why: str = ""
    audit: str = ""
    translated: bool = False
    start: str = ""


def fetch(repo: str, commit: str, mirror: Path) -> None:
    """Bring one commit from GitHub into the mirror; one that is gone there stays missing."""
    git = ["git", "--git-dir", str(mirror / repo.replace("/", "+", 1) / "repo")]
    subprocess.run([*git, "init", "-q", "--bare"], check=True)
    subprocess.run([*git, "fetch", "-q", "--depth", "1", f"https://github.com/{repo}", commit], check=False)


def reading_verdict(ours: Sequence[dict[str, Any]], bashs: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the verdict on what we read beside what bash started, and what is wrong."""
    left, opened = list(ours), False
    for started in bashs:
        fits = (launch for launch in left if _last(launch["module"]) == _last(started["module"]))
        found = next((launch for launch in fits if _agrees(launch, started["args"])), None)
        if found is None:
            return WRONG, f"bash starts {started['module']} with other arguments"
        opened |= found["args"] != started["args"]
        left.remove(found)
    if left:
        return EARLY, f"bash does not start {left[0]['module']}"
    return (OPEN if opened else EXACT) if bashs else NO_LAUNCH, ""


def _agrees(launch: dict[str, Any], args: Sequence[str]) -> bool:
    may = {unresolved["arg"] for unresolved in launch.get("unresolved", [])}
    pairs = list(zip(launch["args"], args, strict=False))
    return len(launch["args"]) == len(args) and all(
        ours == theirs or (number in may and ours.partition("=")[0] == theirs.partition("=")[0])
        for number, (ours, theirs) in enumerate(pairs)
    )


def _last(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".").rpartition(".")[2]


def read_and_audit(script: Script, stubs: Path) -> Script:
    """Fill in what ``parse``, ``audit`` and bash say of a script."""
    parsed = _json_of(script, "parse")
    audited = _json_of(script, "audit")
    launches = parsed.get("launches", [])
    rl = [one for one in audited.get("launches", []) if _last(one["module"]) in RL]
    if rl:
        script.audit, script.translated = rl[0]["outcome"], rl[0]["refused"] is None
    if script.name.endswith(".sh"):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "repo")
            shutil.copytree(script.tree, tree, symlinks=True)
            try:
                started = verl_clone.run_bash(script.name, verl_clone.Wanted(), tree, stubs, script.folder)
            except subprocess.TimeoutExpired:
                return script
        script.read, script.why = reading_verdict(launches, started)
    return script


def _json_of(script: Script, command: str) -> dict[str, Any]:
    """Return the JSON of a command, with the tree at the place where bash has it; empty for an error."""
    words = [sys.executable, "-m", "trinity_compat", command, script.name, "--format", "json", "--cwd", "."]
    for name, value in HOME.items():
        words += ["--env", f"{name}={value}"]
    done = subprocess.run(
        words, cwd=script.tree / script.folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    try:
        found = json.loads(done.stdout.replace(str(script.tree), "/repo"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def table(scripts: Sequence[Script], missing: int) -> Iterator[str]:
    """The verdicts as a table in Markdown."""
    repositories = len({one.repo for one in scripts})
    yield f"{len(scripts)} scripts of {repositories} repositories; {missing} without a clone"
    yield ""
    yield "| what | scripts | of |"
    yield "|---|---:|---:|"
    read = Counter(one.read for one in scripts)
    launching = len(scripts) - read[NO_LAUNCH] - read[NO_BASH]
    for verdict in (EXACT, OPEN, WRONG, EARLY):
        yield f"| read: {verdict} | {read[verdict]} | {launching} |"
    rl = [one for one in scripts if one.audit]
    yield f"| translated | {sum(one.translated for one in rl)} | {len(rl)} |"
    starts = Counter(one.start for one in rl)
    could = starts[start_corpus.STARTS] + starts[start_corpus.REFUSED] + starts[start_corpus.OURS_ALONE]
    yield f"| start here, of those that stock veRL starts | {starts[start_corpus.STARTS]} | {could} |"
    yield f"| start with --allow-fork-keys | {starts[start_corpus.WITHOUT_FORK]} | {len(rl)} |"
    yield f"| every key keeps its meaning | {sum(one.audit in SAME for one in rl)} | {len(rl)} |"


def main() -> int:
    """Judge the lists of the command line; the exit code."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    cli.add_argument("lists", type=Path, nargs="+", metavar="LIST")
    cli.add_argument("--mirror", type=Path, required=True, metavar="DIR")
    cli.add_argument(
        "--vllm", type=Path, metavar="FOLDER", help="plan for GPUs without one (start_corpus.py)"
    )
    cli.add_argument("--fetch", action="store_true", help="fetch the commits that DIR lacks from GitHub")
    cli.add_argument("--json", type=Path, metavar="FILE", help="write every verdict there")
    cli.add_argument("-v", "--verbose", action="store_true", help="name what is wrong or refused")
    options = cli.parse_args()
    scripts, missing = [], 0
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        for repo, commit, folder, script in (
            entry for listed in options.lists for entry in unseen_corpus.entries(listed)
        ):
            tree = unseen_corpus.checked_out(repo, commit, options.mirror, out / "trees")
            if tree is None and options.fetch:
                fetch(repo, commit, options.mirror)
                tree = unseen_corpus.checked_out(repo, commit, options.mirror, out / "trees")
            if tree is None:
                missing += 1
            else:
                scripts.append(Script(repo, script, tree.resolve(), folder))
        stubs = verl_clone.write_stubs(out / "stubs")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(partial(read_and_audit, stubs=stubs), scripts))
        start_corpus.prepare("cuda", options.vllm)
        planned = [one for one in scripts if one.audit]
        chosen = [(one.name, [str(one.tree / one.folder), one.name]) for one in planned]
        for one, outcome in zip(planned, start_corpus.outcomes(chosen, "cuda"), strict=True):
            one.start, one.why = outcome.state, one.why or outcome.ours or outcome.why
    print("\n".join(table(scripts, missing)))
    bad = [
        one
        for one in scripts
        if one.read == WRONG or one.start in (start_corpus.REFUSED, start_corpus.OURS_ALONE)
    ]
    if options.verbose:
        print("\n".join(f"{one.repo} {one.name}: {one.read}, {one.start}: {one.why}" for one in bad))
    if options.json:
        listed = [{**asdict(one), "tree": one.tree.name} for one in scripts]
        options.json.write_text(json.dumps(listed, indent=1) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
