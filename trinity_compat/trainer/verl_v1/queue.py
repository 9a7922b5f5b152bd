"""TransferQueue, through which veRL's v1 trainer and its workers exchange the rows of a step.

It holds the rows of the step that is trained, from their claim until the step is logged, and ends with this
process: nothing of it is saved or restored. TransferQueue 0.1.11.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
import transfer_queue
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from transfer_queue import interface
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from trinity_compat.common.errors import RunError, UserError

_CONTROLLER, _NAMESPACE = "TransferQueueController", "transfer_queue"
_LEAVES_S = 30.0  # an actor outlives its driver by this at most, when that was killed
_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of a partition: its key (``UID_SESSION_INDEX``), its columns, and the tag veRL counts it by."""

    key: str
    fields: dict[str, Any]
    tag: dict[str, Any]


@contextmanager
def opened(config: DictConfig, died: Callable[[str, RayActorError], object]) -> Iterator[None]:
    """Start TransferQueue for this process and its workers, and end it.

    ``died`` is called, in another thread, when one of its processes has died: calls to it then wait for ever.
    Raises UserError where another process has one on this Ray: its name is Ray's, so that both would share
    one partition, and the first to end would end the other's.
    """
    until = time.monotonic() + _LEAVES_S
    while _exists():
        if time.monotonic() > until:
            raise UserError(
                "trinity_compat.trainer=v1: another run on this Ray trains with veRL's v1, and a Ray has one"
                " TransferQueue: each would take the other's rows",
                hint="wait for its end, unset RAY_ADDRESS to give this run a Ray of its own,"
                " or write trinity_compat.trainer=v0",
            )
        time.sleep(0.5)
    transfer_queue.init(config.transfer_queue)
    actors = {"controller": interface._TQ_CONTROLLER, **interface._TQ_STORAGE["SimpleStorage"]}
    over = threading.Event()
    threading.Thread(target=_watch, args=(actors, died, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        transfer_queue.close()


def _watch(
    actors: Mapping[str, Any], died: Callable[[str, RayActorError], object], over: threading.Event
) -> None:
    while not over.wait(_LOOK_S):
        asked = {actor.__ray_call__.remote(_nothing): name for name, actor in actors.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S)
        for answer in answered:
            try:
                ray.get(answer)
            except RayActorError as error:
                if not over.is_set():
                    died(f"TransferQueue's {asked[answer]} has died", error)
                return


def _nothing(_: object) -> None:
    return


def _exists() -> bool:
    with suppress(ValueError):
        ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
        return True
    return False


def put(rows: Sequence[QueueRow], partition: str) -> transfer_queue.KVBatchMeta:
    """Store rows of the same columns; returns their keys and tags as the trainer passes them on.

    Raises RunError for rows of unlike columns: TransferQueue leaves a column out of every answer that any of
    the rows lacks.
    """
    columns = rows[0].fields.keys()
    for row in rows:
        if unlike := row.fields.keys() ^ columns:
            raise RunError(f"the rows of a batch differ in their columns: {', '.join(sorted(unlike))}")
    keys, tags = [row.key for row in rows], [row.tag for row in rows]
    transfer_queue.kv_batch_put(
        keys=keys,
        partition_id=partition,
        fields=list_of_dict_to_tensordict([row.fields for row in rows]),
        tags=tags,
    )
    return transfer_queue.KVBatchMeta(partition_id=partition, keys=keys, tags=tags)


def check_empty() -> None:
    """Raise RunError where a row is left: at a checkpoint the database alone has the run's rows."""
    left = sum(len(rows) for rows in (transfer_queue.kv_list() or {}).values())
    if left:
        raise RunError(
            f"rows are left in TransferQueue after their step ({left}): no checkpoint is published"
        )


def clear(keys: Sequence[str], partition: str) -> None:
    """Remove rows."""
    transfer_queue.kv_clear(keys=list(keys), partition_id=partition)
