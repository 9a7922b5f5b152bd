"""What tests with images run in: torchvision and qwen-vl-utils, which no other test's process must see."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """PYTHONPATH with them, installed where they are not yet."""
    script = [str(ROOT / "scripts" / "unpack_vision.sh")]
    told = subprocess.run(script, check=True, capture_output=True, text=True, timeout=600)
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(ROOT / "tests" / "vision_site"), told.stdout.strip(), given]))


def check_suite(suite: Path) -> None:
    """All tests of a file pass, none left out, in a process that has them."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", str(suite)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500)
    assert told.returncode == 0, told.stdout + told.stderr
    assert " passed" in told.stdout and " skipped" not in told.stdout
