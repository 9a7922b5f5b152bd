"""The tests of images_suite.py, in a process that has torchvision."""

from pathlib import Path

import pytest
from vision import check_suite


@pytest.mark.runtime
def test_prompts_with_images_are_what_stock_verl_makes_of_them():
    check_suite(Path(__file__).with_name("images_suite.py"))
