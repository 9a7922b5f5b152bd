"""Fuzz the reading and the translation of launches for a long time.

    .venv/bin/python scripts/judge/fuzz.py --kind tree --count 500000 [--seed 7] [--scripts DIR] [--seconds N]

Kinds: tree (mutated syntax trees, evaluated), parse (mutated argument vectors, read), argv (the same,
translated and audited too), text (mutated scripts, through shfmt, translated and audited), yaml (mutated
veRL configs, translated and audited); by grammar hydra (folders of config files), verl and trinity (YAML),
notebook, python (launchers) and job (manifests). Prints the number of inputs and each kind of failure once,
with its input; exit code 1 when there was one. Data is limited to 1 GiB: more is a failure.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from fuzz import harness


def main() -> int:
    cli = argparse.ArgumentParser()
    cli.add_argument(
        "--kind", choices=("tree", "parse", "argv", "text", "yaml", *harness.GRAMMARS), required=True
    )
    cli.add_argument("--count", type=int, default=1000)
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--seconds", type=float, default=float("inf"))
    cli.add_argument("--scripts", type=Path, default=harness.SEEDS, help="A folder of scripts to mutate.")
    options = cli.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.RLIM_INFINITY))
    texts = harness.seed_texts(options.scripts)
    failures: dict[str, tuple[object, str]] = {}
    done, start = 0, time.monotonic()
    for batch in itertools.count():
        if done >= options.count or time.monotonic() - start > options.seconds:
            break
        size = min(200, options.count - done)
        harness.run(
            options.kind, size, options.seed * 1_000_003 + batch, texts, lambda m, e: note(failures, m, e)
        )
        done += size
    print(
        f"{options.kind}: {done} inputs, {time.monotonic() - start:.0f} s, {len(failures)} kinds of failure"
    )
    for what, (made, trace) in failures.items():
        print(f"== {what}\n{made!r}\n{trace}")
    return int(bool(failures))


def note(failures: dict[str, tuple[object, str]], made: object, error: Exception) -> None:
    """Keep the first input of each kind of failure: the exception and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
    failures.setdefault(what, (made, "".join(traceback.format_exception(error))[-2500:]))


if __name__ == "__main__":
    sys.exit(main())
