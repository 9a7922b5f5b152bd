"""Rank the tests by time: ``test_times.py [FOLDER] [--top N]``, from the JUnit files of ``run_tests.py``.

Prints a table of the parts, of the files and of the tests, slowest first: seconds by the clock, CPU seconds
of the test's process and of the processes that ended in it (tests/conftest.py). With two workers a part
lasts at least half the sum of its tests.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from run_tests import out_folder


@dataclass(frozen=True, slots=True)
class Test:
    """One test of a part: ``wall_s`` with its fixtures, ``cpu_s`` where known, else 0."""

    part: str
    file: str
    name: str
    wall_s: float
    cpu_s: float


def tests(report: Path) -> Iterator[Test]:
    """The tests of a JUnit file, whose stem is the part."""
    for case in ET.parse(report).getroot().iter("testcase"):
        found = {each.get("name"): each.get("value") for each in case.iter("property")}
        module = case.get("classname", "").replace(".", "/")
        yield Test(
            report.stem,
            f"{module}.py",
            case.get("name", ""),
            float(case.get("time", 0)),
            float(found.get("cpu_s") or 0),
        )


def table(title: str, every: Iterable[Test], key: Callable[[Test], str], top: int | None = None) -> list[str]:
    """Sums by ``key``, largest first, as lines of Markdown."""
    sums: dict[str, tuple[int, float, float]] = {}
    for each in every:
        count, wall, cpu = sums.get(key(each), (0, 0.0, 0.0))
        sums[key(each)] = count + 1, wall + each.wall_s, cpu + each.cpu_s
    rows = sorted(sums.items(), key=lambda row: -row[1][1])[:top]
    lines = [f"| {title} | tests | s | CPU s |", "|---|---:|---:|---:|"]
    return lines + [f"| {name} | {n:,} | {wall:,.0f} | {cpu:,.0f} |" for name, (n, wall, cpu) in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=out_folder())
    parser.add_argument("--top", type=int, default=20)
    args = parser.parse_args()
    every = [test for report in sorted(args.folder.glob("*.xml")) for test in tests(report)]
    if not every:
        parser.error(f"{args.folder} has no times: run `make test`")
    print("\n".join(table("part", every, lambda test: test.part)), end="\n\n")
    print("\n".join(table("file", every, lambda test: f"{test.part} {test.file}", args.top)), end="\n\n")
    print("\n".join(table("test", every, lambda test: f"{test.file}::{test.name}", args.top)))


if __name__ == "__main__":
    main()
