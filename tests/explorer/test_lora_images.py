"""The tests of lora_images_suite.py, in a process that has torchvision."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vision import python_path

SUITE = Path(__file__).with_name("lora_images_suite.py")


@pytest.mark.runtime
def test_an_adapter_of_a_model_that_sees_is_taken_by_vllm():
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", str(SUITE)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500)
    assert told.returncode == 0, told.stdout + told.stderr
    assert " passed" in told.stdout and " skipped" not in told.stdout
