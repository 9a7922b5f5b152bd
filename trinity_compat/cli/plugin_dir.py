"""``trinity-compat plugin-dir``."""

from __future__ import annotations

from importlib.util import find_spec

import click


@click.command(help="Print the folder for Trinity-RFT's `trinity run --plugin-dir`.")
def command() -> None:
    """Print the folder of the plugin for the real Trinity-RFT."""
    found = find_spec("trinity_compat.plugins.upstream")
    assert found is not None and found.submodule_search_locations is not None
    click.echo(found.submodule_search_locations[0])
