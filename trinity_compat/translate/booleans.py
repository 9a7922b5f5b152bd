"""Settings that veRL takes as true or false, where a launch gives a number, null or a text.

Hydra makes a text of ``no``, ``off`` and ``'"False"'``. No release of veRL converts it: a plain key and a
field of a dataclass both keep it (``omega_conf_to_dataclass``, utils/config.py), and ``if config.NAME`` takes
it for true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from trinity_compat.common.nested import value_at
from trinity_compat.job.vllm_arguments import is_switch, set_by_verl
from trinity_compat.translate.launch_view import KeyRefused, not_a_truth, truth_of, unknown_sources
from trinity_compat.translate.run_refusals import OTHER_ENGINES
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.config_search import SUPERVISED
from trinity_compat.verl_config.interpolate import Resolver, is_interpolated
from trinity_compat.verl_config.model import EffectiveConfig, Setting
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.releases import FLAVOURS, release_tree
from trinity_compat.verl_config.upgrade import row_for

_NULL_BY_DEFAULT = ("critic.enable",)


def with_booleans(config: EffectiveConfig) -> EffectiveConfig:
    """Return ``config`` with true or false where the launch gives a boolean key a number or an empty text.

    Raises KeyRefused for another text.
    """
    others = [one for one in config.settings.values() if one.where is not None and _is_other(one)]
    given = {one.key: replace(one, value=_truth_of(one)) for one in others if _is_boolean(one.key, config)}
    for setting in others:
        section, engine, name = setting.key.partition(".engine_kwargs.vllm.")
        if not engine or not is_switch(name):
            continue
        if config.get(f"{section}.name") in OTHER_ENGINES:  # which read a block of their own
            given[setting.key] = replace(setting, value=None)
        elif name not in set_by_verl(config.get, section):
            _refuse_engine_value(setting, name)
    return replace(config, settings={**config.settings, **given}) if given else config


def _refuse_engine_value(setting: Setting, name: str) -> None:
    """Raise KeyRefused for a value of vLLM's switch ``name`` that its parser refuses.

    veRL makes ``--NAME VALUE`` of all but true, false and null (``build_cli_args_from_config``,
    vllm_rollout/utils.py), and vLLM takes no value there.
    """
    if setting.value is not None:
        told = f"veRL starts vLLM with --{name} {setting.value}, and vLLM takes no value there"
        raise KeyRefused(
            setting.spelling,
            f"{_written(setting)} should be true or false: {told}",
            where=setting.where,
            hint=None,
        )


def _is_boolean(key: str, config: EffectiveConfig) -> bool:
    """Return True if the launch's release, or the pinned one, has true or false as the default of ``key``."""
    flavour = config.flavour or FLAVOURS[0]
    pinned = pinned_release(SUPERVISED[1] if flavour in SUPERVISED else flavour).resolved
    row = row_for(key, flavour)
    defaults = [value_at(pinned, name) for name in (key, *(row.targets(key) if row else ()))]
    defaults.append(value_at(_defaults(config.version.value, flavour), key))
    return key in _NULL_BY_DEFAULT or any(isinstance(value, bool) for value in defaults)


@cache
def _defaults(version: str, flavour: str) -> Mapping[str, object]:
    return Resolver(composed_as(release_tree(version), flavour)).resolve()


def _is_other(setting: Setting) -> bool:
    """Return True for a value that is known, and neither true nor false."""
    value = setting.value
    if isinstance(value, bool) or (isinstance(value, str) and is_interpolated(value)):
        return False
    return not any(unknown_sources(setting)) and (value is not None or setting.key not in _NULL_BY_DEFAULT)


def _truth_of(setting: Setting) -> bool:
    truth = truth_of(setting.value)
    if truth is None:
        message = f"{_written(setting)} {not_a_truth(setting.value)}"
        raise KeyRefused(setting.spelling, message, where=setting.where, hint=None)
    return truth


def _written(setting: Setting) -> str:
    return f"{setting.spelling}={setting.word.text if setting.word else setting.value}"
