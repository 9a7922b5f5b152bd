"""``trinity-compat explain``: what becomes of a veRL key, or what fills a Trinity path."""

from __future__ import annotations

import json

import click

from trinity_compat.cli._shared import format_option, rules_option
from trinity_compat.common.errors import UserError
from trinity_compat.translate.explain import explain
from trinity_compat.translate.rows import load_rows


@click.command(name="explain")
@click.argument("names", nargs=-1, required=True, metavar="KEY…")
@rules_option
@format_option
def command(names: tuple[str, ...], rules: str | None, form: str) -> None:
    """Explain a key, a path of the YAML or a code of a message.

    KEY is a veRL key, a path of the Trinity YAML, a short form of either (rollout.n), or a code (TC020).
    """
    table = load_rows(rules)
    texts: dict[str, str] = {}
    refused = []
    for name in names:
        try:
            texts[name] = explain(name, table)
        except UserError as error:
            refused.append(str(error))
    if form == "json":
        explained = [{"name": name, "text": text} for name, text in texts.items()]
        click.echo(json.dumps({"version": 1, "names": explained}, indent=1))
    elif texts:
        click.echo("\n\n".join(texts.values()))
    if refused:
        raise UserError("\nerror: ".join(refused))
