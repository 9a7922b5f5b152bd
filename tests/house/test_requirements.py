"""The pinned lists that `make install` gives to pip in one command, without its resolver's dependencies."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = ("requirements/cpu.txt", "requirements/dev.txt")
# Those that pip installs; torch's file is another one on each index, and has no digest.
FOR_PIP = sorted(
    path.name for path in (ROOT / "requirements").glob("*.txt") if not re.match("debian|npm", path.name)
)
INSTALLERS = [
    *("Makefile", ".github/workflows/docs.yml", ".github/workflows/release.yml"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "scripts").rglob("*.sh")),
]


def pins(name):
    text = (ROOT / name).read_text()
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_no_package_is_pinned_twice():
    first, second = map(pins, LISTS)
    assert len(first) > 100 and len(second) > 5
    assert not first.keys() & second.keys()


@pytest.mark.parametrize("name", FOR_PIP)
def test_the_hashes_are_those_of_the_list(name):
    """scripts/ci/make_hashes.sh writes them."""
    assert pins(f"requirements/hashes/{name}") == {
        package: version for package, version in pins(f"requirements/{name}").items() if package != "torch"
    }
    lines = (ROOT / "requirements/hashes" / name).read_text().splitlines()
    assert all(" --hash=sha256:" in line for line in lines)


def test_what_installs_a_list_asks_for_its_hashes():
    installs = [
        line
        for file in INSTALLERS
        for line in (ROOT / file).read_text().replace("\\\n", "").splitlines()
        if re.search(r"pip\"? (install|wheel)\b.* (-r|--requirement) ", line)
    ]
    assert len(installs) >= 9
    assert [line for line in installs if "--require-hashes" not in line] == []
