"""Shares of explorer and trainer in GPUs and weights: Trinity's settings, which no key of veRL holds."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.common.nested import value_at
from trinity_compat.job.gpus import ENGINES
from trinity_compat.translate.form.values import FormValues
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.verl_from_trinity import takes_turns

_LIMIT = "algorithm.sample_strategy_args.max_staleness"


def _updates(values: FormValues) -> int:
    """Return the optimizer updates of a veRL step, in which Trinity counts."""
    size = values.whole("batch_size")
    return max(1, size // (values.whole("mini_batch") or size))


def _explorer_gpus(values: FormValues) -> int:
    width = values.whole("tensor_parallel")
    return values.whole("rollout_gpus") or max(1, values.whole("gpus") // 2 // width) * width


def _assignments(values: FormValues) -> dict[str, str]:
    """Return Trinity's settings but for the split and the offset, which translate has options for."""
    updates, style, found = _updates(values), values["sync_style"], dict[str, str]()
    if style != "fixed":
        found |= {"mode": "colocate"} if values["sharing"] == "turns" else {}
        found["synchronizer.sync_style"] = style
    if values.whole("sync_interval") > 1:
        found["synchronizer.sync_interval"] = str(values.whole("sync_interval") * updates)
    if values["sync_method"] != "nccl":
        found["synchronizer.sync_method"] = values["sync_method"]
    if (limit := values.numbers["max_staleness"]) is not None:
        found |= {"algorithm.sample_strategy": "staleness_control", _LIMIT: str(int(limit) * updates)}
    return found


def sets_of(values: FormValues) -> tuple[str, ...]:
    """Return the settings as ``run`` takes them with a script."""
    found = _assignments(values)
    if values["sharing"] == "split":
        found[ENGINES] = str(_explorer_gpus(values) // values.whole("tensor_parallel"))
        if offset := values.whole("sync_offset"):
            found["synchronizer.sync_offset"] = str(offset * _updates(values))
    return tuple(f"{path}={value}" for path, value in found.items())


def options_of(values: FormValues, command: str = "") -> TranslateOptions:
    """Return the options of translate with the settings."""
    return TranslateOptions(
        rollout_gpus=_explorer_gpus(values) if values["sharing"] == "split" else None,
        sync_offset=values.whole("sync_offset"),
        assignments=_assignments(values),
        command=command,
    )


def words_of(values: FormValues) -> tuple[str, ...]:
    """Return the same options as words of a command line."""
    options = options_of(values)
    words = ["--rollout-gpus", str(options.rollout_gpus)] if options.rollout_gpus else []
    words += ["--sync-offset", str(options.sync_offset)] if options.sync_offset else []
    return (
        *words,
        *(word for pair in options.assignments.items() for word in ("--set", "=".join(map(str, pair)))),
    )


def sides_of(config: Mapping[str, object], updates: int) -> dict[str, str]:
    """Return the fields of a configuration that translate wrote; the others have their defaults."""

    def whole(path: str, default: int = 0) -> int:
        found = value_at(config, path)
        return found if isinstance(found, int) else default

    found = {"sync_style": "fixed", "sync_method": "nccl"}
    found |= {name: str(value) for name in found if (value := value_at(config, f"synchronizer.{name}"))}
    for name, default in (("sync_offset", 0), ("sync_interval", updates)):
        found[name] = str(whole(f"synchronizer.{name}", default) // updates)
    if value_at(config, "algorithm.sample_strategy") == "staleness_control":
        found["max_staleness"] = str(whole(_LIMIT) // updates)
    if config.get("mode") == "colocate" or takes_turns(config):
        return {**found, "sharing": "turns"}
    width = whole("explorer.rollout_model.tensor_parallel_size", 1)
    return {**found, "sharing": "split", "rollout_gpus": str(whole(ENGINES, 1) * width)}
