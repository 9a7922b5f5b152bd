"""What the engine's process and those of its agent loops say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.engine.vllm import Completion, GenerationRequest


class AgentLoopFailed(Exception):
    """The loop or a tool raised, or ended its process; the text says all."""


@dataclass(frozen=True, slots=True)
class AgentProcessSetup:
    """``config``: veRL's, composed; ``limit_s`` as in AgentLoops, of a workflow for its group; ``ray``: the
    cluster of the engine. ``workflows``: it runs those of ``plugins`` (as TRINITY_PLUGIN_DIRS has them), and
    veRL's agent loops else; ``auxiliary`` as in UserWorkflows."""

    config: Any
    limit_s: float | None
    cwd: str
    ray: str | None
    workflows: bool = False
    plugins: str = ""
    auxiliary: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AgentProcessReady:
    """First word of a process. ``broken``: why it can run nothing."""

    broken: str = ""


@dataclass(frozen=True, slots=True)
class MakeGroup:
    """To the process: make a group. ``version``: the weights that are in place."""

    number: int
    job: RolloutTask
    version: int = 0


@dataclass(frozen=True, slots=True)
class StopGroup:
    """To the process: nobody wants group ``number`` any more."""

    number: int


@dataclass(frozen=True, slots=True)
class GroupMade:
    """From the process: a group's trajectories, or what its loop or a tool raised.

    ``spoilt``: it may have left a thread behind that computes for ever.
    """

    number: int
    parts: Sequence[Trajectory] = ()
    error: str = ""
    spoilt: bool = False


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """From the process: one more answer of group ``number`` is there, its place on the engine is free."""

    number: int


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """From the process: a request to the engine, by a loop of group ``run``."""

    number: int
    run: int
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """From the process: nobody waits for the answer to ``Ask`` ``number`` any more."""

    number: int


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """To the process: the answer to an ``Ask``.

    Neither parts nor error: it was cut off by a change of weights, and is to be asked again.
    """

    number: int
    parts: Sequence[Completion] | None = None
    error: str = ""
