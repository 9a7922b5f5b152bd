"""Predict the step of each recorded launch as `run` plans it by default, as a share of stock veRL's.

    .venv/bin/python benchmarks/default_modes.py [tests/facts/public.json.xz] [--every N] [--json FILE]

Every recorded launch, or each Nth, that `run` plans on more than one GPU with an explorer. Lengths and speeds
are assumed, as `advise` assumes them. A version every few steps, as under fully_async, is predicted as one a
step, which costs at most as much. Prints the launches with a share above 1.10 with the line that their start
has (none is printed for what `run` does not predict itself), and counts the rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "judge"))

import record_facts  # noqa: E402

from trinity_compat.common.errors import UserError  # noqa: E402
from trinity_compat.launch import read_argv  # noqa: E402
from trinity_compat.run.advice.against_stock import StockComparison, compare_with_stock  # noqa: E402
from trinity_compat.run.advice.facts import Question, gpus_of  # noqa: E402
from trinity_compat.run.plan.plan_run import make_plan  # noqa: E402
from trinity_compat.run.plan.source import RunOptions, Source  # noqa: E402
from trinity_compat.translate import TranslateOptions, translate_launch  # noqa: E402
from trinity_compat.trinity.config.read import parse  # noqa: E402

BOUND = 1.10


def planned(argv: list[str]) -> StockComparison | str:
    """Return the plan of a launch held against stock's step, or the reason why it is left out."""
    options = RunOptions()
    try:
        _, text = translate_launch(read_argv(argv).launches[0], TranslateOptions())
        source = Source(parse(text, "launch"), text, {"yaml": "launch"})
        spec = make_plan(source.config, options, cwd=Path.cwd(), device="cuda").spec
        if gpus_of(spec) < 2:
            return "one GPU"
        every_step = replace(spec.sync, interval=1, trainer_interval=None, explorer_interval=None)
        found = compare_with_stock(spec, source, options, Question()) or compare_with_stock(
            replace(spec, sync=every_step), source, options, Question()
        )
    except UserError as error:
        return error.message
    return found or f"mode {spec.mode}, style {spec.sync.style}"


def main() -> None:
    """Read the corpus, and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("corpus", nargs="?", type=Path, default=ROOT / "tests" / "facts" / "public.json.xz")
    options.add_argument("--every", type=int, default=1, help="take each Nth launch")
    options.add_argument("--module", default="", help="those whose module has this in its name")
    options.add_argument("--json", type=Path, help="launch → share, as a file")
    given = options.parse_args()
    launches = {
        ("python3", "-m", launch["module"], *launch["args"]): f"{script['tag']}:{script['path']}"
        for script in record_facts.read(given.corpus)["scripts"]
        for launch in script.get("launches", [])
        if given.module in launch["module"]
    }
    taken = list(launches.items())[:: given.every]
    found = {name: planned(list(argv)) for argv, name in taken}
    able = {name: each for name, each in found.items() if not isinstance(each, str)}
    for mode in ("colocate", "both"):
        shares = [each.share for each in able.values() if each.modes.base.mode == mode]
        if shares:
            high, middle = max(shares), statistics.median(shares)
            print(f"mode {mode}: {len(shares)} launches, {middle:.2f} of stock's step, {high:.2f} at most")
            print(f"  {sum(share > BOUND for share in shares)} above {BOUND:.2f}")
    reasons = Counter(each for each in found.values() if isinstance(each, str))
    print(f"left out: {len(found) - len(able)}")
    for reason, count in reasons.most_common():
        print(f"  {count:4}  {reason}")
    for name, each in sorted(able.items(), key=lambda pair: -pair[1].share):
        if each.share > BOUND:
            print(f"{each.share:5.2f}  {name}: {each.slower_note() or 'NO LINE SAYS SO'}")
    if given.json:
        table = {name: round(each.share, 3) for name, each in able.items()}
        given.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
