"""The tests of lora_images_suite.py, in a process that has torchvision."""

from pathlib import Path

import pytest
from vision import check_suite


@pytest.mark.runtime
def test_an_adapter_of_a_model_that_sees_is_taken_by_vllm():
    check_suite(Path(__file__).with_name("lora_images_suite.py"))
