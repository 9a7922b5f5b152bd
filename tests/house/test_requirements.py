"""The pinned lists that `make install` gives to pip in one command, without its resolver's dependencies."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = ("requirements/cpu.txt", "requirements/dev.txt")
INSTALLERS = ("Makefile", "scripts/make_venv.sh", ".github/workflows/docs.yml")


def pins(name):
    text = (ROOT / name).read_text()
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_no_package_is_pinned_twice():
    first, second = map(pins, LISTS)
    assert len(first) > 100 and len(second) > 5
    assert not first.keys() & second.keys()


@pytest.mark.parametrize("name", ["cpu.txt", "dev.txt", "docs.txt"])
def test_the_hashes_are_those_of_the_list(name):
    """scripts/make_hashes.sh writes them; torch's file is another one on each index."""
    assert pins(f"requirements/hashes/{name}") == {
        package: version for package, version in pins(f"requirements/{name}").items() if package != "torch"
    }
    text = (ROOT / "requirements/hashes" / name).read_text().replace("\\\n", "")
    assert all(" --hash=sha256:" in line for line in text.splitlines())


@pytest.mark.parametrize("file", INSTALLERS)
def test_what_installs_a_list_asks_for_its_hashes(file):
    lines = [
        line for line in (ROOT / file).read_text().splitlines() if "install" in line and "-r req" in line
    ]
    assert lines and all("--require-hashes" in line and "requirements/hashes/" in line for line in lines)
