"""The launch scripts of a clone of veRL: what they want, and what bash hands to Python for them.

    .venv/bin/python scripts/judge/verl_clone.py --clone DIR [--commit C] --record tests/facts/main.json.xz

records the launches of a commit as data: module and arguments of each, without a line of any script. The
scripts run under bash in a sandbox (bubblewrap) without a network, where python3, torchrun, ray and the like
only write down how they were called. tests/facts/launch_arguments.txt says which arguments and variables a
script wants.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import record_facts

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "facts" / "launch_arguments.txt"
FOLDERS = ("examples", "tests/special_e2e", "verl/experimental")
# Of the clone; the installed release's stands in its place, since that release runs.
CONFIG = "verl/trainer/config"
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_MAIN = re.compile(r"(^|\.)(main_ppo\w*|main_dapo|fully_async_main|\w*sft_trainer\w*)$")
_LIMIT_S = 60
# A launch is written down; asked for the device, Python answers as on a machine with GPUs.
_CALLED = """#!/bin/bash
case $1 in
-) echo cuda ;;
-c) [[ $2 != *torch_npu* ]] ;;
*) printf "%s\\0" "$#" "$0" "$@" >> "$TC_RECORD" ;;
esac
"""
_PASSED_ON = {
    "date": '#!/bin/bash\nexec /usr/bin/date -u -d @0 "$@"\n',  # a recording is the same at any time
    "uv": '#!/bin/bash\nwhile [ $# -gt 0 ]; do case $1 in python*|torchrun) exec "$@";; esac; shift; done\n',
    "ray": '#!/bin/bash\nwhile [ $# -gt 0 ]; do [ "$1" != -- ] || exec "${@:2}"; shift; done\n',
    **dict.fromkeys(("sleep", "pip", "pip3", "hf", "huggingface-cli", "wget", "curl"), "#!/bin/bash\n"),
}
_PYTHONS = ("python", "python3", "torchrun")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments and variables that a script is started with."""

    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """Variables, then arguments: the words behind a script in a line of LIST.txt."""
        return [*(f"{name}={value}" for name, value in self.variables.items()), *self.arguments]


def of_words(words: Sequence[str]) -> Wanted:
    """The words behind a script in LIST.txt, variables first."""
    variables = []
    for word in words:
        if not _VARIABLE.match(word):
            break
        variables.append(word)
    given = dict(word.split("=", 1) for word in variables)
    return Wanted(tuple(words[len(variables) :]), given)


def wanted(script: str, table: Path = TABLE) -> Wanted:
    """The arguments and variables of ``script``, a path in the clone."""
    for line in table.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            glob, arguments, variables = (part.strip() for part in line.split("|"))
            if fnmatch(script, glob):
                return of_words([*shlex.split(variables), *shlex.split(arguments)])
    return Wanted()


def scripts_of(tree: Path) -> list[str]:
    """Every shell script of a tree's FOLDERS, as a path in it."""
    found = (path for folder in FOLDERS for path in (tree / folder).rglob("*.sh"))
    return sorted(str(path.relative_to(tree)) for path in found)


def commit_of(clone: Path, commit: str) -> tuple[str, str]:
    """(hash, date of the commit, YYYY-MM-DD)."""
    shown = _git(clone, "log", "-1", "--format=%H %cs", commit).decode().split()
    return shown[0], shown[1]


def write_tree(clone: Path, commit: str, out: Path) -> None:
    """Write FOLDERS of a commit below ``out``, beside the installed release's trainer configuration."""
    there = _git(clone, "ls-tree", "--name-only", commit, *FOLDERS).decode().split()
    packed = _git(clone, "archive", "--format=tar", commit, *there)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(out, filter="data")
    shutil.copytree(installed() / "trainer" / "config", out / CONFIG, dirs_exist_ok=True)


def installed() -> Path:
    """The folder of the installed veRL, which is not imported."""
    spec = importlib.util.find_spec("verl")
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _git(clone: Path, *words: str) -> bytes:
    command = ["git", "--git-dir", str(clone / ".git" if (clone / ".git").exists() else clone), *words]
    return subprocess.run(command, capture_output=True, check=True).stdout


def recorded(clone: Path, commit: str) -> dict[str, Any]:
    """The launches of a commit as bash makes them: what tests/facts holds of it."""
    name, date = commit_of(clone, commit)
    scripts = []
    with tempfile.TemporaryDirectory() as folder:
        tree, stubs = Path(folder, "repo"), write_stubs(Path(folder, "stubs"))
        write_tree(clone, name, tree)
        for script in scripts_of(tree):
            given = wanted(script)
            scripts.append(
                {
                    "path": script,
                    "sha": hashlib.sha256((tree / script).read_bytes()).hexdigest()[:16],
                    "args": list(given.arguments),
                    "env": given.variables,
                    "launches": run_bash(script, given, tree, stubs),
                }
            )
    return {"tag": f"main-{date}", "commit": name, "date": date, "scripts": scripts}


def write_stubs(folder: Path) -> Path:
    """Write programs that only write down their arguments, and those that hand them on."""
    folder.mkdir(parents=True)
    for name, text in {**dict.fromkeys(_PYTHONS, _CALLED), **_PASSED_ON}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run_bash(script: str, given: Wanted, tree: Path, stubs: Path, folder: str = ".") -> list[dict[str, Any]]:
    """The training launches that bash makes of ``script``, in a sandbox that is gone afterwards.

    It starts in ``folder`` of the tree, from where the script's path counts.
    """
    record = tree / ".record"
    record.write_bytes(b"")
    binds = [
        *("--ro-bind", "/usr", "/usr"),
        *("--ro-bind", str(stubs), "/stubs"),
        *("--bind", str(tree), "/repo"),
    ]
    for name in ("/bin", "/lib", "/lib64", "/etc"):
        binds += ["--ro-bind-try", name, name]
    sandbox = ["bwrap", "--unshare-all", "--die-with-parent", *binds, "--tmpfs", "/tmp", "--tmpfs", "/home"]
    sandbox += ["--proc", "/proc", "--dev", "/dev", "--chdir", f"/repo/{folder}", "--clearenv"]
    variables = {"PATH": "/stubs:/usr/bin:/bin", "HOME": "/home/user", "LC_ALL": "C.UTF-8"}
    variables["BASH_FUNC_ulimit%%"] = "() { :; }"  # a sandbox may not raise limits
    for name, value in {**variables, "TC_RECORD": "/repo/.record", **given.variables}.items():
        sandbox += ["--setenv", name, value]
    command = [*sandbox, "bash", script, *given.arguments]
    with tempfile.TemporaryFile() as said:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=_LIMIT_S, check=False
        )
    return list(launches_of(record.read_bytes()))


def launches_of(record: bytes) -> Iterator[dict[str, Any]]:
    """The training mains among the recorded calls: module, arguments, and torchrun's own words."""
    fields = record.decode(errors="surrogateescape").split("\0")[:-1]
    while fields:
        count = int(fields[0])
        program, argv = fields[1].rpartition("/")[2], fields[2 : count + 2]
        fields = fields[count + 2 :]
        at = argv.index("-m") if "-m" in argv else -1
        if 0 <= at < len(argv) - 1:
            before, module, args = argv[:at], argv[at + 1], argv[at + 2 :]
        else:
            at = next((i for i, word in enumerate(argv) if word.endswith(".py")), len(argv))
            before, args = argv[:at], argv[at + 1 :]
            module = (
                argv[at].removesuffix(".py").removeprefix("./").replace("/", ".") if at < len(argv) else ""
            )
        if _MAIN.search(module):
            wrapper = {"wrapper": [program, *before]} if program == "torchrun" else {}
            yield {"module": module, "args": args, **wrapper}


def main() -> int:
    """Record the launches of a clone."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    cli.add_argument("--clone", type=Path, required=True, metavar="DIR")
    cli.add_argument("--commit", default="HEAD", metavar="C")
    cli.add_argument("--record", type=Path, required=True, metavar="FILE")
    options = cli.parse_args()
    found = recorded(options.clone, options.commit)
    options.record.write_bytes(record_facts.packed(found))
    launched = sum(bool(script["launches"]) for script in found["scripts"])
    print(
        f"{found['tag']} {found['commit']}: {len(found['scripts'])} scripts, {launched} of them launch a main"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
