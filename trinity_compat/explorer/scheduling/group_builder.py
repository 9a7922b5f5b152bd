"""Builder of groups: rollouts by the workers, scores by the scorer and teachers' rows, concurrently."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from trinity_compat.buffer.model import TRUNCATED, Experience, Group, WeightVersion
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask, Trajectory
from trinity_compat.explorer.rewards.processes.pool import ScoringPool
from trinity_compat.explorer.rewards.scoring import Score, failure_metrics, name_task
from trinity_compat.explorer.rollout.worker_group import RolloutWorkers
from trinity_compat.explorer.scheduling.step_work import StepWork
from trinity_compat.explorer.scheduling.texts import TextDecoder
from trinity_compat.explorer.teachers.client import TeacherClient
from trinity_compat.explorer.teachers.media import PromptMedia
from trinity_compat.explorer.teachers.wire import TeacherRows
from trinity_compat.job.run_spec import OnAgentFailure

_log = logging.getLogger(__name__)

TEACHER_S = "teacher/seconds"  # in an experience's metrics: its request, waiting included
IN_A_ROW = 16  # consecutive failures before aborting: the agent loop, or a tool, is broken


class Taught(NamedTuple):
    """A teacher's rows of an answer, and how long they took."""

    rows: TeacherRows
    seconds: float


class GroupBuilder:
    """Builds the groups of work that the scheduler gives out.

    ``retries``: how often a failed rollout is retried before the run ends, or goes on without it
    (``agent_failure``, for agent loops). ``placeholders``: as ``TextDecoder``'s. ``teachers``: give rows of
    log-probabilities for answers to train on.
    """

    def __init__(
        self,
        workers: RolloutWorkers,
        scorer: ScoringPool,
        tokenizer: Any,
        *,
        retries: int = 2,
        placeholders: Sequence[int] = (),
        agent_failure: OnAgentFailure = "raise",
        teachers: TeacherClient | None = None,
    ) -> None:
        self._workers, self._scorer = workers, scorer
        self._decoder = TextDecoder(tokenizer, placeholders)
        self._retries = retries
        self._goes_on = agent_failure == "zero"
        self._teachers = teachers
        self._in_a_row = 0

    async def load(self, version: WeightVersion) -> None:
        """Load a version into every worker."""
        await self._workers.load(version)

    def room(self) -> int:
        """Return the number of answers that the workers could begin now."""
        return self._workers.room()

    async def groups(self, work: StepWork, version: int, history: int) -> AsyncIterator[Group]:
        """Yield complete groups in the order in which they are scored.

        Raises RunError when an engine answered with weights older than ``version``.
        """
        jobs = {job.task_no: job for job in work.jobs}
        scoring: list[asyncio.Future[Group]] = []
        failed: list[asyncio.Future[Group]] = []

        def note_failure(done: asyncio.Future[Group]) -> None:
            if not done.cancelled() and done.exception():
                failed.append(done)

        try:
            async for rollout in self._rollouts(jobs):
                job = jobs[rollout.task_no]
                group = self._score(work, job, rollout, version, history)
                scoring.append(asyncio.ensure_future(group))
                scoring[-1].add_done_callback(note_failure)
                if failed:  # a reward function that raises ends the step now, not after its last rollout
                    failed[0].result()
            for finished in asyncio.as_completed(scoring):
                yield await finished
        finally:
            for future in scoring:
                future.cancel()

    async def _rollouts(self, jobs: Mapping[int, RolloutTask]) -> AsyncIterator[RolloutResult]:
        """Yield rollouts; retry failed tasks. A task that keeps failing ends the run, or is counted."""
        todo: Sequence[RolloutTask] = list(jobs.values())
        for attempt in range(1, self._retries + 2):
            failed: list[RolloutResult] = []
            async for rollout in self._workers.run(todo):
                if not rollout.error:
                    self._in_a_row = 0
                    yield rollout
                    continue
                job = jobs[rollout.task_no]
                if rollout.hopeless or attempt > self._retries:
                    error = rollout_failed(rollout, job, attempt)
                    self._in_a_row += 1
                    if rollout.instead is None or not self._goes_on or self._in_a_row >= IN_A_ROW:
                        raise error
                    _log.warning("%s; goes on with empty answers, scored 0", error)
                    yield RolloutResult(rollout.task_no, (rollout.instead,) * job.answers)
                else:
                    failed.append(rollout)
            if not failed:
                return
            todo = [jobs[rollout.task_no] for rollout in failed]
            _log.warning("%d rollouts failed (attempt %d): %s", len(failed), attempt, failed[0].error)

    async def _score(
        self, work: StepWork, job: RolloutTask, rollout: RolloutResult, version: int, history: int
    ) -> Group:
        decoding = asyncio.ensure_future(self._decoder.texts(rollout.trajectories))
        try:
            scores, taught = await self._scored_and_taught(job, rollout.trajectories)
            texts = await decoding
        finally:
            decoding.cancel()
        scored = zip(rollout.trajectories, scores, taught, texts, strict=True)
        parts = tuple(self._experience(run, *part, version) for run, part in enumerate(scored))
        key = f"h{history}/{work.kind}/{job.task_no}"
        step = work.step_of(job.task_no)
        group = Group(key, job.task_no, job.task, step, parts, kind=work.kind)
        if group.runs != job.answers:
            raise RunError(f"{group.runs} responses instead of {job.answers} for {name_task(job.task)}")
        return group

    async def _scored_and_taught(
        self, job: RolloutTask, parts: Sequence[Trajectory]
    ) -> tuple[list[Score], list[Taught | None]]:
        """Return a score per answer, and what its teacher gave. The first failure ends both.

        As in veRL 0.9.1 (agent_loop.py, ``_compute_teacher_logprobs``) a validation has no teacher.
        """
        if self._teachers is None or job.validate:
            return await self._scorer.group(job.task, parts), [None] * len(parts)
        scoring = asyncio.ensure_future(self._scorer.group(job.task, parts))
        asking = asyncio.ensure_future(_ask(self._teachers, job, parts))
        try:
            return await asyncio.gather(scoring, asking)
        finally:
            scoring.cancel()
            asking.cancel()

    def _experience(
        self,
        run: int,
        part: Trajectory,
        score: Score,
        taught: Taught | None,
        texts: tuple[str, str],
        version: int,
    ) -> Experience:
        first, _ = part.versions
        if first < version:
            raise RunError(f"an engine answered with version {first} of the weights, not {version}")
        experience = experience_of(run, part, score)
        if taught:
            experience = replace(
                experience,
                teacher_ids=taught.rows.ids,
                teacher_logprobs=taught.rows.logprobs,
                metrics={**experience.metrics, TEACHER_S: taught.seconds},
            )
        prompt, response = texts
        return replace(experience, prompt_text=prompt, response_text=response)


async def _ask(teachers: TeacherClient, job: RolloutTask, parts: Sequence[Trajectory]) -> list[Taught | None]:
    """Return the teacher's rows of each answer that is trained on, None of the others.

    The others are answers without a token of the policy (a failed agent's), and ReMax's baseline, which comes
    last. Equal answers are one object, and are requested once.
    """
    trained = parts[: -1 if job.baseline else None]
    wanted = {id(part): part for part in trained if np.any(part.response_mask)}
    media = await teachers.media(job.task) if wanted else None
    asking = [asyncio.ensure_future(_timed(teachers, job.task, part, media)) for part in wanted.values()]
    try:
        found = dict(zip(wanted, await asyncio.gather(*asking), strict=True))
    finally:
        for request in asking:
            request.cancel()
    return [found.get(id(part)) for part in trained] + [None] * (len(parts) - len(trained))


async def _timed(
    teachers: TeacherClient, task: Mapping[str, Any], part: Trajectory, media: PromptMedia | None
) -> Taught:
    begin = time.monotonic()
    rows = await teachers.score(task, part, media)
    return Taught(rows, time.monotonic() - begin)


def experience_of(run: int, part: Trajectory, score: Score) -> Experience:
    """Convert a scored trajectory to the buffer's form, without its texts."""
    first, last = part.versions
    return Experience(
        run=run,
        prompt_ids=np.array(part.prompt_ids, dtype=np.int32),
        response_ids=np.array(part.response_ids, dtype=np.int32),
        response_mask=np.array(part.response_mask, dtype=np.uint8),
        logprobs=np.array(part.logprobs, dtype=np.float32),
        reward=score.reward,
        min_model_version=first,
        max_model_version=last,
        num_turns=part.num_turns,
        metrics={**part.metrics, **failure_metrics(score), **({TRUNCATED: 1.0} if part.truncated else {})},
        info=score.info,
    )


def rollout_failed(rollout: RolloutResult, job: RolloutTask, attempts: int) -> Exception:
    """Return a UserError where the input makes the rollout impossible, else a RunError."""
    task = name_task(job.task)
    if rollout.hopeless:
        return UserError(f"{task}: {rollout.error}")
    return RunError(f"the rollout of {task} failed {attempts} times: {rollout.error}")
