"""Upgrades the record of a run: its command line is written, and then upgraded as a script.

A record is what Hydra leaves (``overrides.yaml``, the error in a log), the configuration that veRL prints, or
a W&B run's ``config.yaml``. Of a configuration the command sets what differs from its release's defaults.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script
from trinity_compat.launch.job_files import is_configuration_of_a_run, is_hydras_record
from trinity_compat.rewrite.script import Upgraded, UpgradeOptions, upgrade_command
from trinity_compat.verl_config import config_from_yaml
from trinity_compat.verl_config.grammar import hydra_text
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, FLAVOURS, MODEL_ENGINE


def is_record(path: str) -> bool:
    """Return whether a source is the record of a run."""
    return is_hydras_record(path) or is_configuration_of_a_run(path)


def upgrade_record(path: str, options: UpgradeOptions) -> Upgraded:
    """Upgrade the command line of a record. Raises UserError for a value that no command line can hold."""
    if is_hydras_record(path):
        launches = read_script(path, cwd=options.cwd, env=options.env).launches
        commands = [(launch.module, [word.text for word in launch.arguments]) for launch in launches]
    else:
        config = config_from_yaml(path, options.version, fork_config=options.fork_config)
        options = replace(options, version=config.version.value)
        commands = [(config.launch.module, list(_overrides(config)))]
    script = ""
    for module, words in commands:
        script += " \\\n    ".join((f"python3 -m {module}", *map(shlex.quote, words))) + "\n"
    return upgrade_command(f"the command of {path}", script, options)


def _overrides(config: EffectiveConfig) -> Iterator[str]:
    """Yield what a command gives Hydra to compose a configuration. Raises UserError."""
    flavour = config.flavour
    if engine := ENGINE_FLAVOURS.get(flavour):
        yield f"{MODEL_ENGINE}={engine}"
    elif flavour != FLAVOURS[0]:
        yield f"--config-name={flavour}"
    for key in config.set_keys:
        setting = config.settings[key]
        text = hydra_text(setting.value)
        if text is None:
            raise UserError(f"{key}: Hydra's grammar has no text for {setting.value!r}", where=setting.where)
        yield f"{'++' if key in config.unknown else ''}{key}={text}"
