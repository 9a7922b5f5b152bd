"""`trinity-compat sizes`: the sizes of a launch, each with its unit, and what has to divide what."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trinity_compat.cli._configurations import ComposeOptions, composed, launch_facts
from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    format_option,
    release_options,
    script_options,
)
from trinity_compat.common.reading_process import reading
from trinity_compat.translate.model import Severity
from trinity_compat.translate.size_table import SizeTable, size_table
from trinity_compat.verl_config.model import EffectiveConfig

_Found = list[tuple[EffectiveConfig, SizeTable]]


@click.command(name="sizes", cls=WithScriptArguments)
@click.argument("source", type=NAMED_FILE)
@format_option
@script_options
@release_options
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    source: str,
    form: str,
    cwd: Path | None,
    env: tuple[str, ...],
    verl_version: str | None,
    no_fork_config: bool,
) -> int:
    """Show the sizes of a launch: prompts, answers, updates, micro-batches, tokens.

    SOURCE is a shell script, a veRL YAML, or - for stdin. What follows -- are the script's own arguments.
    Each size has its unit, and what it makes with the others on the GPUs of the launch. Nothing of a script
    is run.

    Exit code: 0; 1 when stock veRL ends with these sizes; 2 when SOURCE cannot be read or composed, or
    starts no launch of main_ppo.
    """
    how = ComposeOptions.of(cwd, env, arguments, verl_version, fork_config=not no_fork_config)
    with reading(source):
        found = [(config, size_table(config, root=cwd)) for config in composed(source, how)]
    click.echo(_json(found) if form == "json" else "\n\n".join(_text(*each) for each in found))
    return int(any(each.rank is Severity.ERROR for _, table in found for each in table.broken))


def _text(config: EffectiveConfig, table: SizeTable) -> str:
    lines = [
        f"{config.launch.where}  {config.launch.module}  (verl {config.version.value}: {config.version.why})"
    ]
    for title, rows in table.groups.items():
        lines.append(f"{title}:")
        width = max(len(row.unit) for row in rows)
        for row in rows:
            value = f"{row.value:,}" if row.value is not None else "?"
            place = f" ({row.where})" if row.where else " (default)" if row.key else ""
            parts = f": {row.parts}" if row.parts else ""
            lines.append(f"  {value:>9}  {row.unit:<{width}}  {row.made}{place}{parts}")
    lines += [str(each) for each in table.broken]
    return "\n".join(lines)


def _json(found: _Found) -> str:
    launches = [
        {
            **launch_facts(config),
            "sizes": [
                {
                    "of": title,
                    "value": row.value,
                    "unit": row.unit,
                    "key": row.key or None,
                    "made": row.made,
                    "source": str(row.where) if row.where else None,
                    "parts": row.parts,
                }
                for title, rows in table.groups.items()
                for row in rows
            ],
            "broken": [
                {
                    "code": each.code,
                    "rank": str(each.rank),
                    "message": each.message,
                    "source": str(each.where),
                    "hint": each.hint,
                }
                for each in table.broken
            ],
        }
        for config, table in found
    ]
    return json.dumps({"version": 1, "launches": launches}, indent=1)
