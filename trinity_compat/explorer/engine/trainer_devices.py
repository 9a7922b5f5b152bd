"""The devices that Ray gives a trainer, for engines that use them in turns with it.

veRL's trainer has a placement group for each of its machines, with a bundle for each of its GPUs
(``RayResourcePool``, verl 0.9.1). Ray chooses the machines, and the GPU of each bundle: a task in each bundle
reports it. The trainer places its processes before its first turn (``trainer/training_processes.py``), under
a name with the run's tag.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trinity_compat.common.errors import RunError
from trinity_compat.job import placement

_POLL_S = 0.5
_NO_SHARE = 0.0001  # the least that Ray counts: a trainer's processes leave this much of their GPU


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs of one machine, by its id in Ray: all of a trainer's there, or an engine's part of them."""

    node: str
    numbers: tuple[str, ...]

    def options(self) -> dict[str, Any]:
        """Return Ray's options for an actor that finds these GPUs by its environment."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"num_gpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node, soft=False)}


def environment(numbers: Sequence[str]) -> dict[str, str]:
    """Return the variables by which an actor without GPUs in Ray sees those of ``numbers``."""
    return {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "CUDA_VISIBLE_DEVICES": ",".join(numbers)}


def engines_on(machines: Sequence[Devices], width: int) -> list[Devices]:
    """Return the devices of each engine of ``width``: whole engines, each on one machine, in order."""
    return [
        Devices(each.node, each.numbers[first : first + width])
        for each in machines
        for first in range(0, len(each.numbers) - width + 1, width)
    ]


async def wait_for_devices(
    tag: str, processes: int, check: Callable[[], None], *, limit_s: float
) -> Sequence[Devices]:
    """Return the devices of run ``tag``'s trainer, once all of its ``processes`` are placed.

    Raises RunError after ``limit_s`` seconds, and what ``check`` raises.
    """
    until = time.monotonic() + limit_s
    while len(places := await asyncio.to_thread(_places, tag)) < processes:
        check()
        if time.monotonic() > until:
            status = placement.waiting(tag) or f"{len(places)} of {processes} are there"
            raise RunError(f"the trainer has no place for all of its processes after {limit_s:g} s: {status}")
        await asyncio.sleep(_POLL_S)
    return await asyncio.to_thread(_devices, places)


def _places(tag: str) -> list[tuple[str, int]]:
    """Return (placement group's id, bundle) of each process of the trainer that Ray has placed."""
    return [
        (identity, bundle)
        for identity, group in sorted(placement.trainer_groups(tag).items())
        for bundle in sorted(group["bundles"])
    ]


def _devices(places: Sequence[tuple[str, int]]) -> list[Devices]:
    """Run a task in each place to read its device; return each machine's devices in order."""
    import ray

    task, share = ray.remote(_own_device), {"num_cpus": 0, "num_gpus": _NO_SHARE}
    tasks = [task.options(scheduling_strategy=_in_bundle(*place), **share).remote() for place in places]
    devices: list[tuple[str, str]] = ray.get(tasks)
    ordered = sorted(devices, key=lambda pair: (pair[0], len(pair[1]), pair[1]))  # 9 before 10
    by_node = groupby(ordered, key=lambda pair: pair[0])
    return [Devices(node, tuple(number for _, number in pairs)) for node, pairs in by_node]


def _own_device() -> tuple[str, str]:
    """Return (machine, GPU) of the bundle that this runs in."""
    import ray

    context = ray.get_runtime_context()
    return context.get_node_id(), str(context.get_accelerator_ids()["GPU"][0])


def _in_bundle(identity: str, bundle: int) -> Any:
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = PlacementGroup(PlacementGroupID(bytes.fromhex(identity)))
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
