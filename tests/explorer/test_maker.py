"""Groups out of rollouts and scores, without an engine."""

import asyncio
from types import SimpleNamespace

import pytest

from trinity_compat.errors import RunError
from trinity_compat.explorer.maker import GroupMaker
from trinity_compat.explorer.plan import Work
from trinity_compat.explorer.scoring import Score
from trinity_compat.explorer.trajectory import Job, Rollout, Trajectory

pytestmark = pytest.mark.runtime  # verl's reward managers are imported along the way

TOKENIZER = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))


class Workers:
    """Answers every job with the version that it has."""

    def __init__(self, version):
        self.version = version

    async def run(self, jobs):
        for job in jobs:
            part = Trajectory([1], [2, 3], [1, 1], [0.0, 0.0], versions=(self.version, self.version))
            yield Rollout(job.task_no, (part,) * job.n)


class Scorer:
    async def group(self, task, trajectories):
        return [Score(1.0, {}) for _ in trajectories]


def made(version, **options):
    maker = GroupMaker(Workers(version), Scorer(), TOKENIZER, **options)

    async def collect():
        work = Work(5, "train", [Job(number, {}, 2, {}) for number in (8, 9)])
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

    maker = GroupMaker(Slow(0), Raising(), TOKENIZER)

    async def collect():
        jobs = [Job(number, {}, 2, {}) for number in range(20)]
        return [group async for group in maker.groups(Work(1, "train", jobs), 0, 1)]

    with pytest.raises(ValueError, match="no ground truth"):
        asyncio.run(collect())
    assert len(answered) <= 3  # of 20: what the event loop had under way when the failure became known


class Failing(Workers):
    """An agent loop that fails on task 9."""

    async def run(self, jobs):
        empty = Trajectory([1], [0], [0], [0.0], reward=0.0, metrics={"rollout/agent_failed": 1.0})
        async for rollout in super().run(jobs):
            failed = Rollout(9, (), "ValueError: no tool", instead=empty)
            yield failed if rollout.task_no == 9 else rollout


def test_an_agent_loop_that_keeps_failing_is_counted_where_that_was_asked_for():
    def groups(**options):
        maker = GroupMaker(Failing(0), Scorer(), TOKENIZER, **options)

        async def collect():
            work = Work(5, "train", [Job(number, {}, 2, {}) for number in (8, 9)])
            return [group async for group in maker.groups(work, 0, 1)]

        return {group.task_no: group for group in asyncio.run(collect())}

    made = groups(agent_failure="zero")
    assert [part.metrics for part in made[9].experiences] == [{"rollout/agent_failed": 1.0}] * 2
    assert [part.response_mask.tolist() for part in made[9].experiences] == [[0], [0]]
    assert [part.metrics for part in made[8].experiences] == [{}, {}]
    with pytest.raises(RunError, match="failed 3 times: ValueError: no tool"):
        groups()
