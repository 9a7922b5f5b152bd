"""Comparison of an upgraded launch with the old one carried forward: what differs, and why that is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trinity_compat.common.releases import VERL
from trinity_compat.job.vllm_arguments import SECTION
from trinity_compat.translate.micro_batch_sizes import has_critic
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.reads import read_of


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A key whose value is not the carried one. ``why`` says why that is meant, "" where it is not."""

    key: str
    carried: object
    now: object
    why: str


def differences(old: EffectiveConfig, carried: EffectiveConfig, new: EffectiveConfig) -> Iterator[ChangedKey]:
    """Yield what differs between ``carried``, the old configuration under the target, and the new one."""
    for key, setting in carried.settings.items():
        there = new.settings.get(key)
        if there is None or type(there.value) is not type(setting.value) or there.value != setting.value:
            why = _deliberate(key, old, carried, new)
            yield ChangedKey(key, setting.value, there.value if there else None, why)


def _deliberate(key: str, old: EffectiveConfig, carried: EffectiveConfig, new: EffectiveConfig) -> str:
    if key.endswith("._target_"):
        return "the class behind a section belongs to its release"
    found = read_of(key, VERL, old.flavour)
    if found is not None and found.ignored:
        return f"veRL {VERL} ignores it"
    if key not in new.settings and key not in carried.set_keys:
        return f"a default that veRL {VERL} has no key for"
    if key.startswith("critic.") and not has_critic(new.get):
        return "no critic is trained"
    if key.endswith("_micro_batch_size_per_gpu") and old.get(key.removesuffix("_per_gpu")) is not None:
        return "a micro-batch over all GPUs became that of one"
    if key.startswith(f"{SECTION}."):
        return "an engine argument of older vLLM"
    if key == "trainer.use_v1" and key in old.settings:
        return "the release had the choice of a trainer itself"
    return ""
