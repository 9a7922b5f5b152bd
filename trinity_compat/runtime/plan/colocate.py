"""Mode colocate: both sides of a run take turns on the devices of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from trinity_compat.containers import Tree
from trinity_compat.dotted import value_at
from trinity_compat.errors import UserError
from trinity_compat.spec import Mode, RunSpec, SyncSpec

_METHOD = "synchronizer.sync_method"
NCCL_ASKED = f"{_METHOD}=nccl"  # as one of --set


def mode_of(config: Tree, device: str) -> Mode:
    """The YAML's mode; colocate is about an accelerator's memory: on a CPU both sides run at once. Raises
    UserError for one that this runtime does not have."""
    named = config.get("mode") or "both"
    for mode in get_args(Mode):
        if mode == named:
            return "both" if mode == "colocate" and device == "cpu" else mode
    raise UserError(f"mode: {named} is not among {', '.join(get_args(Mode))}")


def weights(sync: SyncSpec, mode: str, sets: Sequence[str]) -> tuple[SyncSpec, list[str]]:
    """How weights move in ``mode``. A YAML's nccl, which ``translate`` writes for a split, gives way to
    memory on devices that both sides use; one that ``--set`` asks for stays, to be refused."""
    if mode != "colocate" or sync.method != "nccl" or NCCL_ASKED in sets:
        return sync, []
    line = f"{_METHOD} = memory: both sides are on the same devices, and NCCL takes a device once"
    return replace(sync, method="memory"), [line]


def check(spec: RunSpec) -> None:
    """One machine, one explorer, weights through files: NCCL knows a device once in a group. Raises
    UserError."""
    if spec.mode != "colocate":
        return
    _check_one_machine(spec)
    if spec.explorers > 1:
        raise UserError(
            "mode colocate shares the devices between the trainer and one explorer",
            hint="leave out --explorers",
        )
    if spec.sync.method == "nccl":
        raise UserError(
            "synchronizer.sync_method=nccl: mode colocate has both sides on one device, which NCCL refuses",
            hint="write synchronizer.sync_method=memory",
        )
    if spec.replay and spec.replay.max_uses > 1:  # the trainer would never have to give the device away
        raise UserError(
            "mode colocate: a trainer that finds trained groups again never lets the explorer on the device",
            hint="leave out the replay buffer's reuse_cooldown_time, or give each side a device of its own",
        )


def _check_one_machine(spec: RunSpec) -> None:
    """An engine is an actor without GPUs of its own as far as Ray knows: it finds its machine's."""
    nodes = value_at(spec.verl, "trainer.nnodes")
    if spec.device != "cpu" and nodes > 1:
        raise UserError(
            f"mode colocate: both sides take turns on the GPUs of one machine, and trainer.nnodes={nodes}",
            hint="leave out --mode colocate: the GPUs are then split between the two sides; or write"
            " --set trainer.nnodes=1",
        )
