"""Machines that vanish from the Ray of a run: preempted, broken or cut off.

A side ends with MACHINE_LOST for it, and is started again without a restart of ``--restarts``: each machine
is lost once. A process of Ray's may fail before Ray has noticed the loss, in NCCL for one; so Ray is asked
for a while, where its error does not say that it knows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from trinity_compat.common.errors import RunError, UserError

MACHINE_LOST = 4  # exit code
_KNOWN_S, _UNKNOWN_S = 5.0, 60.0  # for Ray's own word; it asks a machine for a minute
_LOOK_S = 0.5


class MachineLost(RunError):
    """The end of a side whose processes were on a machine that has vanished."""


@contextmanager
def watched() -> Iterator[None]:
    """Raise MachineLost for an error of Ray's that a vanished machine explains. Enter after joining Ray."""
    before = living()
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if gone := lost(before, error):
            raise MachineLost(gone) from error
        raise


def living() -> list[str]:
    """Return the machines of the Ray that this process has joined."""
    return [node for node, _ in _nodes(alive=True)]


def lost(nodes: Collection[str], error: BaseException) -> str:
    """Name the machines of ``nodes`` that Ray has lost; "" if none, or if ``error`` is none of Ray's."""
    from ray.exceptions import ActorDiedError, RayError

    causes = list(_causes(error))
    if not any(isinstance(each, RayError) for each in causes):
        return ""
    knows = any(isinstance(each, ActorDiedError) for each in causes)
    until = time.monotonic() + (_KNOWN_S if knows else _UNKNOWN_S)
    gone = list[str]()
    with suppress(Exception):  # Ray itself is gone, and the supervisor says so
        several = len(living()) > 1
        while not (gone := [address for node, address in _nodes(alive=False) if node in nodes]):
            if not several or time.monotonic() > until:
                break
            time.sleep(_LOOK_S)
    return f"Ray has lost the machine {', '.join(gone)}" if gone else ""


def _nodes(*, alive: bool) -> list[tuple[str, str]]:
    import ray

    return [(node["NodeID"], node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"] is alive]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
