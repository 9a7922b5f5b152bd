"""Data under translators/ are files that a diff can show: sorted, a key or an entry a line."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "translators"
RELEASES = DATA / "generated" / "verl" / "releases"
LONGEST = 450  # an entry with a sentence for its reason
GENERATED = [*RELEASES.glob("*.json"), *DATA.glob("generated/trainer_config/*.json")]
WRITTEN = [*GENERATED, DATA / "by_hand" / "codes.json"]

dump = runpy.run_path(str(ROOT / "scripts" / "generate" / "data_files.py"))["dump"]


def is_one_text(line: str) -> bool:
    """A line that cannot be broken: one string, by itself or as a key's value."""
    text = line.strip().removesuffix(",")
    value = json.loads("{" + text + "}" if ": " in text else text)
    return isinstance(next(iter(value.values())) if isinstance(value, dict) else value, str)


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.json")), ids=lambda path: str(path.relative_to(DATA)))
def test_no_line_is_longer_than_an_entry(path):
    long = [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > LONGEST]
    assert [line[:80] for line in long if not is_one_text(line)] == []


def test_the_readme_says_once_of_each_file_who_writes_it():
    by_script, by_hand = (DATA / "README.md").read_text().split("## by_hand/")
    rows = [line.split("|")[1:3] for line in by_script.splitlines() if line.startswith("| `")]
    scripts = {script.strip(" `") for _, script in rows}
    assert [name for name in scripts if not (ROOT / "scripts" / "generate" / name).is_file()] == []
    cells = [cell for cell, _ in rows] + [
        line.split("|")[1] for line in by_hand.splitlines() if line.startswith("| `")
    ]
    named = [path for cell in cells for glob in re.findall(r"`([^`]+)`", cell) for path in DATA.glob(glob)]
    assert sorted(named) == sorted(
        path for path in DATA.rglob("*") if path.is_file() and path.suffix != ".md"
    )


@pytest.mark.parametrize("path", sorted(WRITTEN), ids=lambda path: str(path.relative_to(DATA)))
def test_a_file_has_the_form_that_its_writer_gives_it(path):
    text = path.read_text(encoding="utf-8")
    assert dump(json.loads(text)) == text


@pytest.mark.parametrize("path", sorted(RELEASES.glob("*.json")), ids=lambda path: path.name)
def test_files_keys_and_recipes_of_a_release_are_sorted(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    sections = {name: value for name, value in content.items() if isinstance(value, dict)}
    unsorted = [name for name, value in sections.items() if list(value) != sorted(value)]
    assert not unsorted


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, "{}\n"),
        ({"b": [1, 2], "a": {}}, '{\n "b": [1, 2],\n "a": {}\n}\n'),
        ({"é": {"x": None}}, '{\n "é": {\n  "x": null\n }\n}\n'),
        ([{"a": 1}], '[\n {\n  "a": 1\n }\n]\n'),
        (["x" * 60, "y" * 60], f'[\n "{"x" * 60}",\n "{"y" * 60}"\n]\n'),
    ],
)
def test_a_dump_has_a_key_a_line_and_short_lists_on_one(content, text):
    assert dump(content) == text
    assert json.loads(text) == content
