"""`trinity-compat profile`: shows what a profile sets, and why."""

from __future__ import annotations

import click

from trinity_compat.data import data_path
from trinity_compat.runtime.plan import profiles


@click.command("profile")
@click.argument("name", required=False)
@click.option(
    "--as-overrides", is_flag=True, help="One Hydra override per word, for stock veRL's command line."
)
@click.option("--format", "form", type=click.Choice(["text", "yaml"]), default="text", show_default=True)
def command(name: str | None, as_overrides: bool, form: str) -> None:
    """Show a profile from overrides/, or the list of them.

    \b
    bash run.sh $(trinity-compat profile cpu --as-overrides)   # stock veRL on a CPU
    """
    if name is None:
        for known in profiles.names():
            click.echo(f"{known:12} {profiles.load(known).about}")
        return
    profile = profiles.load(name)
    if as_overrides:
        click.echo("\n".join(profiles.as_overrides(profile)))
    elif form == "yaml":
        click.echo((data_path("overrides") / f"{name}.yaml").read_text(), nl=False)
    else:
        click.echo("\n".join(profiles.announce(profile, profile.entries)))
