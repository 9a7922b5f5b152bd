"""`trinity-compat ignored`: the settings of a script that have no effect under stock veRL."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trinity_compat.cli._configurations import ComposeOptions, composed, launch_facts
from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    release_options,
    script_options,
)
from trinity_compat.common.errors import UserError
from trinity_compat.common.reading_process import reading
from trinity_compat.common.releases import VERL
from trinity_compat.launch.script_files import files_of
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.reads import ignored_keys, not_followed, unchecked


@click.command(name="ignored", cls=WithScriptArguments)
@click.argument("sources", nargs=-1, required=True, type=NAMED_FILE, metavar="SOURCE…")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@script_options
@release_options
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    sources: tuple[str, ...],
    form: str,
    cwd: Path | None,
    env: tuple[str, ...],
    verl_version: str | None,
    no_fork_config: bool,
) -> int:
    """List the settings of a script that have no effect under stock veRL.

    SOURCE is a shell script, a veRL YAML, or a folder of scripts. What follows -- are the script's own
    arguments. Listed is each key that the launch sets to another value than its release's default and
    that main_ppo of this release doesn't read. A script in a folder that cannot be checked is named, and
    the others go on. Nothing of a script is run.

    Exit code: 0; 1 when there is such a setting; 2 when a SOURCE cannot be read or composed, starts no
    launch of main_ppo, or starts from a changed copy of veRL; for a folder, when this holds for all.
    """
    how = ComposeOptions.of(cwd, env, arguments, verl_version, fork_config=not no_fork_config)
    found: list[_Found] = []
    problems: dict[str, UserError] = {}
    for source, is_named in files_of(sources):
        try:
            with reading(source):
                found += [(config, ignored_keys(config)) for config in _checked(source, how)]
        except UserError as error:
            if is_named:
                raise
            problems[source] = error
    if not found:
        raise next(iter(problems.values()))
    told = {source: str(error) for source, error in problems.items()}
    click.echo(_json(found, told) if form == "json" else _text(found, told))
    return int(any(keys for _, keys in found))


_Found = tuple[EffectiveConfig, dict[str, str]]  # a launch, and its keys without effect with the reasons


def _checked(source: str, how: ComposeOptions) -> list[EffectiveConfig]:
    configs = composed(source, how)
    for config in configs:
        if why := not_followed(config):
            hint = f"--verl-version {VERL} says what that release does with this launch"
            raise UserError(why, where=config.launch.where, hint=None if unchecked(config) else hint)
    return configs


def _text(found: list[_Found], problems: dict[str, str]) -> str:
    lines = []
    for config, keys in found:
        number = "1 setting has" if len(keys) == 1 else f"{len(keys)} settings have"
        found_here = f"{number} no effect" if keys else "no setting without effect is known"
        lines.append(f"{config.launch.where}: under verl {config.version.value} {found_here}")
        lines.append(f"  (verl {config.version.value}: {config.version.why})")
        for key, why in keys.items():
            setting = config.settings[key]
            place = setting.where or config.launch.where
            lines.append(f"  {place}: {setting.spelling or key}={_short(setting.value)}: {why}")
    for source, why in problems.items():
        lines.append(f"{source}: not checked: {_short(why.removeprefix(f'{source}: '))}")
    return "\n".join(lines)


def _short(value: object) -> str:
    return "null" if value is None else " ".join(str(value).split())


def _json(found: list[_Found], problems: dict[str, str]) -> str:
    launches = [
        {
            **launch_facts(config),
            "ignored": [
                {
                    "key": key,
                    "value": json.loads(json.dumps(config.settings[key].value, default=str)),
                    "source": str(config.settings[key].where or config.launch.where),
                    "why": why,
                }
                for key, why in keys.items()
            ],
        }
        for config, keys in found
    ]
    skipped = {"problems": problems} if problems else {}
    return json.dumps({"version": 1, "launches": launches, **skipped}, indent=1)
