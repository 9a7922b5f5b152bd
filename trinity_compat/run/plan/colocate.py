"""Mode colocate: both sides of a run take turns on the devices of the trainer's machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from trinity_compat.advise import cards, memory
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.training_engines import engine_of
from trinity_compat.job.gpus import trainer_gpus
from trinity_compat.job.lora import MERGE, is_handed_over
from trinity_compat.job.run_spec import Mode, RunSpec, SyncSpec
from trinity_compat.job.settings import SETTINGS
from trinity_compat.run.plan import estimates
from trinity_compat.run.plan.devices import card_here, machines_here
from trinity_compat.synchronizer.policy import changes_within_a_step

_METHOD = "synchronizer.sync_method"
NCCL_ASKED = f"{_METHOD}=nccl"  # as one of --set


def mode_of(config: Tree, device: str) -> Mode:
    """Return the YAML's mode; both for colocate on a CPU, where the sides need not take turns.

    Raises UserError for an unknown mode.
    """
    named = config.get("mode") or "both"
    for mode in get_args(Mode):
        if mode == named:
            return "both" if mode == "colocate" and device == "cpu" else mode
    raise UserError(f"mode: {named} is not among {', '.join(get_args(Mode))}")


def weights(sync: SyncSpec, mode: str, sets: Sequence[str], machines: int) -> tuple[SyncSpec, list[str]]:
    """Return the SyncSpec for ``mode`` on ``machines``, with notes on its changes.

    A method that shared devices rule out is replaced by files: in shared memory, or for several machines in
    the job's folder. A method of ``--set`` stays, to be refused.
    """
    is_set = any(text.partition("=")[0] == _METHOD for text in sets)
    if mode != "colocate" or is_set or not (why := _unfit(sync, machines)):
        return sync, []
    if machines == 1:
        return replace(sync, method="memory"), [f"{_METHOD} = memory: {why}"]
    line = f"{_METHOD} = checkpoint: {why}; every machine must see the job's folder"
    return replace(sync, method="checkpoint"), [line]


def _unfit(sync: SyncSpec, machines: int) -> str:
    """Return the reason why weights can't move by the method of ``sync``, "" where they can."""
    if sync.method == "nccl":
        return "both sides are on the same devices, and NCCL takes a device once"
    if sync.method == "memory" and machines > 1:
        return f"processes on any of {machines} machines do not see the memory of one"
    return ""


def _no_stale_cache(spec: RunSpec) -> str:
    """Return why no answer meets new weights with caches of former ones, "" where one may."""
    if spec.mode == "colocate":
        return "in turns engines that sleep lose their caches"
    if not changes_within_a_step(spec.sync):
        return f"under sync_style {spec.sync.style} no answer is in flight when weights change"
    if not spec.partial_rollout:
        return f"{SETTINGS['partial_rollout'].key}=False ends the answers in flight"
    return ""


def _not_on_devices(spec: RunSpec) -> str:
    """Return why the weights can't be handed over on the devices, "" where they can."""
    sync = spec.sync
    if spec.mode != "colocate":
        return f"in mode {spec.mode} the two sides take no turns"
    if (sync.style, sync.interval, sync.offset) != ("fixed", 1, 0):
        return "it is for sync_style fixed with interval 1 and offset 0"
    if is_handed_over(spec.verl):
        return f"a LoRA adapter goes by files; {MERGE}=True makes each version a whole model"
    strategy = value_at(spec.verl, "actor_rollout_ref.actor.strategy")
    if not engine_of(strategy).ordered:
        return f"the ranks of actor.strategy={strategy} do not have all tensors in one order"
    return ""


def offload(spec: RunSpec, cwd: Path) -> tuple[RunSpec, list[str]]:
    """Offload a trainer whose state does not fit beside awake engines, by the estimate of `advise`.

    Else, and where nothing is estimated, the launch's own flags hold, as in veRL, whose trainer and engines
    are on the same devices, too.
    """
    if spec.mode != "colocate" or spec.device == "cpu" or spec.rows:
        return spec, []
    try:
        training, _ = estimates.training_of(spec.verl)
        if training is None or not estimates.is_known(spec.verl, cwd):
            return spec, []
        here = card_here()
        card = here or cards.named(cards.DEFAULT).memory_gib
        shape, _ = estimates.shape_of(spec.verl, cwd)
        stays = memory.resident(shape, training, training.stays, trainer_gpus(spec.verl))
        taken = estimates.utilization(spec.verl) * card
    except UserError:  # the launch has no such sizes
        return spec, []
    if taken + stays <= card:
        return spec, []
    of = f"of a GPU's {card:.0f}" if here else f"of the {card:.0f} of an {cards.DEFAULT}, which is assumed"
    return replace(spec, offloads=True), [
        f"param_offload, optimizer_offload = True for every model of the trainer: {stays:.0f} GiB of them do"
        f" not fit beside an engine's {taken:.0f} GiB, {of}"
    ]


def machines(device: str, nodes: int) -> int:
    """Return the number of machines on which the run's processes may be; on a CPU they are on one.

    Ray may place a run of one machine on any of a user's cluster, other than the command's.
    """
    return 1 if device == "cpu" else max(nodes, machines_here())


def check(spec: RunSpec) -> None:
    """Raise UserError for several explorers, and for what does not fit the mode or the style of weights.

    NCCL takes each device only once.
    """
    if spec.handover == "device" and (why := _not_on_devices(spec)):
        needed = "write --mode colocate, or " if spec.mode == "both" else ""
        raise UserError(
            f"{SETTINGS['handover'].key}=device: {why}", hint=f"{needed}leave it out: files do it"
        )
    if spec.stale_cache and (why := _no_stale_cache(spec)):
        raise UserError(f"{SETTINGS['stale_cache'].key}=True has no effect: {why}", hint="leave it out")
    if spec.mode != "colocate":
        return
    nodes = machines(spec.device, value_at(spec.verl, "trainer.nnodes"))
    if spec.explorers > 1:
        raise UserError(
            "mode colocate shares the devices between the trainer and one explorer",
            hint="leave out --explorers",
        )
    if spec.sync.method == "nccl":
        raise UserError(
            "synchronizer.sync_method=nccl: mode colocate has both sides on one device, which NCCL refuses",
            hint=f"write {_METHOD}={'memory' if nodes == 1 else 'checkpoint'}",
        )
    if spec.sync.method == "memory" and nodes > 1:
        raise UserError(
            f"{_METHOD}=memory: {_unfit(spec.sync, nodes)}",
            hint=f"write {_METHOD}=checkpoint, with a job folder that every machine sees (--job DIR)",
        )
    if spec.replay and spec.replay.max_uses > 1:  # the trainer would never have to give the device away
        raise UserError(
            "mode colocate: a trainer that trains groups again never frees the device for the explorer",
            hint="leave out the replay buffer's reuse_cooldown_time, or give each side a device of its own",
        )
