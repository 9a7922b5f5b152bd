"""The proof on one GPU: rows in the order of their value, a table written after each.

    python scripts/gpu/proof.py --out DIR [--device cuda|cpu] [--quick] [--rows NAME …] [--within SECONDS]

Each row is a run, or a few, with a limit of its own; what fails is a line of the table, and the next row
begins. DIR/proof.md is the table, DIR/proof.json the same for programs, DIR/ROW the logs and job folders.
Further commands with the same DIR go on with the same table; a row that runs again begins anew.
--quick leaves out what takes more than a minute. On a CPU the rows that need a GPU are not there. Exit code 1
when a row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import rows
from contracts import Bench
from rows import Row, Setting

WITHIN_S = 590.0  # what one command may take on a lent machine


@dataclass(frozen=True, slots=True)
class Done:
    """Result of one row. ``state``: ok, failed, or left out."""

    name: str
    about: str
    state: str
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    out: Path = args.out.absolute()
    setting = Setting(out, args.device, Bench(args.device, out))
    setting.out.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + args.within, False
    every = _earlier(setting.out)
    for row in _chosen(args):
        if not row.bench:
            setting.bench.close()
        done = _done(row, setting, left_s=end - time.monotonic())
        if done.state != "left out" or row.name not in every:
            every[row.name] = done
        _write(setting.out, args.device, [every[row.name] for row in rows.ROWS if row.name in every])
        print(_line(done), flush=True)
        failed |= done.state == "failed"
    setting.bench.close()
    return int(failed)


def _earlier(out: Path) -> dict[str, Done]:
    """Results of earlier commands."""
    found = out / "proof.json"
    return {each["name"]: Done(**each) for each in json.loads(found.read_text())} if found.exists() else {}


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", nargs="*", choices=[row.name for row in rows.ROWS])
    parser.add_argument("--within", type=float, default=WITHIN_S, metavar="SECONDS")
    return parser.parse_args(argv)


def _chosen(args: argparse.Namespace) -> Iterator[Row]:
    for row in rows.ROWS:
        wanted = row.name in args.rows if args.rows else row.quick or not args.quick
        if wanted and args.device in row.devices:
            yield row


def _done(row: Row, setting: Setting, *, left_s: float) -> Done:
    if left_s < row.limit_s / 4:
        return Done(row.name, row.about, "left out", 0.0, {"why": f"{left_s:.0f} s were left"})
    shutil.rmtree(setting.out / row.name, ignore_errors=True)
    began, state = time.monotonic(), "ok"
    try:
        figures = dict(row.run(setting.of(row.name, min(row.limit_s, left_s))))
    except Exception as error:
        (setting.out / row.name).mkdir(exist_ok=True)
        (setting.out / row.name / "traceback.txt").write_text(traceback.format_exc())
        state, figures = "failed", {"why": f"{type(error).__name__}: {error}"}
    return Done(row.name, row.about, state, time.monotonic() - began, figures)


def _write(out: Path, device: str, done: Sequence[Done]) -> None:
    """Both files whole at any moment: the machine may be taken away."""
    told = [
        f"{date.today()}, {_machine(device)}",
        "",
        "| row | what | state | s | figures |",
        "|---|---|---|---:|---|",
    ]
    for name, text in (
        ("proof.md", "\n".join([*told, *map(_line, done)]) + "\n"),
        ("proof.json", json.dumps([asdict(each) for each in done], indent=1, default=str) + "\n"),
    ):
        part = out / f"{name}.part"
        part.write_text(text)
        part.replace(out / name)


def _line(done: Done) -> str:
    figures = ", ".join(f"{name} {_short(value)}" for name, value in done.figures.items())
    cells = (done.name, done.about, done.state, f"{done.seconds:.0f}", figures.replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")[:300]


def _machine(device: str) -> str:
    if device == "cpu":
        return f"{platform.machine()}, {os.cpu_count()} cores, no GPU"
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip().replace("\n", "; ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
