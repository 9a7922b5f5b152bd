"""Engines on dedicated GPUs, where the launch's veRL runs them beside the trainer.

Computes the share of memory that they may take, and how long devices of either side are idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trinity_compat.common.nested import value_at
from trinity_compat.job.gpus import Side, shares
from trinity_compat.job.run_spec import Mode, RunSpec
from trinity_compat.run.plan.gpu_split import unproven
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate.sections.gpus import ENGINE_MEMORY

MEMORY, YAML_MEMORY = ENGINE_MEMORY.key, ENGINE_MEMORY.path


def default_memory(verl: VerlView, launch: VerlView, written: float, *, mode: Mode) -> Step:
    """Set the engines' share of memory where the launch sets none.

    Engines on dedicated GPUs get ``written``, the default of translate. veRL's default holds where the sides
    share devices: in turns, or on one GPU that several commands may share. ``launch`` is the configuration
    before its GPUs were split.
    """
    apart = mode == "both" or (mode == "explore" and launch.trainer.gpus > 1)
    if apart:
        return verl.changed({MEMORY: written}), []
    kept = value_at(verl.tree, MEMORY)
    return verl, [f"{MEMORY} = {kept}: both sides use the same GPUs; {YAML_MEMORY}={written} is for a split"]


def idle(spec: RunSpec, *, machines: int) -> Iterator[str]:
    """Notes for a run whose sides alternate though each has GPUs of its own.

    They name the part of GPU time that is idle, and a better setting. ``machines``: the launch's.
    """
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
    """Whichever side works, the other's GPUs don't: with equal shares a half, however long each takes.

    What scores answers works with those who make them.
    """
    every = sum(found.values())
    low, high = sorted(round(100 * part / every) for part in (found["trainer"], every - found["trainer"]))
    return f"{low} %" if low == high else f"{low} to {high} %"
