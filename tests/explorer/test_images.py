"""The tests of images_suite.py, in a process that has torchvision."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vision import python_path

SUITE = Path(__file__).with_name("images_suite.py")


@pytest.mark.runtime
def test_prompts_with_images_are_what_stock_verl_makes_of_them():
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", str(SUITE)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500)
    assert told.returncode == 0, told.stdout + told.stderr
    assert " passed" in told.stdout and " skipped" not in told.stdout
