"""The YAML that translate would write for the run that a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import VERL
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.options import TranslateOptions
from trinity_compat.translate.translator import translate
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.verl_config.from_yaml import config_from_tree
from trinity_compat.verl_config.pinned import compose_pinned

_MODEL = "explorer.rollout_model"


def as_translated(config: Mapping[str, object], target: str | None = None) -> Mapping[str, object]:
    """Return the Trinity configuration that ``translate`` would write for a run of ``config``.

    ``target``: the trinity-rft release that it is for; None infers it from the keys.

    Raises UserError if the way back or the translation does.
    """
    full = verl_from_trinity.in_full(config, target)
    verl = compose_pinned(verl_from_trinity.verl_settings(full), verl_from_trinity.flavour_of(full.config))
    effective, options = config_from_tree(verl, VERL), _options_of(config)
    try:
        return translate(effective, options).config
    except UserError:  # the number of engines that the file has is one that --rollout-gpus refuses
        return translate(effective, replace(options, rollout_gpus=None)).config


def _options_of(config: Mapping[str, object]) -> TranslateOptions:
    """Return the options under which translate wrote the file; the defaults for another file."""
    compat = verl_from_trinity.compat_of(config)
    if not compat:
        return TranslateOptions()
    return TranslateOptions(
        target=verl_from_trinity.target_of(config),
        as_published=compat.get("steps") == "verl",
        rollout_gpus=_rollout_gpus(TrinityReader(config)),
    )


def _rollout_gpus(reading: TrinityReader) -> int | None:
    sizes = [reading.get(f"{_MODEL}.{name}", 1) for name in ("engine_num", "tensor_parallel_size")]
    return sizes[0] * sizes[1] if all(isinstance(size, int) and size > 0 for size in sizes) else None
