"""A process that has imported what tests import, and forks for each run of pytest that it is asked for.

    python scripts/judge/warm_pytest.py TREE [MODULE…]

Importing torch, verl and pytest takes longer than most tests do. This imports MODULE… once; each run is a
fork that imports trinity_compat and the tests from TREE for itself, so that it sees what stands there at
that moment. What verl has loaded of trinity_compat.plugins stays as it was imported.

Requests and answers are lines of JSON, on stdin and stdout: {"words", "limit_s", "times", "log"} →
{"code", "timed_out", "cpu_s"}. ``words`` are pytest's arguments, ``times`` a file for each test's seconds
("": none), ``log`` one for what the run prints. The run's process group is killed at its end, whatever it
left. Tests that start something heavy are left out.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

KEPT = "trinity_compat.plugins"
STARTS = ("runtime", "browser", "upstream", "postgres", "chaos", "nightly", "whole")


class Light:
    """Leaves out what starts something heavy; counts the seconds of each test with its fixtures."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(item.get_closest_marker(name) for name in STARTS)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


def test(words: list[str], times: str, log: str) -> int:
    """Run pytest in this process, which is a fork."""
    os.setsid()
    with open(os.devnull, "rb") as nothing, open(log, "wb") as said:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    for name in [name for name in sys.modules if _reads_tree(name)]:
        del sys.modules[name]
    recorded = Light()
    code = pytest.main(words, plugins=[recorded])
    if times:
        Path(times).write_text(json.dumps(recorded.seconds), encoding="utf-8")
    return int(code)


def _reads_tree(name: str) -> bool:
    if KEPT in sys.modules and (name in ("trinity_compat", KEPT) or name.startswith(f"{KEPT}.")):
        return False
    return name == "trinity_compat" or name.startswith("trinity_compat.")


def forked(words: list[str], limit_s: float | None, times: str, log: str) -> dict[str, object]:
    """The exit code of a run, whether it was stopped after ``limit_s``, and the CPU seconds that it took."""
    pid = os.fork()
    if not pid:
        code = 70  # what a failure outside pytest leaves
        try:
            code = test(words, times, log)
        finally:
            os._exit(code)
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended], [], [], limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.close(ended)
    _, status, used = os.wait4(pid, 0)
    cpu_s = used.ru_utime + used.ru_stime
    return {"code": os.waitstatus_to_exitcode(status), "timed_out": not ready, "cpu_s": cpu_s}


def main() -> None:
    tree, modules = sys.argv[1], sys.argv[2:]
    os.chdir(tree)
    sys.path[0] = tree
    # A file that is rewritten within a second with as many bytes would be taken for the one of its bytecode.
    sys.dont_write_bytecode = True
    # verl's imports and Ray's print: the answers alone belong on stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for module in modules:
        importlib.import_module(module)
    sys.argv[:] = ["pytest"]
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = forked(asked["words"], asked["limit_s"], asked["times"], asked["log"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
