"""docs/one-run.md: each function that it names stands at that line, and its values are the toy's.

``TC_RECORD=1 pytest tests/house/test_one_run.py`` writes the lines anew.
"""

import ast
import os
import re
from pathlib import Path

import pytest

from trinity_compat.launch.reading import read_script
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_launch

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trinity_compat"
PAGE = ROOT / "docs" / "one-run.md"
ANCHOR = re.compile(r"`([\w/]+\.py):(\d+) ([\w.]+)`")
ROOMS = {
    "cli",
    "run",
    "launch",
    "verl_config",
    "translate",
    "job",
    "explorer",
    "buffer",
    "trainer",
    "synchronizer",
}


def line_of(file, name):
    """The line that defines a function, a class or a method (``Class.method``), None where it is not."""
    if not (PACKAGE / file).is_file():
        return None
    body = ast.parse((PACKAGE / file).read_text()).body
    line = None
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = next((node for node in body if isinstance(node, kinds) and node.name == part), None)
        if found is None:
            return None
        line, body = found.lineno, found.body
    return line


def with_lines(text):
    return ANCHOR.sub(lambda at: f"`{at[1]}:{line_of(at[1], at[3]) or at[2]} {at[3]}`", text)


def test_each_function_of_the_page_stands_at_its_line():
    text = PAGE.read_text()
    if os.environ.get("TC_RECORD"):
        PAGE.write_text(text := with_lines(text))
    anchors = ANCHOR.findall(text)
    missing = [f"{file} {name}" for file, _, name in anchors if line_of(file, name) is None]
    assert missing == []
    moved = [f"{file}:{line} {name}" for file, line, name in anchors if line_of(file, name) != int(line)]
    assert moved == [], f"TC_RECORD=1 pytest {Path(__file__).relative_to(ROOT)}"
    # Each file that the page names is named in this form, so that its line is held.
    assert len(anchors) == len(re.findall(r"\.py:\d+", text))


def test_the_way_leads_through_every_room_of_a_run_in_its_order():
    first = [file.split("/")[0] for file, _, _ in ANCHOR.findall(PAGE.read_text())]
    assert set(first) >= ROOMS
    way = ("cli", "launch", "verl_config", "translate", "job", "trainer", "explorer", "buffer")
    assert sorted(way, key=first.index) == list(way)


@pytest.mark.parametrize(
    ("file", "name", "defined"),
    [
        ("run/run.py", "run_source", True),
        ("buffer/store.py", "Buffer.put_groups", True),
        ("buffer/store.py", "Buffer.gone", False),
        ("buffer/store.py", "put_groups", False),
        ("buffer/gone.py", "Buffer", False),
    ],
)
def test_a_name_that_a_file_does_not_define_is_seen(file, name, defined):
    assert (line_of(file, name) is not None) == defined
    written = with_lines(f"`{file}:1 {name}`")
    assert (written != f"`{file}:1 {name}`") == defined


def test_the_values_of_the_page_are_those_of_the_toy():
    script = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
    (launch,) = read_script(script).launches
    _, text = translate_launch(launch, TranslateOptions())
    block = re.search(r"what it says is what runs:\n\n((?: {4}.*\n)+)", PAGE.read_text())
    lines = [line.strip() for line in block[1].splitlines()]
    written = [line.partition("  #")[0].strip() for line in text.splitlines()]
    assert len(lines) > 4 and [line for line in lines if line not in written] == []
    shown = re.findall(r"run_toy_grpo\.sh:(\d+)", PAGE.read_text())
    source = script.read_text().splitlines()
    assert "adv_estimator=grpo" in source[int(shown[0]) - 1] and "rollout.n=" in source[int(shown[1]) - 1]
