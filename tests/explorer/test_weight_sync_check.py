"""The handover's self-test: what the trainer leaves, what the engines answer, and when a run stops."""

import asyncio
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from explorer_job import BATCH, FakeMaker, experience, job

from trinity_compat.buffer.model import Group
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.engine.weights import WeightSyncCheck
from trinity_compat.synchronizer import weight_sync_check
from trinity_compat.synchronizer.transports.files import write_file
from trinity_compat.synchronizer.weight_sync_check import ScoredAnswer

LEFT = ScoredAnswer(1, [5, 6, 7], [8, 9], [-0.5, -1.5])


class Engines:
    """Two that answer with these log-probabilities for the last tokens."""

    def __init__(self, *answers):
        self.answers, self.asked = answers, []

    async def score(self, token_ids):
        self.asked.append(list(token_ids))
        return [[-9.0, -9.0, *answer] for answer in self.answers]


@pytest.fixture
def buffer(tmp_path, toy):
    _, made = job(tmp_path / "job", toy)
    weight_sync_check.SCORED_ANSWER.set(made, LEFT)
    return made


def check(buffer, engines, version=1, bound=0.5):
    asyncio.run(WeightSyncCheck(buffer, engines, bound).check(version))


def test_engines_that_agree_are_told_with_both_numbers(buffer, caplog):
    caplog.set_level(logging.INFO)
    engines = Engines([-0.5, -1.4], [-0.6, -1.5])
    check(buffer, engines)
    assert engines.asked == [[5, 6, 7, 8, 9]]
    told = caplog.text
    assert "mean log-probability -0.9500 in the engine, -1.0000 in the trainer over 2 tokens" in told
    assert told.count("weight-sync check") == 2


@pytest.mark.parametrize("second", [[-4.0, -6.0], [float("nan"), -1.5]])
def test_one_engine_that_does_not_ends_the_run_with_both_numbers(buffer, second):
    with pytest.raises(RunError, match=r"does not hold the weights .* in the engine, -1.0000 in the trainer"):
        check(buffer, Engines([-0.5, -1.5], second))


@pytest.mark.parametrize(("version", "bound"), [(0, 0.5), (2, 0.5), (1, 0.0)])
def test_other_versions_and_a_bound_of_zero_are_not_tested(buffer, version, bound):
    engines = Engines([-9.0, -9.0])
    check(buffer, engines, version, bound)
    assert engines.asked == []


def test_a_version_is_checked_once(buffer):
    engines = Engines(LEFT.logprobs)
    test = WeightSyncCheck(buffer, engines, 0.5)
    asyncio.run(test.check(1))
    asyncio.run(test.check(1))
    assert len(engines.asked) == 1


def test_the_bound_is_the_environment_s(monkeypatch):
    assert weight_sync_check.bound() > 0
    monkeypatch.setenv(weight_sync_check.BOUND, "0")
    assert weight_sync_check.bound() == 0
    monkeypatch.setenv(weight_sync_check.BOUND, "much")
    with pytest.raises(UserError, match="HANDOVER_BOUND=much is not a number"):
        weight_sync_check.bound()


class Trainer:
    """The real exchange, with groups of answers of these lengths."""

    def __init__(self, tmp_path, toy, *lengths):
        from trinity_compat.trainer.exchange import BufferExchange
        from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

        self.spec, self.buffer = job(tmp_path / "trainer", toy)
        self.asked, self.seen = [], []
        self.heart = LeaseHeartbeat(self.buffer, "t")
        self.exchange = BufferExchange(
            self.buffer, self.spec, self.heart, batch_size=BATCH, group_size=2, val_size=6
        )
        parts = tuple(_of_length(run, length) for run, length in enumerate(lengths))
        groups = [Group(f"h0/train/{i}", i, {}, 1, parts) for i in range(BATCH)]
        self.buffer.put_groups(groups, history=self.buffer.history())

    def scores(self, given):
        self.asked.append(given)
        return [-1.0] * len(given.response_ids)

    def send(self, version, meeting=None, check=None):
        self.seen.append(weight_sync_check.SCORED_ANSWER.get(self.buffer))
        return write_file(self.spec.sync.directory, version, [("w", torch.zeros(1))])

    def step(self, step):
        self.exchange.claim(step)
        self.exchange.publish(step, self.send, self.scores)


def _of_length(run, length):
    from dataclasses import replace

    arrays = {name: np.arange(length) for name in ("response_ids", "response_mask", "logprobs")}
    return replace(experience(run, 0), **arrays)


@pytest.mark.verl
def test_the_trainer_leaves_its_numbers_before_the_first_update_can_be_loaded(tmp_path, toy):
    trainer = Trainer(tmp_path, toy, 3, 6)
    trainer.exchange.publish(0, trainer.send, trainer.scores)
    assert (trainer.asked, trainer.seen) == ([], [None])
    trainer.step(1)
    assert [len(given.response_ids) for given in trainer.asked] == [5]  # the longest, less a token
    assert trainer.seen[1].response_ids == [0, 1, 2, 3, 4]
    assert trainer.seen[1].logprobs == [-1.0] * 5


@pytest.mark.verl
def test_a_resume_takes_an_earlier_start_s_numbers_away(tmp_path, toy):
    trainer = Trainer(tmp_path, toy, 3, 6)
    weight_sync_check.SCORED_ANSWER.set(trainer.buffer, LEFT)
    trainer.exchange.resumed(0)
    assert weight_sync_check.SCORED_ANSWER.get(trainer.buffer) is None


@pytest.mark.verl
def test_answers_of_one_token_are_not_asked_for(tmp_path, toy):
    trainer = Trainer(tmp_path, toy, 1, 1)
    trainer.exchange.publish(0, trainer.send, trainer.scores)
    trainer.step(1)
    assert trainer.asked == []


def test_the_loop_tests_what_it_has_loaded(tmp_path, toy):
    from explorer_job import publish
    from test_loop import Run, ready

    spec, buffer = job(tmp_path / "loop", toy)
    publish(spec, buffer, toy, 0, 1)
    tested = []

    async def note(version):
        tested.append(version)

    run = Run(spec, buffer, FakeMaker(), test=SimpleNamespace(check=note))
    run.until(ready(buffer, 2 * BATCH))
    assert tested == [0, 1]
