"""Pool of killable processes: which process takes a call, and which call is blamed for a process's end."""

import asyncio

import pytest

from trinity_compat.common.user_output import REWARD
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.pool import ProcessPool
from trinity_compat.explorer.sandbox.process import Process, ProcessDied, StartFailed


class Fake(Process):
    """Without a process behind it. ``fault``: what its start raises, or that it is ``dead`` after it."""

    def __init__(self, printed, fault):
        super().__init__(printed, None, None)
        self.fault = fault

    async def start(self):
        await asyncio.sleep(0)
        if isinstance(self.fault, Exception):
            raise self.fault
        if self.fault == "dead":
            self.kill()

    async def call(self):
        with self.calling() as (_, result):
            return await result

    def answer(self, value):
        for result in self._calls.values():
            result.set_result(value)


class Pool(ProcessPool):
    """``made``: its processes, in the order of their starts."""

    def __init__(self, size, faults=(), **options):
        self.made, faults = [], iter(faults)

        def make(printed):
            self.made.append(Fake(printed, next(faults, None)))
            return self.made[-1]

        super().__init__(make, size, RateLimitedOutput(REWARD, lambda data: None), **options)

    async def calls(self, count, **options):
        """Begin calls, and wait until they are in their processes."""
        begun = [asyncio.ensure_future(self.run(Fake.call, **options)) for _ in range(count)]
        await settled()
        return begun

    @property
    def load(self):
        return [len(each._calls) for each in self.made]


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def check(scenario):
    """Run it; a call that waits for a process that nobody starts would wait for ever."""
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_calls_are_spread_over_processes_that_start():
    async def scenario():
        pool = Pool(2)
        await pool.calls(5)
        assert sorted(pool.load) == [2, 3]
        pool.close()
        assert [each.dead for each in pool.made] == [True, True]

    check(scenario)


def test_of_several_calls_only_the_one_that_ends_two_processes_fails():
    async def scenario():
        pool = Pool(1)
        good, bad = await pool.calls(2)
        pool.made[0].kill()
        await settled()
        pool.made[1].answer("good")
        await settled()
        pool.made[-1].kill()
        assert await good == "good"
        with pytest.raises(ProcessDied):
            await bad

    check(scenario)


def test_the_only_call_of_a_process_is_blamed_at_once():
    async def scenario():
        pool = Pool(1)
        (call,) = await pool.calls(1)
        pool.made[0].kill()
        with pytest.raises(ProcessDied):
            await call
        assert len(pool.made) == 1

    check(scenario)


def test_calls_that_run_alone_share_no_process_and_leave_none_too_many():
    async def scenario():
        pool = Pool(1)
        await pool.calls(1, alone=True)
        pool.made[0].answer("alone")
        await settled()
        await pool.calls(1)
        assert pool.load == [1]
        await pool.calls(2, alone=True)  # of which one waits, as there may be one such process
        await pool.calls(2)
        assert pool.load == [3, 1]
        pool.made[1].answer("alone")
        await settled()
        assert pool.load == [3, 0, 1]
        assert [each.dead for each in pool.made] == [False, True, False]

    check(scenario)


def test_a_spoilt_process_takes_no_more_calls_and_ends_with_its_last():
    async def scenario():
        pool = Pool(1)
        await pool.calls(1)
        pool.made[0].spoilt = True
        await pool.calls(1)
        assert pool.load == [1, 1]
        for each in pool.made:
            each.answer(1)
        await settled()
        assert [each.dead for each in pool.made] == [True, False]

    check(scenario)


def test_the_end_of_a_spoilt_process_is_not_blamed_on_its_last_call():
    """A thread that an earlier call left behind may have ended it."""

    async def scenario():
        pool = Pool(1)
        (call,) = await pool.calls(1)
        pool.made[0].spoilt = True
        pool.made[0].kill()
        await settled()
        pool.made[1].answer("good")
        assert await call == "good"

    check(scenario)


@pytest.mark.parametrize(
    ("faults", "starts", "said"),
    [
        (["dead"], 2, None),
        ([RuntimeError("no threads")], 2, None),
        ([StartFailed("was not ready")] * 2, 2, "it was not ready"),
        (["dead"] * 2, 2, "it ended as soon as it was ready"),
        ([StartFailed("no licence", broken=True)], 1, "no licence"),
    ],
)
def test_a_start_is_tried_again_unless_the_process_says_why_it_cannot_work(faults, starts, said):
    async def scenario():
        pool = Pool(1, faults, tries=2)
        (call,) = await pool.calls(1)
        assert len(pool.made) == starts
        assert (call.exception().of("it") if call.done() else None) == said
        pool.close()

    check(scenario)


def test_a_closed_pool_starts_nothing():
    async def scenario():
        pool = Pool(1)
        calls = await pool.calls(2)
        pool.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(each) for each in ends] == ["was not started: its pool is closed"] * 2
        assert len(pool.made) == 1

    check(scenario)
