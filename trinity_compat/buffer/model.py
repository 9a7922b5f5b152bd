"""Records of the buffer: groups of experiences, weight versions, claims.

Units: ``step`` is a veRL step (one train batch) counted from 1; a model version is the step after
which its weights were published (0: the initial weights). Trinity's YAML counts optimizer updates;
the conversion is in translate and run/plan, nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity_compat.job.answer_info import run_of

# Metric of an answer that a pipeline's operator dropped from a group whose other answers are trained. The
# answer keeps its tokens and reward; the trainer leaves it out of the loss and of its group's baseline.
DROPPED = "experience_pipeline/dropped"
TRUNCATED = "response/truncated"  # metric of an answer that was cut
DROPPED_KIND = "dropped"  # kind of groups that are not trained at all


@dataclass(frozen=True, slots=True)
class Experience:
    """One response to one prompt, of P prompt and R response tokens.

    ``prompt_ids`` int32 [P]; ``response_ids`` int32 [R]; ``response_mask`` uint8 [R], 1 where the
    policy wrote the token (0: tool output); ``logprobs`` float32 [R], the rollout engine's.
    ``teacher_logprobs`` float32 [R, K], where a teacher was asked: for each response token the teacher's
    log-probabilities of its K most likely tokens, ``teacher_ids`` int32 [R, K], the most likely first.
    Without ``teacher_ids`` K is 1, and they are the log-probabilities of the response's own tokens.
    ``min_model_version`` ≤ ``max_model_version``: the weights that generated it.
    Arrays that the store returns are read-only.
    """

    run: int  # position inside the group, from 0
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
    teacher_ids: npt.NDArray[np.int32] | None = None
    teacher_logprobs: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of a response's R tokens by the trainer's policy before an update, float32 [R] each."""

    group_id: int
    run: int
    logprobs: npt.NDArray[np.float32]
    entropies: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Group:
    """All n responses to one task: written in one transaction, claimed and trained whole.

    A response of several steps that are not one sequence is several experiences; their ``info`` joins them.

    ``key`` makes writing idempotent: the same key twice stores one group.
    ``task`` is the veRL dataset row: raw_prompt, data_source, reward_model, extra_info, index, …; JSON, and
    ``Media`` where it holds images or bytes. A claim returns their content, other reads only their digests.
    """

    key: str
    task_no: int  # position in the task stream, from 0
    task: Mapping[str, Any]
    explorer_step: int  # the train batch for which it was sampled, from 1
    experiences: tuple[Experience, ...]
    # "train", "eval:<request id>", DROPPED_KIND, or "expert": a row of a file, task_no its position
    kind: str = "train"
    priority: float = 0.0
    group_id: int | None = None  # set by the store
    uses: int = 0  # earlier uses in training; set by the store

    @property
    def runs(self) -> int:
        """Number of responses."""
        return len({run_of(part.info, place) for place, part in enumerate(self.experiences)})


@dataclass(frozen=True, slots=True)
class Claim:
    """Groups leased to one trainer step.

    ``token`` is a fencing token: a later claim of the same groups wins.
    """

    token: int
    owner: str
    step: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """An explorer that leases tasks: its ``place`` among several, and a ``token`` new with each start."""

    place: int
    token: str


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Query for tasks below ``upto`` that ``holder`` may take.

    ``kind``: the training stream, or (draw:STEP) a drawing that begins at ``first``. With ``by_place`` (the
    number of explorers) a task belongs to place ``number mod by_place``, and to every explorer while that
    place has no holder. ``have``: tasks that the holder knows to hold; ``again``: tasks of these that it has
    cancelled and will sample again. Tasks that it holds without knowing (the response to its request was
    lost) are returned to it by its next full scan.
    """

    holder: LeaseHolder
    upto: int
    kind: str = "train"
    first: int = 0
    by_place: int = 0
    have: Set[int] = frozenset()
    again: Set[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PendingTasks:
    """Progress of the training stream, beside one holder's own tasks.

    ``stored``: number of tasks that have a group; ``others``: number of tasks leased by other holders, by the
    version of the weights under which they were leased.
    """

    stored: int
    others: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """A published policy: ``version`` (veRL step), its path, and its digest and size for a check."""

    version: int
    path: str
    digest: str
    nbytes: int
    method: str = "memory"  # checkpoint | memory | nccl | device


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version as an engine's ``worker`` has loaded it.

    ``received``: the version's digest as computed there; ``held``: digest of the worker's own tensors after
    loading, "" where none was taken, and comparable where its first 16 digits are; ``proof``: what it proves.
    """

    version: int
    worker: str
    received: str
    held: str
    proof: str


@dataclass(frozen=True, slots=True)
class Participant:
    """A process that takes part in the job.

    ``age_s``: seconds since its last heartbeat, ``beat_at``, by the database's clock. Good enough to display;
    to judge liveness use ``SilenceDetector``, which tolerates that this clock is set.
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
    """Validation with the weights of ``version``, requested by the trainer from the explorer."""

    request_id: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class BufferState:
    """State that an explorer polls.

    The current history, the mark of a finished run, the oldest open evaluation, the newest weights.
    """

    history: int
    finished: bool
    evaluation: EvalRequest | None
    latest: WeightVersion | None


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """Effect of a resume: the new history's id, and numbers of groups."""

    history: int
    ready_again: int
    voided: int
    kept: int
