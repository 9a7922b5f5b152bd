"""The README's pictures: one of each of four commands, with the text that the commands print today."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "site"))
import terminal_pictures  # noqa: E402
from terminal_pictures import PICTURES, text_of  # noqa: E402

NAMES = ("audit", "run", "compare")


@pytest.fixture(scope="module")
def contents():
    return terminal_pictures.contents()


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_has_the_text_that_the_command_prints_today(name, contents):
    drawn = text_of((PICTURES / f"{name}.svg").read_text())
    now = text_of(terminal_pictures.picture(name, contents[name]))
    assert drawn == now, "scripts/site/terminal_pictures.py draws them again"
    assert f"trinity-compat {name}" in " ".join(drawn) and len(drawn) > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_asks_no_other_host_for_anything(name):
    svg = (PICTURES / f"{name}.svg").read_text()
    assert len(svg) < 40_000
    assert set(re.findall(r"https?://[^\s\"')]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert "url(http" not in svg and "<script" not in svg


def test_the_readme_shows_a_picture_of_each():
    shown = re.findall(r"!\[[^]]*\]\(docs/pictures/([^)]+)\)", (ROOT / "README.md").read_text())
    assert shown == ["audit.svg", "run.svg", "compare.svg", "run.png"]
