"""Groups out of rollouts and scores, without an engine."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from trinity_compat.buffer.codec import check
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask, Trajectory
from trinity_compat.explorer.rewards.scoring import Score
from trinity_compat.explorer.rollout.worker import RolloutWorker
from trinity_compat.explorer.scheduling.filtering import GroupFilter
from trinity_compat.explorer.scheduling.group_builder import GroupBuilder
from trinity_compat.explorer.scheduling.report import StepTimes, step_metrics
from trinity_compat.explorer.scheduling.step_work import StepWork
from trinity_compat.explorer.teachers.wire import TeacherRows

pytestmark = pytest.mark.verl  # verl's reward managers are imported along the way

TOKENIZER = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))


class Workers:
    """Answers every job with the version that it has."""

    def __init__(self, version):
        self.version = version

    async def run(self, jobs):
        for job in jobs:
            part = Trajectory([1], [2, 3], [1, 1], [0.0, 0.0], versions=(self.version, self.version))
            yield RolloutResult(job.task_no, (part,) * job.n)


class Scorer:
    async def group(self, task, trajectories):
        return [Score(1.0, {}) for _ in trajectories]


def made(version, **options):
    maker = GroupBuilder(Workers(version), Scorer(), TOKENIZER, **options)

    async def collect():
        work = StepWork(5, "train", [RolloutTask(number, {}, 2, {}) for number in (8, 9)])
        return [group async for group in maker.groups(work, version, 1)]

    return sorted(asyncio.run(collect()), key=lambda group: group.task_no)


def test_a_group_holds_all_answers_to_its_task():
    groups = made(4)
    assert [(g.key, g.explorer_step, len(g.experiences)) for g in groups] == [
        ("h1/train/8", 5, 2),
        ("h1/train/9", 5, 2),
    ]


class Raising(Scorer):
    async def group(self, task, trajectories):
        raise ValueError("no ground truth")


def test_a_reward_function_that_raises_ends_the_step_before_its_other_rollouts():
    answered = []

    class Slow(Workers):
        async def run(self, jobs):
            async for rollout in super().run(jobs):
                answered.append(rollout.task_no)
                yield rollout
                await asyncio.sleep(0)

    maker = GroupBuilder(Slow(0), Raising(), TOKENIZER)

    async def collect():
        jobs = [RolloutTask(number, {}, 2, {}) for number in range(20)]
        return [group async for group in maker.groups(StepWork(1, "train", jobs), 0, 1)]

    with pytest.raises(ValueError, match="no ground truth"):
        asyncio.run(collect())
    assert len(answered) <= 3  # of 20: what the event loop had under way when the failure became known


class Failing(Workers):
    """An agent loop that fails on task 9."""

    async def run(self, jobs):
        empty = Trajectory([1], [0], [0], [0.0], reward=0.0, metrics={"rollout/agent_failed": 1.0})
        async for rollout in super().run(jobs):
            failed = RolloutResult(9, (), "ValueError: no tool", instead=empty)
            yield failed if rollout.task_no == 9 else rollout


def test_an_agent_loop_that_keeps_failing_is_counted_where_that_was_asked_for():
    def groups(**options):
        maker = GroupBuilder(Failing(0), Scorer(), TOKENIZER, **options)

        async def collect():
            work = StepWork(5, "train", [RolloutTask(number, {}, 2, {}) for number in (8, 9)])
            return [group async for group in maker.groups(work, 0, 1)]

        return {group.task_no: group for group in asyncio.run(collect())}

    made = groups(agent_failure="zero")
    assert [part.metrics for part in made[9].experiences] == [{"rollout/agent_failed": 1.0}] * 2
    assert [part.response_mask.tolist() for part in made[9].experiences] == [[0], [0]]
    assert [part.metrics for part in made[8].experiences] == [{}, {}]
    with pytest.raises(RunError, match="failed 3 times: ValueError: no tool"):
        groups()


class Teachers:
    """Gives each token's negative value; notes what it was asked."""

    def __init__(self):
        self.asked, self.read = [], 0

    async def media(self, task):
        self.read += 1
        return task.get("image")

    async def score(self, task, part, media):
        assert media == task.get("image")
        self.asked.append((task["data_source"], part.prompt_ids, part.response_ids))
        return TeacherRows(None, -np.array(part.response_ids, np.float32)[:, None])


class Answering(Workers):
    """Gives the answers that it was made with, one group for each task."""

    def __init__(self, *parts):
        super().__init__(4)
        self.parts = parts

    async def run(self, jobs):
        for job in jobs:
            yield RolloutResult(job.task_no, self.parts)


def taught(parts, teachers, scorer=None, kind="train", **job):
    maker = GroupBuilder(Answering(*parts), scorer or Scorer(), TOKENIZER, teachers=teachers)
    task = RolloutTask(
        8, {"data_source": "sort", "image": "i"}, len(parts) - bool(job.get("baseline")), {}, **job
    )

    async def collect():
        return [group async for group in maker.groups(StepWork(5, kind, [task]), 4, 1)]

    (group,) = asyncio.run(collect())
    return group.experiences


def written(*response, mask=1):
    return Trajectory([1], [*response], [mask] * len(response), [0.0] * len(response), versions=(4, 4))


def test_answers_to_train_on_have_their_teacher_s_rows():
    teachers = Teachers()
    first, second = taught([written(2, 3), written(4)], teachers)
    assert first.teacher_ids is None and first.teacher_logprobs.tolist() == [[-2.0], [-3.0]]
    assert second.teacher_logprobs.tolist() == [[-4.0]]
    assert first.metrics["teacher/seconds"] >= 0
    assert sorted(teachers.asked) == [("sort", [1], [2, 3]), ("sort", [1], [4])]
    assert teachers.read == 1  # the prompt's media, for both
    for part in (first, second):
        check(part, "group")  # as before it is stored


def test_a_validation_has_none():
    teachers = Teachers()
    (part,) = taught([written(2)], teachers, kind="eval:1", validate=True)
    assert part.teacher_logprobs is None and teachers.asked == [] and "teacher/seconds" not in part.metrics


def test_neither_have_an_empty_answer_and_the_baseline_and_equal_answers_are_asked_about_once():
    teachers = Teachers()
    same = written(2, 3)
    parts = taught([same, same, written(0, mask=0), written(5)], teachers, baseline=True)
    assert [None if p.teacher_logprobs is None else p.teacher_logprobs.tolist() for p in parts] == [
        [[-2.0], [-3.0]],
        [[-2.0], [-3.0]],
        None,
        None,
    ]
    assert teachers.asked == [("sort", [1], [2, 3])]


def test_scores_and_rows_are_made_at_the_same_time_and_a_failure_of_either_ends_both():
    met = {}

    async def meet(name, other):
        met.setdefault(name, asyncio.Event()).set()
        await asyncio.wait_for(met.setdefault(other, asyncio.Event()).wait(), 60)

    class Meeting(Teachers):
        async def score(self, task, part, media):
            await meet("teacher", "scorer")
            return await super().score(task, part, media)

    class MeetingScorer(Scorer):
        async def group(self, task, trajectories):
            await meet("scorer", "teacher")
            return await super().group(task, trajectories)

    (part,) = taught([written(2)], Meeting(), MeetingScorer())
    assert part.teacher_logprobs.tolist() == [[-2.0]]

    ended = []

    class Waiting(Teachers):
        async def score(self, task, part, media):
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(part)

    class Late(Scorer):
        async def group(self, task, trajectories):
            await asyncio.sleep(0.1)
            raise ValueError("no ground truth")

    with pytest.raises(ValueError, match="no ground truth"):
        taught([written(2), written(3)], Waiting(), Late())
    assert len(ended) == 2


class InSteps(Workers):
    """The first run of a task has two rows, its second one."""

    async def run(self, jobs):
        async for rollout in super().run(jobs):
            first, second = rollout.trajectories
            yield RolloutResult(rollout.task_no, (first, first, second)[: self.rows])


class TellingRuns(Scorer):
    async def group(self, task, trajectories):
        places = [(0, 0), (0, 1), (1, 0)]
        told = [{"of_run": {"run": run, "row": row}} for run, row in places]
        return [
            Score(float(place), info) for place, (_, info) in enumerate(zip(trajectories, told, strict=False))
        ]


def in_steps(rows):
    workers = InSteps(4)
    workers.rows = rows
    maker = GroupBuilder(workers, TellingRuns(), TOKENIZER)

    async def collect():
        return [
            group async for group in maker.groups(StepWork(5, "train", [RolloutTask(8, {}, 2, {})]), 4, 1)
        ]

    return asyncio.run(collect())


GOOD = Trajectory([1], [2, 3], [1, 1], [0.0, 0.0])
BAD = {
    "2**40": (
        replace(GOOD, response_ids=[2, 2**40]),
        "token id 1099511627776 is not in 0 … 9, at place 1 of response",
    ),
    "beyond the vocabulary": (
        replace(GOOD, prompt_ids=[10]),
        "token id 10 is not in 0 … 9, at place 0 of prompt_ids",
    ),
    "negative": (replace(GOOD, response_ids=[-1, 3]), "token id -1 is not in 0 … 9"),
    "no integer": (replace(GOOD, response_ids=[2, "x"]), "x is not a token id, at place 1"),
    "mask": (replace(GOOD, response_mask=[1]), "2 tokens in response_ids, 1 in response_mask"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_answer_that_cannot_be_trained_is_its_agent_loop_s_failure(name):
    """Tried again, and then agent_failure says what becomes of it."""
    part, message = BAD[name]
    worker = RolloutWorker.__new__(RolloutWorker)
    worker._version = worker._ended = 0
    worker._vocabulary, worker._model = 10, SimpleNamespace(processor=object())

    async def made_by(job, places):
        return [GOOD, part]

    worker._run_agent = made_by
    rollout = asyncio.run(worker._by_agent(RolloutTask(3, {}, 2, {})))
    assert (rollout.task_no, rollout.trajectories, rollout.hopeless) == (3, (), False)
    assert rollout.error.startswith(f"answer 1 cannot be trained: {message}")


def test_a_step_reports_how_long_its_teachers_took():
    (group,) = in_steps(3)
    asked = zip(group.experiences, (0.5, None, 2.5), strict=True)
    parts = [
        replace(part, metrics={} if taken is None else {"teacher/seconds": taken}) for part, taken in asked
    ]
    figures = step_metrics(5, 4, [replace(group, experiences=tuple(parts))], StepTimes(0.0))
    assert (figures["teacher/seconds/mean"], figures["teacher/seconds/max"]) == (1.5, 2.5)
    assert not [name for name in step_metrics(5, 4, [group], StepTimes(0.0)) if name.startswith("teacher/")]


def test_a_run_of_several_steps_is_as_many_experiences():
    (group,) = in_steps(3)
    assert (len(group.experiences), group.runs) == (3, 2)
    with pytest.raises(RunError, match="1 responses instead of 2"):
        in_steps(2)


def test_a_step_reports_its_runs_and_their_last_reward():
    figures = step_metrics(5, 4, in_steps(3), StepTimes(0.0))
    assert (figures["experience_count"], figures["rollout/runs"], figures["rollout/rows_per_run"]) == (
        3,
        2,
        1.5,
    )
    assert (figures["critic/score/mean"], figures["rollout/run_reward/mean"]) == (1.0, 1.5)
    assert "rollout/runs" not in step_metrics(5, 4, made(4), StepTimes(0.0))


def test_a_filter_by_runs_looks_at_their_last_steps():
    (group,) = in_steps(3)
    alike = replace(
        group, experiences=tuple(replace(part, reward=1.0 * (part.run > 0)) for part in group.experiences)
    )
    each = GroupFilter("reward", 2, 2, threshold=0.1)
    assert each.differs(alike)
    assert not replace(each, by_run=True).differs(alike)
