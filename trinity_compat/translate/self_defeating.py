"""Settings of a launch that defeat themselves under stock veRL: one table, beside veRL's other data.

A row of ``translators/by_hand/verl/self_defeating.json`` holds from release ``since`` on for a launch that
gives the keys of ``set`` itself and whose values meet each condition of ``when``: (key, comparison, value, or
the key that has it). ``says`` names keys in braces. ``source`` is the place in the pinned release, and
``line`` its text there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.common.resources import data_json
from trinity_compat.job.vllm_arguments import set_by_verl
from trinity_compat.translate.launch_view import is_finite, unknown_sources, written
from trinity_compat.translate.model import Caution, notice
from trinity_compat.translate.run_refusals import OTHER_ENGINES
from trinity_compat.verl_config.interpolate import is_interpolated
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.reads import unchecked

_SETS = "workers/rollout/vllm_rollout/vllm_async_server.py"
_KEY = re.compile(r"\{([\w.]+)\}")


def table() -> Mapping[str, Mapping[str, Any]]:
    """Return kind → its hint and its rows. The findings of one kind are one message."""
    return data_json("translators/by_hand/verl/self_defeating.json")


def self_defeating(config: EffectiveConfig) -> Iterator[Caution]:
    """Yield a note for each kind of such settings of the whole launch.

    Only for main_ppo of a release, as `trinity-compat ignored`.
    """
    if unchecked(config):
        return
    release = VERL_RELEASES.index(config.version.value)
    yield from _overwritten(config)
    for kind, about in table().items():
        rows = (row for row in about["rows"] if VERL_RELEASES.index(row["since"]) <= release)
        found = [row for row in rows if _holds(config, row)]
        if found:
            told = "; ".join(f"{_said(config, row['says'])} (verl/{row['source']})" for row in found)
            where = config.settings[found[0]["set"][0]].where
            yield notice("TW031", f"{kind}: {told}", where, about["hint"])


def _overwritten(config: EffectiveConfig) -> Iterator[Caution]:
    """Yield a note on the launch's arguments of vLLM over which veRL sets its own."""
    told = {}
    for setting in config.settings.values():
        section, engine, name = setting.key.partition(".engine_kwargs.vllm.")
        if not engine or setting.where is None or config.get(f"{section}.name") in OTHER_ENGINES:
            continue
        if decides := set_by_verl(config.get, section).get(name.partition(".")[0]):
            told[f"{written(config, setting.key)} by {written(config, decides)}"] = setting.where
    if told:
        where, hint = next(iter(told.values())), "leave them out"
        yield notice("TW031", f"veRL {VERL} overrides {'; '.join(told)} (verl/{_SETS})", where, hint)


def _holds(config: EffectiveConfig, row: Mapping[str, Any]) -> bool:
    """Return True if the launch sets the row's keys, and all its conditions are known and met."""
    settings = [config.settings.get(key) for key in row["set"]]
    if not all(setting is not None and setting.where is not None for setting in settings):
        return False
    named = [other["key"] for _, _, other in row["when"] if isinstance(other, Mapping)]
    if any(_is_open(config, key) for key in (*named, *(key for key, _, _ in row["when"]))):
        return False
    return all(_is_met(config, *condition) for condition in row["when"])


def _is_open(config: EffectiveConfig, key: str) -> bool:
    value = config.get(key)
    open_text = isinstance(value, str) and is_interpolated(value)
    return open_text or any(True for _ in unknown_sources(config.settings.get(key)))


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": lambda value, other: is_finite(value) and is_finite(other) and value > other,
    "<=": lambda value, other: is_finite(value) and is_finite(other) and value <= other,
    "!=": lambda value, other: value is not None and value not in (other, ""),
    "=": lambda value, other: value == other,
    "in": lambda value, other: value in other,
}


def _is_met(config: EffectiveConfig, key: str, comparison: str, other: object) -> bool:
    """Compare a value. Null differs from nothing: veRL puts something in its place."""
    value = config.get(key)
    if isinstance(other, Mapping) and (other := config.get(other["key"])) is None:
        return False
    return _COMPARED[comparison](value, other)


def _said(config: EffectiveConfig, text: str) -> str:
    return _KEY.sub(lambda found: written(config, found[1]), text)
