"""Pictures of what commands print, for the README: ``scripts/site/terminal_pictures.py [--job JOB]``.

docs/pictures/{audit,run,compare}.svg. ``audit`` reads the toy's script and ``compare`` simulated seeds, each
on a terminal of its own; the panel of ``run`` is that of a demo when ``--job JOB`` recorded it in
tests/house/demo_panel.json. A test compares the text of the files with what the code prints today.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import io
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.terminal_theme import MONOKAI
from rich.text import Text

from trinity_compat.buffer.model import Participant
from trinity_compat.run.job_dir.progress import panel
from trinity_compat.run.job_dir.snapshot import Snapshot, StepFigures
from trinity_compat.run.job_dir.status import read_job

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
RECORDED = ROOT / "tests" / "house" / "demo_panel.json"
SCRIPTS = ROOT / "examples" / "verl_scripts"
COLUMNS = 120
NARROW = {"run": 96}
_ROWS = 500  # of the terminal: nothing scrolls
# rich's own, without a font of another host.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--job", type=Path, help="a running demo, whose panel is recorded first")
    asked = parser.parse_args()
    if asked.job:
        RECORDED.write_text(json.dumps(recorded(read_job(asked.job)[1]), indent=1) + "\n", encoding="utf-8")
    for name, content in contents().items():
        (PICTURES / f"{name}.svg").write_text(picture(name, content), encoding="utf-8")


def contents() -> dict[str, RenderableType]:
    """Return the content of each picture: a command line, and what the command prints."""
    with tempfile.TemporaryDirectory(prefix="tc-pictures-") as name:
        folder = Path(name)
        write_seeds(folder)
        audited = printed("audit", "run_toy_grpo.sh", cwd=SCRIPTS)
        compared = printed("compare", "a/", "b/", cwd=folder)
    run = Group(Text(""), panel(snapshot_of(json.loads(RECORDED.read_text(encoding="utf-8")))))
    return {
        "audit": Group(prompt("audit run_toy_grpo.sh"), audited),
        "run": Group(prompt("run run_toy_grpo.sh"), run),
        "compare": Group(prompt("compare a/ b/"), first_lines(compared, 20)),
    }


def prompt(words: str) -> Text:
    return Text.assemble(("$ ", "dim"), (f"trinity-compat {words}", "bold"))


def printed(*words: str, cwd: Path) -> Text:
    """Run a command of ours on a terminal of COLUMNS columns; returns its text with the colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))
    env = {"PATH": os.environ["PATH"], "HOME": "/home/me", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    command = [sys.executable, "-P", "-m", "trinity_compat", *words]
    process = subprocess.Popen(
        command, cwd=cwd, env={**env, "PYTHONPATH": str(ROOT)}, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    pieces = []
    try:
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    if process.wait():
        raise RuntimeError(f"{words} ended with {process.returncode}: {b''.join(pieces).decode()}")
    return Text.from_ansi(b"".join(pieces).decode().replace("\r\n", "\n"))


def first_lines(text: Text, count: int) -> Text:
    lines = text.split("\n")
    return Text("\n").join([*lines[:count], Text("…", style="dim")] if len(lines) > count else lines)


def write_seeds(folder: Path, *, seeds: int = 5, steps: int = 40) -> None:
    """Two sides of simulated runs that learn alike."""
    for side, seconds in (("a", 31.0), ("b", 31.0)):
        for seed in range(seeds):
            draw = random.Random(f"{side} {seed}").gauss
            place = folder / side / f"seed{seed}.csv"
            place.parent.mkdir(exist_ok=True)
            rows = ["step,critic/score/mean,response_length/mean,actor/entropy,timing_s/step"]
            for step in range(1, steps + 1):
                score = 0.85 - 0.6 * 0.9**step + draw(0, 0.01)
                figures = (score, draw(412, 3), 0.4 - 0.005 * step + draw(0, 0.004), draw(seconds, 0.4))
                rows.append(",".join([str(step), *(f"{figure:.5f}" for figure in figures)]))
            place.write_text("\n".join(rows) + "\n", encoding="utf-8")


def recorded(snapshot: Snapshot) -> dict[str, object]:
    """Return what the panel shows of a snapshot, without the machine's name."""
    data = asdict(snapshot)
    data["rows"] = [{**asdict(row), "metrics": {}} for row in snapshot.rows[-12:]]
    data["participants"] = [{**asdict(who), "host": "here"} for who in snapshot.participants]
    return data


def snapshot_of(data: dict[str, object]) -> Snapshot:
    rows, participants = data["rows"], data["participants"]
    assert isinstance(rows, Sequence) and isinstance(participants, Sequence)
    figures, sides = [StepFigures(**row) for row in rows], [Participant(**who) for who in participants]
    return Snapshot(**{**data, "rows": figures, "participants": sides})  # type: ignore[arg-type]


def picture(name: str, content: RenderableType) -> str:
    width = NARROW.get(name, COLUMNS)
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(content)
    return console.export_svg(title="trinity-compat", theme=MONOKAI, code_format=_SVG, unique_id=name)


def text_of(svg: str) -> list[str]:
    """Return the words of a picture, place by place."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    return [html.unescape(text).replace("\xa0", " ").strip() for text in found]


if __name__ == "__main__":
    main()
