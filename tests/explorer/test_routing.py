"""Which engine gets which job, and the seeds that let it not matter."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
import simulation as sim
from omegaconf import OmegaConf

from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.sampling import eval_jobs, make_job, seeds_requests
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.vllm import Completion, EngineDied
from trinity_compat.explorer.rollout.routing import EngineLoads
from trinity_compat.explorer.rollout.worker import EngineSlots, RolloutWorker, truncate
from trinity_compat.job.run_spec import SyncSpec


def jobs(*answers):
    return [RolloutTask(number, {}, n, {}) for number, n in enumerate(answers)]


def numbers(shares):
    return [[job.task_no for job in share] for share in shares]


def test_dealt_in_turn_whatever_the_load():
    loads = EngineLoads(2, 8, by_load=False)
    assert numbers(loads.share(jobs(9, 1, 1, 1))) == [[0, 2], [1, 3]]
    assert numbers(loads.share(jobs(9, 1, 1))) == [[0, 2], [1]]


def test_of_equal_prompts_the_engine_with_the_fewest_answers_under_way_comes_next():
    loads = EngineLoads(3, 8, by_load=True)
    assert numbers(loads.share(jobs(8, 2, 4, 1))) == [[0], [1, 3], [2]]
    assert numbers(loads.share(jobs(2))) == [[], [0], []]
    loads.ended(0, 7)
    assert numbers(loads.share(jobs(2, 2))) == [[0, 1], [], []]


def prompted(number, characters, n=1):
    return RolloutTask(number, {"raw_prompt": [{"role": "user", "content": "x" * characters}]}, n, {})


def test_a_long_prompt_weighs_as_many_answers_as_it_has_tokens_for():
    loads = EngineLoads(2, 8, by_load=True)
    loads.measured([100, 300])
    jobs = [prompted(0, 4 * 600), *(prompted(number, 0) for number in range(1, 6))]
    assert numbers(loads.share(jobs)) == [[0, 5], [1, 2, 3, 4]]
    loads.ended(0, 2)
    assert numbers(loads.share(jobs[1:4])) == [[1, 2, 3], []]


def test_an_engine_has_room_by_answers_however_long_they_are():
    loads = EngineLoads(1, 16, by_load=True)
    loads.share([prompted(0, 400_000, n=4)])
    assert loads.room() == 13


def test_room_is_what_the_slots_and_a_short_queue_leave():
    loads = EngineLoads(2, 32, by_load=True)
    assert loads.room() == 2 * 34
    loads.share(jobs(30, 40))
    assert loads.room() == 4  # the full one takes nothing from the other
    loads.ended(1, 10)
    assert loads.room() == 8


@pytest.mark.parametrize(
    ("style", "fields", "full", "seeded", "evaluated"),
    [
        ("fixed", {}, False, True, True),
        ("trainer_driven", {}, False, False, True),
        ("explorer_driven", {}, False, False, True),
        ("fully_async", {}, False, False, True),
        ("fully_async", {}, True, True, True),
        ("fully_async", {"seeded_requests": True}, False, True, True),
        ("fixed", {"device": "cuda"}, False, False, False),
        ("fixed", {"device": "npu"}, False, False, False),
        ("fixed", {"device": "cuda"}, True, True, True),
        ("fully_async", {"device": "cuda", "seeded_requests": True}, False, True, True),
    ],
)
def test_seeds_for_each_request_only_where_they_cost_nothing_or_are_asked_for(
    style, fields, full, seeded, evaluated
):
    spec = sim.make_spec(4, 2, 1, SyncSpec(style), **fields)
    rollout = spec.verl["actor_rollout_ref"]["rollout"] | {"full_determinism": full}
    spec = replace(spec, verl=spec.verl | {"actor_rollout_ref": {"rollout": rollout, "model": {}}})
    assert [seeds_requests(spec), seeds_requests(spec, "eval")] == [seeded, evaluated]
    job = make_job(spec.verl, "train", 3, {}, seeded=seeds_requests(spec))
    assert ("seed" in job.sampling) is seeded


@pytest.mark.parametrize(("device", "seeded"), [("cpu", True), ("cuda", False)])
def test_an_evaluation_that_draws_has_seeds_by_the_same_rule(device, seeded):
    class Rows:
        def __len__(self):
            return 2

        def row(self, number):
            return {}

        def taskset_of(self, number):
            return 0, number

    spec = sim.make_spec(4, 2, 1, SyncSpec("fully_async"), device=device)
    assert ["seed" in job.sampling for job in eval_jobs(spec, Rows())] == [seeded] * 2


class Engine:
    """Answers when it is told to."""

    def __init__(self):
        self.asked = []

    async def submit(self, requests):
        loop = asyncio.get_running_loop()
        self.asked += [(request.sampling["n"], loop.create_future()) for request in requests]
        return [future for _, future in self.asked[-len(requests) :]]


def worker(engine, *, partial=True):
    made = object.__new__(RolloutWorker)
    rollout = {"agent": {"default_agent_loop": "single_turn_agent"}, "response_length": 9}
    made._config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    made._model, made._engine = SimpleNamespace(processor=None), engine
    made._requests_in_flight, made._runs = InflightRequests(engine, partial=partial), {}
    made._count = made._version = made._ended = 0
    made._prompt = lambda task: [1] if task["raw_prompt"] else truncate([1, 2], 1, "error")
    return made


def test_a_worker_tells_of_each_answer_that_has_ended_however_it_did():
    async def main():
        engine = Engine()
        one = worker(engine)
        jobs = [RolloutTask(number, {"raw_prompt": [1]}, 2, {}, apart=number < 1) for number in range(2)]
        jobs += [
            RolloutTask(2, {"raw_prompt": []}, 3, {}),
            RolloutTask(3, {"raw_prompt": [1]}, 2, {"temperature": 0}),
        ]
        rollouts = asyncio.ensure_future(collect(one.run(jobs)))
        told = one.ended()
        assert await anext(told) == 3  # those of a prompt that is too long
        assert [n for n, _ in engine.asked] == [1, 1, 2, 1]
        seen = []
        for n, future in engine.asked[:3]:
            future.set_result([Completion([5], [0.0], "stop")] * n)
            seen.append(await anext(told))
        engine.asked[3][1].set_exception(EngineDied("vLLM"))
        seen.append(await anext(told))
        with pytest.raises(EngineDied):
            await rollouts
        return seen

    assert asyncio.run(main()) == [4, 5, 7, 9]


def test_answers_leave_the_engine_s_process_as_arrays():
    """A list of tokens costs the explorer's process fifty times as much."""

    async def main():
        engine = Engine()
        one = worker(engine)
        rollouts = asyncio.ensure_future(collect(one.run([RolloutTask(0, {"raw_prompt": [1]}, 1, {})])))
        while not engine.asked:
            await asyncio.sleep(0)
        engine.asked[0][1].set_result([Completion([5, 6], [0.0, -0.5], "length")])
        one._vocabulary, made = 9, (await rollouts)[0].trajectories

        async def run_agent(job, slots):
            return [replace(made[0], response_mask=[1, 0], logprobs=[0.0, -0.5])]

        one._run_agent = run_agent
        return made + (await one._by_agent(RolloutTask(0, {}, 1, {}))).trajectories

    arrays = ("prompt_ids", "response_ids", "response_mask", "logprobs")
    own, of_agent = asyncio.run(main())
    for part, mask in ((own, [1, 1]), (of_agent, [1, 0])):
        values = [getattr(part, name) for name in arrays]
        assert [(each.dtype.str, each.tolist()) for each in values] == [
            ("<i4", [1]),
            ("<i4", [5, 6]),
            ("|u1", mask),
            ("<f4", [0.0, -0.5]),
        ]


def test_a_groups_places_on_the_engine_become_free_once_each():
    told = []
    places = EngineSlots(3, told.append)
    for _ in range(2):
        places.free_one()
    places.free_all()
    places.free_one()  # of the same group, made again in a process of its own
    assert told == [1, 1, 1]


async def collect(rollouts):
    return [rollout async for rollout in rollouts]


def test_a_baseline_is_one_greedy_answer_after_the_sampled_ones():
    sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "seed": 7, "ignore_eos": False}
    job = RolloutTask(0, {}, 2, sampling, baseline=True)
    assert job.answers == 3
    assert [job.sampling_of(run).get("seed") for run in range(3)] == [7, 8, None]
    assert job.sampling_of(0) == sampling
    greedy = {"temperature": 0, "top_p": 1.0, "top_k": -1, "ignore_eos": False}
    assert job.sampling_of(2) == greedy
    assert RolloutTask(0, {}, 2, sampling).answers == 2


def answering(version, first=1.0):
    return [Completion([version], [first], "stop")]


@pytest.mark.parametrize("partial", [True, False])
def test_answers_in_flight_go_on_over_new_weights_or_begin_again_with_them(partial):
    async def main():
        engine = Engine()
        one = worker(engine, partial=partial)
        engine.load = loading(engine)
        rollouts = asyncio.ensure_future(
            collect(one.run([RolloutTask(0, {"raw_prompt": [1]}, 2, {}, apart=True)]))
        )
        await asyncio.sleep(0.01)
        engine.asked[0][1].set_result(answering(0))
        await asyncio.sleep(0.01)
        await one.load(None, 1)
        await asyncio.sleep(0.01)
        assert engine.cancelled_at_load == [False, not partial]
        engine.asked[-1][1].set_result(answering(1))
        (rollout,) = await rollouts
        assert one._ended == 2 and len(engine.asked) == (2 if partial else 3)
        assert one._requests_in_flight.interrupted == (0 if partial else 1)
        return [part.versions for part in rollout.trajectories]

    assert asyncio.run(main()) == [(0, 0), (0, 1) if partial else (1, 1)]


def loading(engine):
    async def load(file):
        engine.cancelled_at_load = [future.cancelled() for _, future in engine.asked]

    return load


def test_an_aborted_run_frees_its_places_and_its_requests_are_cancelled():
    async def main():
        engine = Engine()
        one = worker(engine, partial=False)
        jobs = [RolloutTask(0, {"raw_prompt": [1]}, 2, {}, apart=True)]
        aborted = asyncio.ensure_future(collect(one.run(jobs, 7)))
        other = asyncio.ensure_future(collect(one.run(jobs, 8)))
        await asyncio.sleep(0.01)
        await one.abort(7)
        assert await aborted == []
        assert [future.cancelled() for _, future in engine.asked] == [True, True, False, False]
        assert one._ended == 2
        for _, future in engine.asked[2:]:
            future.set_result(answering(0))
        assert len(await other) == 1

    asyncio.run(main())
