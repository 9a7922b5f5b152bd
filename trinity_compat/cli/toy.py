"""``trinity-compat toy``: a tiny model and a small dataset to try things with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from trinity_compat.common import optional_packages, python_command
from trinity_compat.common.output_text import console


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default="toy")
@click.option("--seed", default=0, show_default=True, help="Seed of the model and the dataset.")
def command(directory: Path, seed: int) -> None:
    """Make a tiny model and its dataset, to try a run on a CPU.

    DIRECTORY gets a model and a dataset with a verifiable reward (sort four digits).

    The model gets a short supervised warm start: it knows the form of an answer, not which one is
    wanted. A second call with the same seed does nothing.
    """
    optional_packages.need("torch", "transformers", "pyarrow")
    python_command.share_cores(os.environ)
    from trinity_compat.run.toy import ToySpec, make_toy

    make_toy(directory, ToySpec(seed=seed), progress=_shown)
    click.echo(f"{directory}/model, {directory}/data/train.parquet, {directory}/data/val.parquet")


def _shown(steps: Sequence[int]) -> Iterable[int]:
    """A bar on a terminal; elsewhere one line, so that silence is not taken for a hang."""
    from rich.progress import track

    shown_on = console(stderr=True)
    if not shown_on.is_terminal:
        click.echo(f"warm start of the toy's model: {len(steps)} steps, up to a minute", err=True)
        return steps
    return track(steps, "warm start of the toy's model", console=shown_on)
