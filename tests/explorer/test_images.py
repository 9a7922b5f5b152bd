"""The suites with images, in a process that has torchvision."""

from pathlib import Path

import pytest
from vision import check_suite


@pytest.mark.runtime
def test_prompts_with_images_are_what_stock_verl_makes_of_them():
    check_suite(Path(__file__).with_name("images_suite.py"))


@pytest.mark.runtime
def test_a_teacher_sees_and_hears_what_the_policy_does():
    check_suite(Path(__file__).with_name("teacher_images_suite.py"))
