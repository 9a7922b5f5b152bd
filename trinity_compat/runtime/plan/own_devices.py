"""Engines on GPUs of their own, where the launch's veRL has them beside the trainer: the memory that they may
take, and how long a device of either side has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trinity_compat.dotted import value_at
from trinity_compat.gpus import Side, shares
from trinity_compat.runtime.plan.split import unproven
from trinity_compat.runtime.plan.verl_view import ROLLOUT, Step, VerlView
from trinity_compat.spec import Mode, RunSpec

MEMORY = f"{ROLLOUT}.gpu_memory_utilization"
YAML_MEMORY = "explorer.rollout_model.gpu_memory_utilization"
# What 28 of the 30 public launches say whose rollout has GPUs of its own under veRL, those of
# one_step_off_policy and fully_async_policy (tests/facts); of main_ppo's two thirds say less.
STANDALONE = 0.8


def memory_raised(verl: VerlView, launch: VerlView, *, mode: Mode) -> Step:
    """The engines' part of their devices, at least what veRL's engines take of devices of their own.
    ``launch``: the configuration before its GPUs were split. As it is where that has GPUs for its rollout, or
    one GPU in all, which commands of their own may share."""
    given = value_at(verl.tree, MEMORY)
    apart = mode == "both" or (mode == "explore" and launch.trainer.gpus > 1)
    if not apart or launch.rollout.nodes or not isinstance(given, int | float) or given >= STANDALONE:
        return verl, []
    told = f"{MEMORY} = {STANDALONE}: {given} leaves room for a trainer, which is on other GPUs here"
    return verl.changed({MEMORY: STANDALONE}), [f"{told}; --set {MEMORY}={given} keeps it"]


def idle(spec: RunSpec, *, machines: int) -> Iterator[str]:
    """Of a run whose two sides work in turns though each has GPUs of its own: how much of the GPUs' time
    passes idle, and what to write instead. ``machines``: those of the launch."""
    found = shares(spec.verl, device=spec.device, mode=spec.mode, explorers=spec.explorers)
    ways = [
        f"`--set synchronizer.sync_offset={spec.updates_per_step}` overlaps them, with weights one veRL step"
        " older"
    ]
    if spec.explorers == 1 and found.keys() == {"trainer", "explorer"}:
        untried = unproven(sum(found.values()), machines)
        ways.append(f"`--mode colocate` gives all GPUs to both in turns ({untried})")
    yield (
        "every step waits for the weights of the one before it, so each side's GPUs are idle while the other"
        f" side works, {_idle_share(found)} of all GPU time; {'; '.join(ways)}"
    )


def _idle_share(found: Mapping[Side, int]) -> str:
    """Whichever side works, the other's GPUs don't: with equal shares a half, however long each takes. What
    scores answers works with those who make them."""
    every = sum(found.values())
    low, high = sorted(round(100 * part / every) for part in (found["trainer"], every - found["trainer"]))
    return f"{low} %" if low == high else f"{low} to {high} %"
