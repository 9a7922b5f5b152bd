"""Judge `trinity-compat upgrade` on the launch scripts of seven revisions of veRL, or on a list of others.

    .venv/bin/python scripts/judge/upgrade_corpus.py --verl-git CLONE [--only SUBSTRING] [--verbose]
    .venv/bin/python scripts/judge/upgrade_corpus.py --list FOLDER/list.txt [--only SUBSTRING] [--verbose]

Each recorded script that starts main_ppo (tests/facts/public.json.xz) is upgraded from its own release;
each of a list that scripts/judge/unseen_corpus.py has made from the release that its keys fit, as
--no-fork-config takes it. Then

- the new script, read again and composed under the target with its config files as upgraded, has the
  configuration that ``verl_config.upgrade`` carries the old one to, but for what
  ``rewrite.plan`` gives a reason for;
- ``bash -n`` takes it;
- a second upgrade changes nothing.

A launch that upgrade names as not carried counts as a failure, with its reason. One that its own release
refuses has no configuration to keep, and is listed apart. Exit code 1 below 95 %. Nothing of a script is run.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import facts

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import VERL
from trinity_compat.launch import read_script
from trinity_compat.launch.model import Launch
from trinity_compat.rewrite.configuration import upgrade_configuration
from trinity_compat.rewrite.plan import differences, with_files
from trinity_compat.rewrite.script import UpgradeOptions, upgrade_script
from trinity_compat.translate.pipeline import refuse_errors
from trinity_compat.verl_config import effective_config, upgrade
from trinity_compat.verl_config.model import EffectiveConfig

ENV = {"HOME": "/home/user", "USER": "tester", "SOURCE_DATE_EPOCH": "1767323045"}
MAIN = "verl.trainer.main_ppo"
LEAST = 0.95


def version_of(tag: str) -> str:
    """The release of a revision; the clone's head of January 2026 is nearest to 0.7."""
    return {"HEAD": "0.7.0", "v0.2.0.post2": "0.2.0", "v0.3.0.post1": "0.3.0"}.get(tag, tag.lstrip("v"))


def unmeant(old: EffectiveConfig, new: EffectiveConfig, reasons: Counter[str]) -> Iterator[str]:
    """Yield what differs from the carried configuration without a reason; count the reasons of the rest."""
    for found in differences(old, upgrade(old).config, new):
        if found.why:
            reasons[found.why] += 1
        else:
            yield f"{found.key} is {found.now}, not {found.carried}"


def config_files(launch: Launch, version: str | None, root: Path) -> set[Path]:
    """Return the user's config files from which a launch of main_ppo is composed."""
    if launch.module != MAIN:
        return set()
    settings = effective_config(launch, version=version, root=root, fork_config=False).settings.values()
    places = {one.where.file for one in settings if one.where and one.word is None}
    return {(root / place).resolve() for place in places if place.endswith(".yaml")}


def refuse_broken(script: Path, how: dict[str, Any], version: str | None) -> None:
    """Raise UserError for a launch whose config is not there, or that Hydra refuses under its own release."""
    for launch in read_script(script, **how).launches:
        if launch.module == MAIN:
            root = Path(how["cwd"])
            refuse_errors(effective_config(launch, version=version, root=root, fork_config=False))


def judged(script: Path, how: dict[str, Any], version: str | None, reasons: Counter[str]) -> Iterator[str]:
    """Yield each way in which the upgrade of a script fails."""
    before = read_script(script, **how).launches
    files = {}
    for file in {file for launch in before for file in config_files(launch, version, Path(how["cwd"]))}:
        done = upgrade_configuration(
            str(file), UpgradeOptions(version=version, fork_config=False, of_scripts=True)
        )
        yield from (f"not carried: {remark.spelled}: {remark.text}" for remark in done.refused)
        files[str(file)] = done.after.decode()
    options = UpgradeOptions(
        Path(how["cwd"]), how["env"], tuple(how["args"]), version, fork_config=False, files=files
    )
    result = upgrade_script(str(script), options)
    yield from (f"not carried: {remark.spelled}: {remark.text}" for remark in result.refused)
    after = read_script(script, **how, content=result.after).launches
    for one, other in zip(before, after, strict=True):
        if one.module == MAIN:
            old = effective_config(one, version=version, root=Path(how["cwd"]), fork_config=False)
            new = effective_config(with_files(other, files), version=VERL, root=Path(how["cwd"]))
            yield from unmeant(old, new, reasons)
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / script.name
        again.write_bytes(result.after)
        refused = [
            subprocess.run(["bash", "-n", file], capture_output=True).returncode for file in (script, again)
        ]
        if refused[1] and not refused[0]:
            yield "bash -n refuses it"
    old_text = script.read_bytes()
    try:
        script.write_bytes(result.after)
        for again_from in dict.fromkeys((None, version)):
            options = replace(options, version=again_from, fork_config=False)
            try:
                second = upgrade_script(str(script), options)
            except UserError as error:
                yield f"second upgrade from {again_from or 'what is inferred'}: {error}"
                continue
            if second.changed:
                yield f"second upgrade from {again_from or 'what is inferred'}: {second.changes[0]}"
    finally:
        script.write_bytes(old_text)


def _is_judged(entry: dict[str, Any]) -> bool:
    """Return whether an entry is a shell script that starts main_ppo."""
    starts = any(launch["module"] == MAIN for launch in entry["launches"])
    return (
        starts and entry["kind"] == "file" and not entry["path"].endswith((".py", ".ipynb", ".yaml", ".yml"))
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A script to judge. ``how``: the arguments of read_script. ``version`` None: what its keys fit."""

    name: str
    script: Path
    how: dict[str, Any]
    version: str | None


def recorded(verl_git: Path, only: str, folder: Path) -> Iterator[Case]:
    """Yield the recorded scripts of veRL, whose revisions are written below ``folder``."""
    corpus = facts.load("public")
    entries = [e for e in corpus["scripts"] if _is_judged(e) and only in f"{e['tag']}:{e['path']}"]
    for tag in {entry["tag"] for entry in entries}:
        revision = corpus["head"] if tag == "HEAD" else tag
        archive = subprocess.run(
            ["git", "-C", verl_git, "archive", revision], capture_output=True, check=True
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder / tag, filter="data")
    for entry in entries:
        tree = folder / entry["tag"]
        env = ENV | dict(pair.split("=", 1) for pair in entry["env"].split())
        how = {"cwd": entry["cwd"].replace("/repo", str(tree), 1), "env": env, "args": entry["args"]}
        yield Case(f"{entry['tag']}:{entry['path']}", tree / entry["path"], how, version_of(entry["tag"]))


def listed(file: Path, only: str) -> Iterator[Case]:
    """Yield the scripts of a list, "FOLDER SCRIPT" in each line, that start main_ppo."""
    for line in file.read_text().splitlines():
        folder, script = line.split(" ", 1)
        how = {"cwd": folder, "env": ENV, "args": ()}
        if only not in line:
            continue
        try:
            launches = read_script(Path(folder) / script, **how).launches
        except UserError:
            continue
        if any(launch.module == MAIN for launch in launches):
            yield Case(f"{Path(folder).name}:{script}", Path(folder) / script, how, None)


def main() -> int:
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    source = cli.add_mutually_exclusive_group(required=True)
    source.add_argument("--verl-git", type=Path, help="a clone of veRL with the recorded revisions")
    source.add_argument(
        "--list", type=Path, help="scripts that scripts/judge/unseen_corpus.py has checked out"
    )
    cli.add_argument("--only", default="", help="substring of TAG:PATH, or of a list's line")
    cli.add_argument("--verbose", action="store_true")
    options = cli.parse_args()
    count, failed, problems, reasons = 0, 0, Counter[str](), Counter[str]()
    unread: list[str] = []  # without a configuration under their own release
    with tempfile.TemporaryDirectory() as folder:
        cases = (
            listed(options.list, options.only)
            if options.list
            else recorded(options.verl_git, options.only, Path(folder))
        )
        for case in cases:
            try:
                refuse_broken(case.script, case.how, case.version)
                found = list(judged(case.script, case.how, case.version, reasons))
            except UserError as error:
                unread.append(f"{case.name}: {error}".splitlines()[0].replace(case.how["cwd"], ""))
                continue
            failed += bool(found)
            count += 1
            problems.update(problem.replace(case.how["cwd"], "")[:110] for problem in found)
            if found and options.verbose:
                print(case.name, *found, sep="\n  ")
    share = 1 - failed / count if count else 0.0
    print(f"{count} scripts, {failed} failed: {share:.1%} upgraded with the same configuration")
    print(f"{len(unread)} have no configuration under their own release:", *unread, sep="\n  ")
    for counts, title in ((problems, "failures"), (reasons, "deliberate differences (keys)")):
        print(f"\n{title}:")
        for text, number in counts.most_common(40):
            print(f"  {number:4}  {text}")
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
