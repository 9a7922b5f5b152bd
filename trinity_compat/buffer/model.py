"""What lies in the buffer: groups of experiences, weight versions, claims.

Units: ``step`` is a veRL step (one train batch) counted from 1; a model version is the step after
which its weights were published (0: the initial weights). Trinity's YAML counts optimizer updates;
the conversion is in ``spec`` and ``runtime``, nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity_compat.job.answer_info import run_of

# In the metrics of an answer that a pipeline's operator dropped from a group of which others are trained: it
# keeps its tokens and reward, and the trainer leaves it out of the loss and of its group's baseline.
DROPPED = "experience_pipeline/dropped"
DROPPED_KIND = "dropped"  # of groups that are not trained at all


@dataclass(frozen=True, slots=True)
class Experience:
    """One response to one prompt, of P prompt and R response tokens.

    ``prompt_ids`` int32 [P]; ``response_ids`` int32 [R]; ``response_mask`` uint8 [R], 1 where the
    policy wrote the token (0: tool output); ``logprobs`` float32 [R], the rollout engine's.
    ``min_model_version`` ≤ ``max_model_version``: the weights that took part in generating it.
    Arrays that the store hands out are read-only.
    """

    run: int  # its place inside the group, from 0
    prompt_ids: npt.NDArray[np.int32]
    response_ids: npt.NDArray[np.int32]
    response_mask: npt.NDArray[np.uint8]
    logprobs: npt.NDArray[np.float32]
    reward: float
    min_model_version: int
    max_model_version: int
    prompt_text: str = ""
    response_text: str = ""
    num_turns: int = 2
    metrics: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)  # reward_extra_info; JSON only


@dataclass(frozen=True, slots=True)
class Group:
    """All n responses to one task: written in one transaction, claimed and trained whole.

    A response of several steps that are not one sequence is several experiences, whose ``info`` says so.

    ``key`` makes writing idempotent: the same key twice stores one group.
    ``task`` is the veRL dataset row: raw_prompt, data_source, reward_model, extra_info, index, …; JSON, and
    ``Media`` where it holds images or bytes. A claim gives them back; other readings name them only.
    """

    key: str
    task_no: int  # position in the task stream, from 0
    task: Mapping[str, Any]
    explorer_step: int  # the train batch that it was made for, from 1
    experiences: tuple[Experience, ...]
    # "train", "eval:<request id>", DROPPED_KIND, or "expert": a row of a file, task_no its place
    kind: str = "train"
    priority: float = 0.0
    group_id: int | None = None  # set by the store
    uses: int = 0  # how often it was trained before; set by the store

    @property
    def runs(self) -> int:
        """How many responses it has."""
        return len({run_of(part.info, place) for place, part in enumerate(self.experiences)})


@dataclass(frozen=True, slots=True)
class Claim:
    """Groups leased to one trainer step. ``token`` fences: a later claim of the same groups wins."""

    token: int
    owner: str
    step: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who takes tasks: the explorer's ``place`` among several; ``token`` changes with each start."""

    place: int
    token: str


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Tasks below ``upto`` that ``holder`` may take: of the training stream, or (``kind`` draw:STEP) of a
    drawing that begins at ``first``. With ``by_place`` (the number of explorers) a task belongs to place
    ``number mod by_place``, and to anybody while nobody has that place. ``have``: what the holder knows that
    it has; ``again``: what it holds, has ended unfinished, and will make anew. Other tasks that it holds (an
    answer that never arrived gave them) are given to it again by its own next full look."""

    holder: LeaseHolder
    upto: int
    kind: str = "train"
    first: int = 0
    by_place: int = 0
    have: Set[int] = frozenset()
    again: Set[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PendingTasks:
    """``stored``: tasks of the training stream that have a group.

    ``others``: how many are under way elsewhere, by the version of the weights with which they were taken.
    """

    stored: int
    others: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published policy: ``version`` (veRL step), where it lies, and how to check it."""

    version: int
    path: str
    digest: str
    nbytes: int
    method: str = "memory"  # checkpoint | memory | nccl


@dataclass(frozen=True, slots=True)
class Participant:
    """A process that takes part in the job.

    ``age_s``: seconds since its last heartbeat, ``beat_at``, as the database's clock has it: right for
    people, wrong for a moment when that clock is set (``sight``).
    """

    role: str  # trainer | explorer | supervisor
    name: str
    pid: int
    host: str
    state: str  # starting | running | waiting | done | failed | stopped
    age_s: float
    detail: Mapping[str, object] = field(default_factory=dict)
    beat_at: float = 0.0


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """Validation that the trainer asks of the explorer, with the weights of ``version``."""

    request_id: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class BufferState:
    """What an explorer looks at again and again: the current history, whether the run is marked as finished,
    the oldest evaluation that is not done, the newest weights."""

    history: int
    finished: bool
    evaluation: EvalRequest | None
    latest: WeightVersion | None


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """What a resume did: ``history`` is the new history's id; counts are groups."""

    history: int
    ready_again: int
    voided: int
    kept: int
