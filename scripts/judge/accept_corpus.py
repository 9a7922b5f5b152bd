"""Translate every public main_ppo launch and let the real trinity-rft judge the result.

    .venv/bin/python scripts/judge/accept_corpus.py tests/facts/public.json.xz [--target 0.6.0] [--only TEXT]

Prints how many are accepted, refused by us (with the reason) and rejected by upstream (with its stage),
those apart that our translation announces (TW004: the GPUs of the launch hold no such split).
Exit code 1 when upstream rejects one that we don't announce or we refuse more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record_facts

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_argv
from trinity_compat.translate import TranslateOptions, is_translated, translate_launch

ROOT = Path(__file__).parents[2]


def launches(corpus: Path, only: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, argv) of every launch of main_ppo (or main_dapo with --all-mains)."""
    for script in record_facts.read(corpus)["scripts"]:
        for number, launch in enumerate(script.get("launches", [])):
            name = f"{script['tag']}:{script['path']}#{number}"
            translated = is_translated(launch["module"]) if only == "all" else launch["module"] == only
            if translated:
                yield name, ["python3", "-m", launch["module"], *launch["args"]]


def translated(argv: list[str], target: str) -> tuple[str, bool]:
    """The YAML of one launch, and whether it says that upstream cannot run it. Raises UserError."""
    (launch,) = read_argv(argv).launches
    translation, text = translate_launch(launch, TranslateOptions(target=target), root=ROOT / "translators")
    return text, any(w.code == "TW004" and "cannot run" in w.message for w in translation.warnings)


def judged(texts: dict[str, str], target: str) -> dict[str, dict[str, Any]]:
    """Upstream's verdict per launch, from tests/upstream/accept.py in that release's venv."""
    made = subprocess.run(
        [ROOT / "scripts" / "ci" / "make_upstream_venv.sh", target],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = "".join(json.dumps({"name": name, "yaml": text}) + "\n" for name, text in texts.items())
    done = subprocess.run(
        [ROOT / made.stdout.strip(), ROOT / "tests" / "upstream" / "accept.py"],
        input=rows,
        capture_output=True,
        text=True,
        check=True,
    )
    return {verdict["name"]: verdict for verdict in map(json.loads, done.stdout.splitlines())}


def main() -> int:
    cli = argparse.ArgumentParser()
    cli.add_argument("corpus", type=Path)
    cli.add_argument("--target", default="0.6.0")
    cli.add_argument("--main", default="verl.trainer.main_ppo", help='a module, or "all"')
    cli.add_argument("--only", default="", metavar="TEXT", help="launches whose name holds it")
    cli.add_argument("-v", "--verbose", action="store_true")
    options = cli.parse_args()
    texts: dict[str, str] = {}
    announced: dict[str, bool] = {}
    refused: dict[str, str] = {}
    for name, argv in launches(options.corpus, options.main):
        if options.only not in name:
            continue
        try:
            texts[name], announced[name] = translated(argv, options.target)
        except UserError as error:
            refused[name] = error.message
    rejected = {name: v for name, v in judged(texts, options.target).items() if v["stage"] is not None}
    report(texts, refused, rejected, options.verbose)
    surprises = [name for name in rejected if not announced[name]]
    told = len(rejected) - len(surprises)
    print(f"{told} of the rejected are announced; not announced: {surprises or 'none'}")
    return int(bool(surprises) or len(refused) > 0.1 * (len(texts) + len(refused)))


def report(
    texts: dict[str, str], refused: dict[str, str], rejected: dict[str, dict[str, Any]], verbose: bool
) -> None:
    print(f"{len(texts) + len(refused)} launches: {len(texts) - len(rejected)} accepted, ", end="")
    print(f"{len(refused)} refused by us, {len(rejected)} rejected by upstream")
    for reason, number in Counter(refused.values()).most_common():
        print(f"  refused {number}: {reason}")
    stages = Counter((v["stage"], " ".join(v["error"].split())[:300]) for v in rejected.values())
    for (stage, error), number in stages.most_common():
        print(f"  rejected {number} at {stage}: {error}")
    if verbose:
        for name, why in [
            *refused.items(),
            *((name, v["error"].split("\n")[0]) for name, v in rejected.items()),
        ]:
            print(f"    {name}: {why}")


if __name__ == "__main__":
    sys.exit(main())
