"""The light commands where Python has none of the modules and calls that only POSIX has, as on Windows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "judge"))
from try_python import ROOMS  # noqa: E402

SCRIPT = str(ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh")
RUN = """
import json, os, sys
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("fchmod", "fork", "geteuid", "getgid", "getpgid", "getuid", "killpg", "setsid"):
    delattr(os, name)
from trinity_compat.cli import main
main(json.loads(sys.argv[1]))
"""
MODULES = """
import importlib, pkgutil, sys
for room in sys.argv[2:]:
    package = importlib.import_module(f"trinity_compat.{room}")
    names = [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for name in (package.__name__, *names):
        try:
            importlib.import_module(name)
        except Exception as error:
            print(name, type(error).__name__, error)
"""


@pytest.mark.parametrize("room", ROOMS)
def test_every_light_module_can_be_imported_without_posix(tmp_path, room):
    before = RUN.partition("from trinity_compat.cli")[0]
    command = [sys.executable, "-c", before + MODULES, "", room]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def run(folder, *words):
    command = [sys.executable, "-c", RUN, json.dumps(words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "words",
    [
        ("translate", SCRIPT, "-o", "x.yaml"),
        ("audit", SCRIPT, "--format", "html", "-o", "x.html"),
        ("explain", "data.train_batch_size"),
        ("parse", SCRIPT),
        ("ignored", SCRIPT),
        ("profile",),
        ("compare", "a.csv", "b.csv", "-o", "report"),
    ],
    ids=lambda words: words[0],
)
def test_a_light_command_needs_nothing_of_posix(tmp_path, words):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(
            "step,reward\n" + "".join(f"{step},{step}\n" for step in range(1, 31))
        )
    told = run(tmp_path, *words)
    assert "Traceback" not in told.stderr, told.stderr
    assert told.returncode == 0, told.stderr
