"""``trinity-compat to-verl``: a Trinity YAML as a launch script of veRL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from trinity_compat.cli._shared import NAMED_FILE, check_planned_source, write
from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import referred
from trinity_compat.compare.configs import compared
from trinity_compat.compare.effective_settings import of_trinity
from trinity_compat.launch import read_text
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.pipeline import refuse_unstartable
from trinity_compat.translate.verl_script import verl_script, with_sizes_of_one_gpu
from trinity_compat.trinity.config.read import load, parse

# Fields that a launch cannot hold and that an option of translate sets.
_OPTIONS = {
    "synchronizer.sync_offset": "--sync-offset",
    "explorer.rollout_model.engine_num": "--rollout-gpus",
    "trainer.trainer_config.trinity_compat.steps": "--as-published",
}


@click.command(name="to-verl")
@click.argument("source", type=NAMED_FILE, metavar="YAML")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
def command(source: str, output: Path | None) -> int:
    """Write a Trinity YAML as a script that starts veRL's main_ppo.

    translate makes the same YAML of the script again. What a launch of main_ppo cannot say is named on
    stderr.

    Exit code: 0; 1 when the YAML says more than the script can; 2 when the YAML cannot be read or run.
    """
    check_planned_source(source, None)
    config = with_sizes_of_one_gpu(referred(load(source))[0])
    script = verl_script(config, source)
    write(script.text, output, sources=[source])
    unsaid = script.unsaid or tuple(_lost(config, script.text))
    for line in unsaid:
        click.echo(f"{source}: not in the script: {line}", err=True)
    return int(bool(unsaid))


def _lost(config: Mapping[str, object], script: str) -> Iterator[str]:
    """Yield the settings that differ once the script is translated again."""
    try:
        (launch,) = read_text(script, name="script").launches
        translation, text = translate_launch(launch, TranslateOptions())
        refuse_unstartable(translation)
    except UserError as error:
        yield f"what it takes to translate it again: {error}"
        return
    found = compared(of_trinity("YAML", config), of_trinity("script", parse(text, "script")))
    for row in found.effective:
        option = f" (translate has {_OPTIONS[row.key]})" if row.key in _OPTIONS else ""
        yield f"{row.key}={row.a}; as a launch it is {row.b}{option}"
