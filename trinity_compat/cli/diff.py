"""``trinity-compat diff``: the settings of two launches that differ in effect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from trinity_compat.cli._shared import NAMED_FILE, name_and_value, script_options, write
from trinity_compat.common.output_text import styled
from trinity_compat.compare.configs import SettingsDifference, compared
from trinity_compat.compare.effective_settings import read_sides

FORMATS = ("text", "json", "md")


@click.command(name="diff")
@click.argument("a", type=NAMED_FILE, metavar="A")
@click.argument("b", type=NAMED_FILE, metavar="B")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
@script_options
def command(a: str, b: str, form: str, output: Path | None, cwd: Path | None, env: tuple[str, ...]) -> int:
    """Show the settings of A and B that differ in effect.

    A and B are each a script, a YAML of veRL or of Trinity, a job directory, or a release of veRL
    (verl==0.8.0: its defaults). Both are read as the pinned veRL understands them; spelling does not
    count: renamed keys, defaults written out, quotes. Nothing of a script is run.

    Exit code: 0 when nothing differs in effect, 1 when something does, 2 when A or B cannot be read.
    """
    known = dict(name_and_value("--env", text) for text in env)
    found = differences((a, b), cwd=cwd, env=known)
    for diagnostic in (*found[0].a.unused, *found[0].b.unused):
        click.echo(diagnostic, err=True)
    write(rendered(found, form), output, sources=(a, b))
    return int(found[0].differs)


def differences(
    sources: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> list[SettingsDifference]:
    """Return the differences of each source from the first. Raises UserError."""
    first, *others = read_sides(sources, cwd=cwd, env=env)
    return [compared(first, other) for other in others]


def rendered(found: Sequence[SettingsDifference], form: str) -> str:
    """Return the differences in a format of the command."""
    from rich.console import Console

    from trinity_compat.compare.configs_report import as_json, as_markdown, print_text

    if form == "json":
        return as_json(found)
    if form == "md":
        return "\n".join(map(as_markdown, found))

    def show(console: Console) -> None:
        for one in found:
            print_text(one, console)

    return styled(show, width=200)
