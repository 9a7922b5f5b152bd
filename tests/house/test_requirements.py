"""The pinned lists that `make install` gives to pip in one command, without its resolver's dependencies."""

import re
from pathlib import Path

LISTS = ("requirements/cpu.txt", "requirements/dev.txt")


def pins(name):
    text = (Path(__file__).parents[2] / name).read_text()
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_no_package_is_pinned_twice():
    first, second = map(pins, LISTS)
    assert len(first) > 100 and len(second) > 5
    assert not first.keys() & second.keys()
