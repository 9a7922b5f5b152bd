"""``trinity-compat advise``: the modes of a launch side by side, predicted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trinity_compat.cli._shared import (
    NAMED_FILE,
    also_read_option,
    check_planned_source,
    main_option,
    rules_option,
    user_entrypoints,
    verl_version_option,
    write,
)
from trinity_compat.common.errors import UserError

_SIZES = {"B": 1e9, "M": 1e6}


class _FiniteRange(click.FloatRange):
    """A range that refuses ``nan`` and ``inf``, which float() reads."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


_POSITIVE = _FiniteRange(0, min_open=True)


@click.command("advise")
@click.argument("source", type=NAMED_FILE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="Number of GPUs.  [default: the launch's]")
@click.option(
    "--answer-length",
    metavar="MEAN,P99",
    help="Tokens of an answer: mean and 99th percentile.  [default: assumed from data.max_response_length]",
)
@click.option("--prompt-length", type=_FiniteRange(0), metavar="MEAN", help="Tokens of a prompt.")
@click.option(
    "--tokens-per-s",
    type=_POSITIVE,
    metavar="X",
    help="Tokens a second that one GPU generates with all slots of its engine in use.",
)
@click.option(
    "--train-tokens-per-s",
    type=_POSITIVE,
    metavar="X",
    help="Tokens a second that one GPU trains, log-probabilities included.",
)
@click.option("--model-size", metavar="N", help="Parameters of the model: 7B, 0.5B, 500M.")
@click.option("--card", metavar="NAME", help="Card of each GPU.  [default: H100]")
@click.option(
    "--card-gb",
    type=_POSITIVE,
    metavar="N",
    help="Memory of each GPU in GiB.  [default: the card's]",
)
@click.option(
    "--job",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Job, running or finished, to take lengths and speeds from; it is only read.",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Setting, as of `run`.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the simulation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
@verl_version_option
@also_read_option
@rules_option
@main_option
def command(
    source: str,
    arguments: tuple[str, ...],
    answer_length: str | None,
    model_size: str | None,
    sets: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    rules: str | None,
    mains: tuple[str, ...],
    verl_version: str | None,
    **given: object,
) -> int:
    """Predict the modes of a launch: GPU time used, step time, staleness, memory.

    SOURCE is a veRL script or a Trinity YAML; words after -- go to the script. Nothing of it is run. Stock
    veRL, turns on all GPUs, split GPUs at offset 0 and 1, veRL's one_step_off_policy, and fully_async are
    simulated, each at its fastest split.

    Exit code: 0, 2 when the launch cannot run or the input is wrong.
    """
    from trinity_compat.advise import report
    from trinity_compat.run import dry_run
    from trinity_compat.run.advice.advise import advise, gpu_sets
    from trinity_compat.run.advice.facts import Question
    from trinity_compat.run.plan.source import RunOptions

    check_planned_source(source, verl_version)
    question = Question(
        answer_length=_answer_length(answer_length),
        model_size=_model_size(model_size),
        **given,  # type: ignore[arg-type]
    )
    options = RunOptions(
        sets=(*gpu_sets(question), *sets),
        mains=user_entrypoints(mains, rules),
        rules=rules,
        verl_version=verl_version,
        dry_run=True,
        device="cuda",
    )
    found = list(dry_run.sources(source, arguments, options))
    if len(found) != 1:
        raise UserError(
            f"{source} makes {len(found)} launches; advise is for one",
            hint=f"write one to a YAML first: trinity-compat translate {source} --launch 1 -o one.yaml",
        )
    launch, rest = found[0]
    repeated = [
        *(("--set", item) for item in options.sets),
        *((("--rules", rules),) if rules else ()),
        *((("--verl-version", verl_version),) if verl_version else ()),
        *(("--main", item) for item in mains),
    ]
    advised = advise(launch, rest, question, name=source)
    advised = replace(
        advised,
        assumptions=(*advised.assumptions, *([launch.release] if launch.release else [])),
        options=tuple(word for pair in repeated for word in pair),
        arguments=arguments,
    )
    text = report.as_json(advised) + "\n" if as_json else report.as_text(advised)
    write(text, output, sources=(source,))
    return 0


def _answer_length(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        mean, p99 = map(float, text.split(","))
    except ValueError:
        raise UserError(
            f"--answer-length {text}: not two numbers", hint="write MEAN,P99 in tokens, as 900,6000"
        ) from None
    return mean, p99


def _model_size(text: str | None) -> float | None:
    if text is None:
        return None
    number, unit = text[:-1], text[-1:].upper()
    try:
        size = float(number) * _SIZES[unit]
        if not 0 < size < 1e14:
            raise ValueError
    except (KeyError, ValueError):
        raise UserError(
            f"--model-size {text}: not a number of parameters", hint="write it as 7B, 0.5B or 500M"
        ) from None
    return size
