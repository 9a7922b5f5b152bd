"""Try the light side under another Python: ``scripts/judge/try_python.py 3.10 3.14``; ``--types``: mypy's.

The Python is pyodide, CPython for WebAssembly under node, in the npm package of its release: there every
module of the light rooms is imported, and commands that start no process print what they print here.
``--types`` has mypy read the same modules as Python 3.10, so that a name of a newer one is an error.
``release_check.py`` says more, where that Python is installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "house"))
PYODIDE = {"3.10": "0.22.1", "3.12": "0.26.4", "3.13": "0.28.3", "3.14": "314.0.7"}
OLDEST = "3.10"
# Rooms whose modules a light command may import.
ROOMS = (
    "launch",
    "verl_config",
    "translate",
    "advise",
    "audit",
    "compare",
    "rewrite",
    "web",
    "common",
    "cli",
    "trinity.config",
    "trinity.algorithms",
)
# Modules that the trial cannot have: of an extra, and one that pyodide 0.22 leaves out.
MISSING = ("numpy", "scipy", "sqlite3")
_WORDS = (
    "python3 -m verl.trainer.main_ppo data.train_files=/data/t.parquet data.val_files=/data/v.parquet"
    " data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.model.path=/m"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=8"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 trainer.total_training_steps=10"
)
_LAUNCH = _WORDS.split()
COMMANDS = (
    ["parse", "--argv", "--", *_LAUNCH],
    ["translate", "--argv", "--", *_LAUNCH],
    ["translate", "--argv", "-o", "x.yaml", "--", *_LAUNCH],
    ["diff", "x.yaml", "x.yaml"],
    ["audit", "v.yaml", "--format", "json"],
    ["explain", "actor_rollout_ref.rollout.n"],
    ["explain", "TC044"],
    ["schema", "audit"],
    ["profile", "cpu"],
)
# Runs in the other Python, and here: prints one JSON object.
INSIDE = """
import contextlib, importlib, io, json, os, pkgutil, sys, tempfile
rooms, missing, commands, folders = json.loads(words)
sys.path[:0] = folders
os.chdir(tempfile.mkdtemp())
with open("v.yaml", "w") as file:
    file.write("data: {train_files: /data/t.parquet, val_files: /data/v.parquet, train_batch_size: 256}")
failed, modules = {}, 0
for room in rooms:
    package = importlib.import_module(f"trinity_compat.{room}")
    for name in [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]:
        modules += 1
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not any(each in str(error) for each in missing):
                failed[name] = repr(error)
        except Exception as error:
            failed[name] = repr(error)
from trinity_compat.cli import main
printed = []
for command in commands:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(command)
            code = 0
        except SystemExit as error:
            code = error.code
    printed.append([code, out.buffer.getvalue().decode()])
found = {"modules": modules, "failed": failed, "printed": printed}
print(json.dumps({"python": sys.version.split()[0], **found}))
0
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", choices=[*PYODIDE, []], metavar="VERSION")
    parser.add_argument("--types", action="store_true", help="let mypy read the light rooms as Python 3.10")
    asked = parser.parse_args()
    code = types() if asked.types else 0
    if asked.versions:
        (ROOT / ".scratch").mkdir(exist_ok=True)
        site = light_site(ROOT / ".scratch" / "light-site")
        here = outcome([sys.executable, "-c", f"words = {request(str(ROOT))!r}\n{INSIDE}"])
        for version in asked.versions:
            code |= tried(version, site, here)
    return code


def types() -> int:
    packages = [word for room in ROOMS for word in ("-p", f"trinity_compat.{room}")]
    command = ["mypy", "--python-version", OLDEST, "--follow-imports", "silent", *packages]
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode


def request(*folders: str) -> str:
    return json.dumps([ROOMS, MISSING, COMMANDS, folders])


def outcome(command: list[str]) -> dict[str, object]:
    """Return what INSIDE prints; a Python that cannot run it ends this program."""
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode or not done.stdout:
        sys.exit(f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def tried(version: str, site: Path, here: dict[str, object]) -> int:
    inside = ROOT / ".scratch" / "try_python_inside.py"
    inside.write_text(INSIDE, encoding="utf-8")
    script = ROOT / "scripts" / "judge" / "pyodide.mjs"
    words = [str(each) for each in (script, pyodide(version), ROOT, site, inside)]
    there = outcome(["node", *words, request("/repo", "/site")])
    assert isinstance(there["printed"], list) and isinstance(here["printed"], list)
    differ = {
        " ".join(words[:2]): first_difference(got, wanted)
        for words, got, wanted in zip(COMMANDS, there["printed"], here["printed"], strict=True)
        if got != wanted or wanted[0]
    }
    print(f"Python {there['python']}: {there['modules']} modules, {len(COMMANDS)} commands")
    for name, why in dict(there["failed"]).items():  # type: ignore[call-overload]
        print(f"  {name}: {why}")
    for name, lines in differ.items():
        print(f"  {name}: an error, or not the output of Python {here['python']}: {lines}")
    return int(bool(there["failed"] or differ or not str(there["python"]).startswith(f"{version}.")))


def first_difference(got: Sequence[object], wanted: Sequence[object]) -> str:
    """Return the first line that differs, of both; the exit codes where none does."""
    lines = zip_longest(str(got[1]).splitlines(), str(wanted[1]).splitlines())
    return next((f"{one!r}, not {other!r}" for one, other in lines if one != other), f"{got[0]}, {wanted[0]}")


def pyodide(version: str) -> Path:
    """Return the folder of pyodide's npm package, installed on first use."""
    folder = ROOT / ".scratch" / f"pyodide-{PYODIDE[version]}"
    package = folder / "node_modules" / "pyodide"
    if not (package / "pyodide.js").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        words = ["npm", "install", "--silent", "--no-audit", "--no-fund", f"pyodide@{PYODIDE[version]}"]
        subprocess.run(words, cwd=folder, check=True)
    return package


def light_site(folder: Path) -> Path:
    """Copy the Python files of what the light side needs: each works without its compiled part."""
    from light_install import light_distributions

    shutil.rmtree(folder, ignore_errors=True)
    for name in light_distributions() - {"trinity-compat"}:
        found = importlib.metadata.distribution(name)
        for file in found.files or ():
            if file.suffix in (".so", ".pyc") or ".." in file.parts:
                continue
            place = folder / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(found.locate_file(file)), place)
    return folder


if __name__ == "__main__":
    sys.exit(main())
