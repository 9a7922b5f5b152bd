"""``trinity-compat schema``: JSON Schemas of what commands print, and of the YAML that they read."""

from __future__ import annotations

import json

import click

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TRINITY
from trinity_compat.common.resources import data_path
from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.translate.editor_schema import editor_schema


@click.command("schema")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Print the JSON Schema NAME, or all names with their titles.

    Schemas of reports hold every key that a command's JSON may have; those of YAML are for editors
    (`# yaml-language-server: $schema=FILE`).

    Exit code: 0; 2 for a name that is not listed.
    """
    if name is None:
        for each in names():
            click.echo(f"{each:16} {load(each)['title']}")
        return
    click.echo(json.dumps(load(name), indent=1, ensure_ascii=False))


def names() -> list[str]:
    """Return the names of all schemas: files under ``translators/by_hand/schemas``, and that of the YAML."""
    files = sorted(path.stem for path in data_path("translators/by_hand/schemas").glob("*.json"))
    return [*files, f"trinity-{TRINITY}"]


def load(name: str) -> dict[str, object]:
    """Return a schema. Raises UserError with the nearest name for one that does not exist."""
    if name not in names():
        near = did_you_mean(name, names())
        hint = f"did you mean {near}?" if near else "`trinity-compat schema` lists them"
        raise UserError(f"no schema is named {name!r}", hint=hint)
    if name.startswith("trinity-"):
        return editor_schema(name.removeprefix("trinity-"))
    text = (data_path("translators/by_hand/schemas") / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text)
    return found
