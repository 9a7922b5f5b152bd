"""Predict the step of each recorded launch as `run` plans it by default, as a share of stock veRL's.

    .venv/bin/python benchmarks/default_modes.py [tests/facts/public.json.xz] [--every N] [--json FILE]

Every recorded launch, or each Nth, that `run` plans on more than one GPU with an explorer. Lengths and speeds
are assumed, as `advise` assumes them. Prints the launches with a share above 1.10 with what asks for their
split or needs it, and counts the rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import record_facts  # noqa: E402

from trinity_compat.common.errors import UserError  # noqa: E402
from trinity_compat.common.nested import value_at  # noqa: E402
from trinity_compat.job.distillation import is_distilled  # noqa: E402
from trinity_compat.job.run_spec import RunSpec  # noqa: E402
from trinity_compat.launch import read_argv  # noqa: E402
from trinity_compat.run.advice import gpus_of, of_stock  # noqa: E402
from trinity_compat.run.plan.build_plan import make_plan  # noqa: E402
from trinity_compat.run.plan.reward_model import ENABLE  # noqa: E402
from trinity_compat.run.plan.source import RunOptions, Source  # noqa: E402
from trinity_compat.translate import TranslateOptions, translate_launch  # noqa: E402
from trinity_compat.trinity.config.read import parse  # noqa: E402

BOUND = 1.10


def why_split(spec: RunSpec) -> str:
    """Return what asks for a plan's split, or needs it."""
    if value_at(spec.verl, ENABLE):
        return "a reward model, awake for the whole run"
    if is_distilled(spec.verl):
        return "teachers"
    if (spec.sync.style, spec.sync.offset) != ("fixed", 0):
        return f"the launch's own main: {spec.sync.style}, {spec.sync.offset} steps ahead"
    return "stock's ranks do not divide the mini-batch"


def planned(argv: list[str]) -> tuple[RunSpec, float] | str:
    """Return the plan of a launch and its share of stock's step, or the reason why it is left out."""
    options = RunOptions()
    try:
        _, text = translate_launch(read_argv(argv).launches[0], TranslateOptions())
        source = Source(parse(text, "launch"), text, {"yaml": "launch"})
        spec = make_plan(source.config, options, cwd=Path.cwd(), device="cuda").spec
        if gpus_of(spec) < 2:
            return "one GPU"
        share = of_stock(spec, source, options)
    except UserError as error:
        return error.message
    return (spec, share) if share is not None else f"mode {spec.mode}, style {spec.sync.style}"


def main() -> None:
    """Read the corpus, and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("corpus", nargs="?", type=Path, default=ROOT / "tests" / "facts" / "public.json.xz")
    options.add_argument("--every", type=int, default=1, help="take each Nth launch")
    options.add_argument("--json", type=Path, help="launch → share, as a file")
    given = options.parse_args()
    launches = {
        ("python3", "-m", launch["module"], *launch["args"]): f"{script['tag']}:{script['path']}"
        for script in record_facts.read(given.corpus)["scripts"]
        for launch in script.get("launches", [])
    }
    taken = list(launches.items())[:: given.every]
    found = {name: planned(list(argv)) for argv, name in taken}
    able = {name: each for name, each in found.items() if not isinstance(each, str)}
    for mode in ("colocate", "both"):
        shares = [share for spec, share in able.values() if spec.mode == mode]
        if shares:
            high, middle = max(shares), statistics.median(shares)
            print(f"mode {mode}: {len(shares)} launches, {middle:.2f} of stock's step, {high:.2f} at most")
    print(
        f"left out: {len(found) - len(able)} (one GPU, no explorer, a style that is not simulated, refused)"
    )
    for name, (spec, share) in sorted(able.items(), key=lambda each: -each[1][1]):
        if share > BOUND:
            why = why_split(spec) if spec.mode == "both" else "offload between turns"
            print(f"{share:5.2f}  {name}: {why}")
    if given.json:
        table = {name: round(share, 3) for name, (_, share) in able.items()}
        given.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
