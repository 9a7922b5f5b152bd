"""The sizes that docs/architecture.md allows each room: `scripts/judge/measures.py --budget`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = "| room | lines at most |\n|---|---:|\n| . | 5 |\n| run | 1,000 |\n| **all** | 1,005 |\n"


def budget(folder: Path, rooms: dict[str, int], page: str = PAGE) -> subprocess.CompletedProcess:
    for room, lines in rooms.items():
        (folder / "code" / room).mkdir(parents=True, exist_ok=True)
        (folder / "code" / room / "module.py").write_text("pass\n" * lines)
    (folder / "page.md").write_text(page)
    words = ["scripts/judge/measures.py", "--root", folder / "code", "--budget", folder / "page.md"]
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_rooms_as_large_as_allowed_pass(tmp_path):
    told = budget(tmp_path, {".": 5, "run": 1000})
    assert (told.returncode, told.stderr) == (0, "")


def test_a_room_and_the_whole_that_grew_are_named_with_their_lines(tmp_path):
    told = budget(tmp_path, {".": 5, "run/plan": 1000, "run/start": 7})
    assert told.returncode == 1
    assert told.stderr.splitlines()[:2] == [
        "**all**: 1,012 lines, 7 more than the table allows",
        "run: 1,007 lines, 7 more than the table allows",
    ]


def test_a_room_without_a_row_and_a_row_without_a_room_are_named(tmp_path):
    told = budget(tmp_path, {".": 5, "new": 1})
    assert "new: 1 lines, and no row in the table" in told.stderr
    assert "run: has a row in the table and no code" in told.stderr
