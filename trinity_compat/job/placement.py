"""Placement of engines and training processes by Ray, and reports while it is pending.

veRL's trainer asks for whole machines: a placement group for each of its nodes, all on one machine
(STRICT_PACK), three CPUs beside each GPU. Engines that took single GPUs anywhere could leave it none, so each
engine gets a group of its own on a machine that the trainer can spare.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from trinity_compat.job.run_spec import RunSpec

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

CPUS_PER_GPU = 3  # max_colocate_count of verl 0.9.1's ResourcePoolManager
ENGINES = "trinity_compat_engines"
USERS_RAY = "TRINITY_COMPAT_USERS_RAY"  # the supervisor's word that Ray is not the run's own
TRAINER = "verl_group"  # in the names that verl 0.9.1's RayResourcePool gives
PENDING_S = 60.0
_LOOK_S = 5.0
_SETTLE_S = 10
_SPARE_CPUS = 8  # for tasks and actors that belong to no group


class _Group(TypedDict):
    """The fields that are read of a row of Ray's placement_group_table."""

    name: str
    state: str
    bundles: dict[int, dict[str, float]]
    bundles_to_node_id: dict[int, str]


def cpus_for(spec: RunSpec) -> int:
    """Return the CPU slots that a Ray of the run's own needs: slots of placement groups, not cores."""
    trainer = spec.verl["trainer"]
    processes = int(trainer["nnodes"]) * int(trainer["n_gpus_per_node"])
    queue = 1 + int(trainer["nnodes"]) if spec.trainer == "v1" else 0  # TransferQueue
    return processes * (CPUS_PER_GPU if spec.device != "cpu" else 1) + queue + _SPARE_CPUS


def follows_trainer(spec: RunSpec) -> bool:
    """Return whether engines in turns look up the devices that Ray gives the trainer, which is placed first.

    On one machine with a Ray of the run's own all GPUs are the run's. Elsewhere Ray chooses among machines,
    and among GPUs of which others may have some.
    """
    chosen = int(spec.verl["trainer"]["nnodes"]) > 1 or USERS_RAY in os.environ
    return spec.mode == "colocate" and spec.device != "cpu" and chosen


def engine_nodes(
    gpus: Mapping[str, float], trainer: tuple[int, int], engines: int, width: int
) -> list[str] | None:
    """Choose a machine for each engine such that the trainer still fits; None where it does not.

    Each of ``engines`` needs ``width`` GPUs on one machine, the ``trainer`` (nodes, GPUs of each) whole
    nodes. ``gpus``: all GPUs by machine. The choice is the same for the same machines, so that explorers
    choose without communicating. Each takes the machine with the least room that suffices.
    """
    free = dict(gpus)
    try:
        taken = set[str]()
        for _ in range(trainer[0]):
            taken.add(node := _tightest({name: free[name] for name in free.keys() - taken}, trainer[1]))
            free[node] -= trainer[1]
        chosen = []
        for _ in range(engines):
            chosen.append(_tightest(free, width))
            free[chosen[-1]] -= width
    except LookupError:
        return None
    return chosen


def _tightest(free: Mapping[str, float], wanted: int) -> str:
    fits = {name: room for name, room in free.items() if room >= wanted}
    if not fits:
        raise LookupError
    return min(fits, key=lambda name: (fits[name], name))


def gpus_by_node() -> tuple[dict[str, float], bool]:
    """Return the GPUs of each living machine by node id, and whether the trainer is placed already.

    The GPUs of a placed trainer are not among them. Of the Ray that this process has joined.
    """
    import ray

    every = ((node["NodeID"], node["Resources"].get("GPU", 0.0)) for node in ray.nodes() if node["Alive"])
    room, placed = {node: gpus for node, gpus in every if gpus}, False
    for group in _groups(TRAINER, "CREATED"):
        placed = True
        for index, bundle in group["bundles"].items():
            if (node := group["bundles_to_node_id"][index]) in room:  # else it is lost
                room[node] -= bundle.get("GPU", 0.0)
    return room, placed


def place_engine(width: int, node: str | None) -> PlacementGroup:
    """Create a placement group for one engine, on ``node`` if that is given and still has room."""
    from ray.util import remove_placement_group

    group = _engine_group(width, node)
    if node and not group.wait(_SETTLE_S):  # the trainer was faster, or somebody else
        remove_placement_group(group)
        return _engine_group(width, None)
    return group


def _engine_group(width: int, node: str | None) -> PlacementGroup:
    from ray.util import placement_group

    where = {"bundle_label_selector": [{"ray.io/node-id": node}]} if node else {}
    name = f"{ENGINES}_{uuid.uuid4().hex}"  # Ray refuses a name that it knows
    return placement_group([{"GPU": width}], strategy="STRICT_PACK", name=name, **where)


def tag_of(job_dir: str) -> str:
    """Return the part of a name by which the groups of one run are found on a shared cluster."""
    return f"tc_{hashlib.sha256(job_dir.encode()).hexdigest()[:12]}_"


def trainer_groups(tag: str) -> dict[str, _Group]:
    """Return the placed groups of the trainer of the run ``tag``, by id."""
    from ray.util import placement_group_table

    groups: Mapping[str, _Group] = placement_group_table()
    return {
        identity: group
        for identity, group in groups.items()
        if tag in group["name"] and TRAINER in group["name"] and group["state"] == "CREATED"
    }


def waiting(name: str) -> str:
    """Describe the groups named ``name`` that Ray has not placed, and the free resources; "" for none."""
    pending = _groups(name, "PENDING", "RESCHEDULING")
    if not pending:
        return ""
    wanted = ", ".join(sorted({_wanted(list(group["bundles"].values())) for group in pending}))
    return f"waits for Ray to place {len(pending)} × ({wanted}); free: {'; '.join(_free())}"


def _groups(name: str, *states: str) -> list[_Group]:
    from ray.util import placement_group_table

    groups: Iterable[_Group] = placement_group_table().values()
    return [group for group in groups if name in group["name"] and group["state"] in states]


def _wanted(bundles: Sequence[Mapping[str, float]]) -> str:
    each = " + ".join(f"{amount:g} {what}" for what, amount in sorted(bundles[0].items()))
    return f"{len(bundles)} × {each} on one machine" if len(bundles) > 1 else each


def _free() -> Iterator[str]:
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    for node in ray.nodes():
        if node["Alive"]:
            has, now = node["Resources"], free.get(node["NodeID"], {})
            parts = (f"{now.get(what, 0):g} of {has.get(what, 0):g} {what}" for what in ("GPU", "CPU"))
            yield f"{node['NodeManagerAddress']} {', '.join(parts)}"


@contextmanager
def report_when_pending(
    name: str, tell: Callable[[str], None], *, after_s: float = PENDING_S
) -> Iterator[None]:
    """Report through ``tell`` while groups stay pending for longer than ``after_s``.

    Called when the report changes, and with "" once nothing is pending.
    """
    over = threading.Event()

    def look() -> None:
        since, reported = time.monotonic(), ""
        while not over.wait(min(_LOOK_S, after_s)):
            try:
                found = waiting(name)
            except Exception:  # Ray is on its way out, and whoever waits for it says so
                continue
            since = since if found else time.monotonic()
            report = found if time.monotonic() - since >= after_s else ""
            if report != reported:
                tell(report)
            reported = report

    thread = threading.Thread(target=look, name="placement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10.0)
