"""Run one part of the tests: ``run_tests.py PART PYTEST_ARGUMENTS…``; what fails runs once more, alone.

A test that fails and then passes without another beside it does not fail the part; it is named on a line
``FLAKY:`` and in ``flaky.txt``. Heavy tests that had not begun by ``$TESTS_LAST_START`` (tests/conftest.py)
are counted by file in ``left_out.txt``. Times go to ``PART.xml`` and ``PART-again.xml``
(``scripts/ci/test_times.py``). These files are in ``$CI_OUT``, ``.scratch/tests`` where it is not set. The
exit code is pytest's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAILED, NOTHING_COLLECTED = 1, 5
MOST_FAILURES = 20  # so many are a defect, which a second look would only take time to confirm


def out_folder() -> Path:
    return Path(os.environ.get("CI_OUT") or ROOT / ".scratch" / "tests")


def run_part(part: str, arguments: list[str], *, may_be_empty: bool = False) -> int:
    """Run pytest, and once more what failed; returns pytest's exit code, 0 where all passed at last."""
    out = out_folder()
    out.mkdir(parents=True, exist_ok=True)
    cache = out / "cache" / part
    failed = cache / "v" / "cache" / "lastfailed"
    failed.unlink(missing_ok=True)
    again = out / f"{part}-again.xml"
    again.unlink(missing_ok=True)
    report = out / f"{part}.xml"
    report.unlink(missing_ok=True)
    code = _pytest(cache, report, arguments, os.environ)
    with (out / "left_out.txt").open("a") as left_out_file:
        for module, number in left_out(report).items():
            left_out_file.write(f"{module.replace('.', '/')}.py: {number}\n")
    if code == NOTHING_COLLECTED and may_be_empty:
        return 0
    if (
        code != FAILED
    ):  # passed, or interrupted: nothing collected, a usage error, a worker that keeps crashing
        return code
    names = sorted(json.loads(failed.read_text())) if failed.exists() else []
    if not names or len(names) > MOST_FAILURES:
        return code
    print(f"\n{part}: {len(names)} failed; each runs once more, alone", flush=True)
    alone = ["--last-failed", "--last-failed-no-failures", "none", "-n", "0"]
    without_limit = {name: value for name, value in os.environ.items() if name != "TESTS_LAST_START"}
    code = _pytest(cache, again, [*arguments, *alone], without_limit)
    if code or passed(again) < len(names):  # one that is skipped now has not passed
        return code or FAILED
    with (out / "flaky.txt").open("a") as flaky:
        for name in names:
            print(f"FLAKY: {name} (failed beside others, passed alone)", flush=True)
            flaky.write(f"{name}\n")
    return 0


def passed(report: Path) -> int:
    """Number of tests of a JUnit file that passed."""
    cases = ET.parse(report).getroot().iter("testcase")
    return sum(not {"failure", "error", "skipped"} & {child.tag for child in case} for case in cases)


def left_out(report: Path) -> Counter[str]:
    """Module → number of its tests that a JUnit file names as left out for want of time."""
    found: Counter[str] = Counter()
    if report.exists():  # not after a usage error
        for case in ET.parse(report).getroot().iter("testcase"):
            skipped = case.find("skipped")
            if skipped is not None and (skipped.get("message") or "").startswith("left out:"):
                found[case.get("classname", "")] += 1
    return found


def _pytest(cache: Path, report: Path, arguments: list[str], env: Mapping[str, str]) -> int:
    files = ["-o", f"cache_dir={cache}", "--junitxml", str(report)]
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *files], cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    # With words of the user's own a part may have no test: `make test PYTEST_ARGS=tests/launch`.
    sys.exit(run_part(sys.argv[1], sys.argv[2:], may_be_empty=bool(os.environ.get("PYTEST_ARGS"))))
