"""The warning for a launch whose keys fit several veRL releases with different defaults.

``translators/verl/changed_defaults.json``, written by scripts/make_changed_defaults.py, holds the defaults
whose meaning differs between releases, so that nothing is composed a second time.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping

from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.common.resources import data_path
from trinity_compat.translate.launch_view import ARR, LaunchView
from trinity_compat.translate.model import Caution, notice
from trinity_compat.verl_config import FLAVOURS

_SHOWN = 6
_OFF = 1.0e8  # a bound that never acts: how "there was no dual clip" is carried forward
_NO_LOW_AND_HIGH = "0.3.0"  # the last release where clip_ratio was both bounds and KL was in the reward
_ACTOR = f"{ARR}.actor"
_KL = "algorithm.use_kl_in_reward"
_BOUNDS = (f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high")


def release_caution(view: LaunchView) -> Iterator[Caution]:
    """Name the defaults of this launch that differ between the releases that its keys fit equally well."""
    able = view.origin.version.candidates
    if len(able) < 2:
        return
    defaults = {key: _by_release(view, key, able) for key in (*_changed(view.config.flavour), *_BOUNDS)}
    differing = {key: values for key, values in defaults.items() if _differ(values)}
    if not differing:
        return
    shown = [f"{_short(key)} {_spelled(values)}" for key, values in differing.items()]
    more = f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    yield notice(
        "TW018",
        f"the keys fit veRL {', '.join(able)} equally well and {view.origin.version.value} is taken; "
        f"defaults that this launch relies on differ between them: {'; '.join(shown[:_SHOWN])}{more}",
        view.launch.where,
        f"name the release that the script was written for, e.g. --verl-version {able[0]}, or set these keys",
    )


@functools.cache
def _table() -> Mapping[str, Mapping[str, list[object]]]:
    text = data_path("translators/verl/changed_defaults.json").read_text(encoding="utf-8")
    tables: Mapping[str, Mapping[str, list[object]]] = json.loads(text)
    return tables


def _changed(flavour: str) -> Mapping[str, list[object]]:
    return _table()[flavour or FLAVOURS[0]]


def _by_release(view: LaunchView, key: str, able: tuple[str, ...]) -> dict[str, object]:
    """Return the default of ``key`` per release; empty if the launch doesn't rely on it."""
    if view.is_set(key) or (key.startswith("critic.") and not view.critic):
        return {}
    values = _changed(view.config.flavour).get(key) or [view.value(key)] * len(VERL_RELEASES)
    return {version: _implied(view, key, version, values[VERL_RELEASES.index(version)]) for version in able}


def _implied(view: LaunchView, key: str, version: str, default: object) -> object:
    """Return the default that an early release derived from another key, which the launch may set."""
    if VERL_RELEASES.index(version) > VERL_RELEASES.index(_NO_LOW_AND_HIGH):
        return default
    if key == _KL:
        in_loss = view.value(f"{_ACTOR}.use_kl_loss", False)
        return not in_loss and view.value("algorithm.kl_ctrl.kl_coef", 0) != 0
    return view.value(f"{_ACTOR}.clip_ratio", default) if key in _BOUNDS else default


def _differ(values: Mapping[str, object]) -> bool:
    return any(value != other for value, other in itertools.pairwise(values.values()))


def _spelled(values: Mapping[str, object]) -> str:
    """Format values per span of releases: ``0.001 (0.2.0–0.3.0), 0 (0.4.1–0.9.1)``."""
    runs = []
    for value, group in itertools.groupby(values.items(), key=lambda item: item[1]):
        versions = [version for version, _ in group]
        span = versions[0] if len(versions) == 1 else f"{versions[0]}–{versions[-1]}"
        runs.append(f"{_value(value)} ({span})")
    return ", ".join(runs)


def _value(value: object) -> str:
    if value == "???":
        return "must be given"
    return "off" if value == _OFF else json.dumps(value)


def _short(key: str) -> str:
    return key.removeprefix(f"{ARR}.")
