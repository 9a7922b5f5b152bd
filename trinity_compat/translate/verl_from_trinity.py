"""The way back: from a Trinity configuration to the veRL configuration that our trainer runs.

Only values that the YAML determines come back; the pinned veRL's defaults stand for the rest. Settings that
Trinity lacks are carried under ``trinity_compat`` (passthrough.py). Steps are divided by r here and nowhere
else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves
from trinity_compat.common.plain_numbers import is_number, is_whole
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.job.gpus import ENGINES
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.translate import supervised
from trinity_compat.translate.defaults import trainer_defaults
from trinity_compat.translate.hand_written_yaml import settings_by_hand, with_trainer_config
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.sections import WAYS_BACK
from trinity_compat.translate.sections.batch import limit_of
from trinity_compat.translate.selectors import check_of_launch
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.translate.update_steps import verl_steps
from trinity_compat.trinity.config.complete import CompletedConfig, completed
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.releases import OTHER_FLAVOURS

COMPAT = "trinity_compat"
_UPDATES = "updates_per_step"
IN_TURNS = "in turns"  # in place of a number of engines with GPUs of their own
_TC = "trainer.trainer_config"
_TASKSET_COMPAT = "buffer.explorer_input.tasksets.0.workflow_args.trinity_compat"  # the old schema is strict


def to_verl(config: Mapping[str, object]) -> dict[str, Any]:
    """Return dotted keys of the pinned veRL with the values that ``config`` determines.

    Raises UserError for a count of steps that r doesn't divide, for a configuration without the fields that
    every run needs, and for an algorithm that cannot be trained.
    """
    keys: dict[str, object] = {}
    compat = compat_of(config)
    carried = dict(compat.get("verl", {}))
    reading = TrinityReader(config, *updates_per_step(config), is_published(config))
    # Later ones win: a derivation over a plain copy, what was passed through by name over both.
    keys |= _copied(reading)
    for way_back in WAYS_BACK:
        keys.update(way_back(reading))
    keys |= passed(config)
    keys |= supervised.verl_keys(reading)
    keys["trainer.use_v1"] = compat.get("trainer") == "v1"
    if (flavour := flavour_of(config)) in OTHER_FLAVOURS:
        # Trinity's fields name settings of FSDP, which the classes of another engine's sections do not take.
        keys = {key: value for key, value in keys.items() if pinned_release(flavour).takes(key) is not False}
    for key, (yaml_says, launch_says) in stand_ins(compat):
        # Where the YAML says something else by now it was edited, and the edit wins.
        if keys.get(key) == yaml_says:
            keys[key] = launch_says
    return keys | carried


def stand_ins(compat: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Return veRL key → (the YAML's value, the launch's value). Raises UserError for any other form."""
    for key, pair in (compat.get("stands_for") or {}).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise UserError(
                f"{_TC}.{COMPAT}.stands_for.{key}={pair}: write two values, the YAML's and the launch's",
                hint="leave it as translate wrote it",
            )
        yield key, pair


def stand_in_of(config: Mapping[str, object], key: str, path: str) -> Any:
    """Return the value that translate wrote at ``path`` in place of veRL's value of ``key``.

    None if it wrote none, or if the YAML has been edited since.
    """
    found = compat_of(config).get("stands_for", {}).get(key)
    written = TrinityReader(config).get(path)
    return written if found and found[0] == written else None


def takes_turns(config: Mapping[str, object]) -> bool:
    """Return whether translate wrote the number of engines for Trinity-RFT's split alone.

    The launch behind the YAML takes turns on its GPUs. An edit of the number asks for a split.
    """
    found = compat_of(config).get("stands_for", {}).get(ENGINES)
    return bool(found) and found == [TrinityReader(config).get(ENGINES, 1), IN_TURNS]


def from_launch(config: Mapping[str, object]) -> bool:
    """Return True if translate wrote the file from a launch.

    Fields that it leaves out then have veRL's defaults, and counts of steps are r times veRL's.
    """
    return _UPDATES in compat_of(config)


def completed_config(config: Mapping[str, object], target: str = TRINITY) -> CompletedConfig:
    """Return ``config`` with trinity-rft's defaults filled in, unless translate wrote it.

    ``target`` is the release whose defaults apply. Raises UserError for what that release refuses.
    """
    if from_launch(config):
        return CompletedConfig(dict(config), target)
    return with_trainer_config(completed(config, target))


def verl_settings(full: CompletedConfig) -> dict[str, Any]:
    """Return the veRL keys of a completed configuration, as ``to_verl`` does.

    For a file that translate did not write, trinity-rft's defaults of its trainer's own configuration and the
    settings of ``hand_written_yaml`` are added.
    """
    keys = to_verl(full.config)
    if from_launch(full.config):
        check_of_launch(TrinityReader(full.config))
        return keys
    defaults = trainer_defaults(full.target, flavour_of(full.config))
    return {**defaults, **keys, **dict(settings_by_hand(full.config))}


def flavour_of(config: Mapping[str, object]) -> str:
    """Return the veRL configuration whose defaults count for what the file leaves open."""
    strategy = TrinityReader(config).get("trainer.trainer_strategy")
    by_strategy = "ppo_megatron_trainer" if strategy == "megatron" else "ppo_trainer"
    return str(compat_of(config).get("flavour", by_strategy))


def updates_per_step(config: Mapping[str, object]) -> tuple[int, str]:
    """Return r, the mini-batches of one veRL step, and the setting that gives it.

    r is 1 in a file that translate did not write, because a step of Trinity's own is one update
    (docs/decisions/a-trinity-step-is-an-update.md). It is also 1 in a run over files.
    """
    if supervised.schema_in(config) != "experience":
        return 1, ""
    given = compat_of(config).get(_UPDATES)
    if given is not None:
        if not is_whole(given, least=1):
            raise UserError(f"{_UPDATES} is {given!r}, it should be a positive whole number")
        return given, "trinity_compat.updates_per_step"
    return 1, ""


def sync_of(config: Mapping[str, object]) -> SyncSpec:
    """Return when weights move, counted in veRL steps.

    Raises UserError for an interval or an offset that is not a whole number of veRL steps: explorer and
    trainer exchange whole train batches here. Only the offset of the published guide (``--as-published``),
    one update, counts as a whole step; the plan says so.
    """
    reading = TrinityReader(config)
    r, why = updates_per_step(config)
    published = is_published(config)

    def steps(name: str, default: int | None, *, least: int) -> int | None:
        """Return the count at ``path`` in whole veRL steps."""
        path = f"synchronizer.{name}"
        count = reading.get(path, default)
        if count is None:
            return None
        if not is_whole(count, least=least):
            raise UserError(f"{path} is {count!r}: write a whole number of steps, {least} or more")
        if published and least == 0:
            return math.ceil(count / r)
        return verl_steps(path, count, r, why, least=least)

    return SyncSpec(
        # What trinity-rft 0.4.1 has no name for stands in our own section.
        style=compat_of(config).get("sync_style") or reading.get("synchronizer.sync_style", "fixed"),
        interval=steps("sync_interval", r, least=1) or 1,
        offset=steps("sync_offset", 0, least=0) or 0,
        timeout_s=float(reading.get("synchronizer.sync_timeout", 3600)),
        method=reading.get("synchronizer.sync_method", "memory"),
        trainer_interval=steps("trainer_sync_interval", None, least=1),
        explorer_interval=steps("explorer_sync_interval", None, least=1),
    )


def rounded_offset(config: Mapping[str, object]) -> str | None:
    """Return the note on an offset of the published guide that is rounded up, else None."""
    offset = int(TrinityReader(config).get("synchronizer.sync_offset", 0))
    r, _ = updates_per_step(config)
    if not is_published(config) or offset % r == 0:
        return None
    counted = math.ceil(offset / r) * r
    return (
        f"synchronizer.sync_offset={offset}, as the published guide has it, counts as {counted} here:"
        f" explorer and trainer exchange whole train batches of {r} updates"
    )


def is_published(config: Mapping[str, object]) -> bool:
    """Return True if the YAML counts veRL steps, as the published guide does, beside an offset in updates."""
    return compat_of(config).get("steps") == "verl"


def max_staleness_of(config: Mapping[str, object]) -> int | None:
    """Return how many veRL steps the weights of a group may be behind at its training; None: any number.

    ``algorithm.sample_strategy: staleness_control`` of trinity-rft (sample_strategy.py), which counts
    optimizer updates. Raises UserError for a strategy that the trainer here does not have.
    """
    reading = TrinityReader(config)
    strategy = reading.get("algorithm.sample_strategy") or "default"
    if strategy in ("default", "warmup", "mix"):
        return None
    if strategy != "staleness_control":
        raise UserError(
            f"algorithm.sample_strategy={strategy}: the trainer takes whole groups, oldest task first",
            hint="write default, mix or staleness_control, or run the YAML on trinity-rft",
        )
    given = reading.get("algorithm.sample_strategy_args.max_staleness", math.inf)
    if not is_number(given) or not given >= 0:
        raise UserError(
            f"algorithm.sample_strategy_args.max_staleness={given}: write a number of updates, 0 or more"
        )
    return None if math.isinf(given) else int(given // updates_per_step(config)[0])


def total_steps_of(config: Mapping[str, object]) -> int | None:
    """Return the veRL steps after which the run ends, None when its epochs decide.

    Raises UserError for a count of updates that is not a whole number of veRL steps.
    """
    reading = TrinityReader(config, *updates_per_step(config), is_published(config))
    return limit_of(reading)


def compat_of(config: Mapping[str, object]) -> Mapping[str, Any]:
    """Return the section that only our runtime reads; empty in a YAML that wasn't translated."""
    reading = TrinityReader(config)
    found = reading.get(f"{_TC}.{COMPAT}") or reading.get(_TASKSET_COMPAT) or {}
    if not isinstance(found, Mapping):
        raise UserError(f"{_TC}.{COMPAT} is {found!r}, it should be a section")
    return found


def compat_path(target: str) -> str:
    """Return the path of that section in a YAML for trinity-rft ``target``."""
    return _TASKSET_COMPAT if target == TRINITY_OLD else f"{_TC}.{COMPAT}"


def _copied(reading: TrinityReader) -> dict[str, object]:
    """Return the inverse of every row that copies or scales."""
    keys: dict[str, object] = {}
    for key, row in load_rows().exact.items():
        if row.how not in ("copy", "scale"):
            continue
        for path in (*row.to, *(path for paths in row.targets.values() for path in paths)):
            value = reading.get(path)
            if value is not None:
                keys[key] = reading.steps(path) if row.how == "scale" else value
    return keys


def passed(config: Mapping[str, object]) -> dict[str, object]:
    """Return the keys passed to trainer_config, which have their own veRL names there.

    Raises UserError for a warm-up, which is counted in updates, that is not a whole number of veRL steps.
    """
    reading = TrinityReader(config, *updates_per_step(config), is_published(config))
    section = reading.get(_TC) or {}
    keys = {}
    for key, value in leaves(
        {name: section[name] for name in ("actor_rollout_ref", "critic") if name in section}
    ):
        counted = key.endswith("optim.lr_warmup_steps")
        keys[key.replace("critic.model.fsdp_config.", "critic.fsdp.")] = (
            reading.steps(f"{_TC}.{key}") if counted else value
        )
    return keys
