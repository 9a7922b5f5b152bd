"""`trinity-compat profile`: shows what a profile sets, and why."""

from __future__ import annotations

import click

from trinity_compat.common.errors import UserError
from trinity_compat.common.resources import data_path
from trinity_compat.launch import read_script, refuse_broken_script
from trinity_compat.run.plan import profiles
from trinity_compat.translate.stock_verl import lost_keys
from trinity_compat.verl_config import effective_config


@click.command("profile")
@click.argument("name", required=False)
@click.option(
    "--as-overrides", is_flag=True, help="Print Hydra overrides, one a word, for stock veRL's command line."
)
@click.option(
    "--for",
    "script",
    metavar="SCRIPT",
    help="With --as-overrides: also print the reward keys of SCRIPT's first launch that stock veRL ignores,"
    " under the names that it reads.",
)
@click.option("--format", "form", type=click.Choice(["text", "yaml"]), default="text", show_default=True)
def command(name: str | None, as_overrides: bool, script: str | None, form: str) -> None:
    """Print a profile of overrides/, or list them.

    \b
    bash run.sh $(trinity-compat profile cpu --as-overrides --for run.sh)   # stock veRL on a CPU
    """
    if name is None:
        for known in profiles.names():
            click.echo(f"{known:12} {profiles.load(known).about}")
        return
    profile = profiles.load(name)
    if as_overrides:
        words = [*profiles.as_overrides(profile)]
        if script:
            reading = read_script(script)
            if not reading.launches:
                refuse_broken_script(reading)
                raise UserError(f"{script}: no veRL training is started")
            lost = lost_keys(effective_config(reading.launches[0]))  # what stock veRL does not read of it
            words += [f"++{key}={profiles.hydra_value(value)}" for key, value in lost.items()]
        click.echo("\n".join(words))
    elif form == "yaml":
        click.echo((data_path("overrides") / f"{name}.yaml").read_text(), nl=False)
    else:
        click.echo("\n".join(profiles.announce(profile)))
