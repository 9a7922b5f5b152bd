"""What tests with images run in: torchvision and qwen-vl-utils, which no other test's process must see."""

import os
import subprocess
import sys
from pathlib import Path

import needs

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """PYTHONPATH with them."""
    folders = [str(ROOT / "tests" / "vision_site"), str(needs.made(".vision", "hashes/vision.txt"))]
    return os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH", "")]))


def make_toy(folder: Path, code: str) -> Path:
    """Run ``code``, which makes a toy in ``folder``, in a process that has them; it can import the toys."""
    path = os.pathsep.join([python_path(), str(ROOT / "tests")])
    command = [sys.executable, "-c", f"import pathlib\nfolder = pathlib.Path({str(folder)!r})\n{code}"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300)
    return folder


def check_suite(suite: Path) -> None:
    """All tests of a file pass, none left out, in a process that has them."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", str(suite)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500)
    assert told.returncode == 0, told.stdout + told.stderr
    assert " passed" in told.stdout and " skipped" not in told.stdout
