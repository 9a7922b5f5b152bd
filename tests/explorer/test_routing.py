"""Which engine gets which job, and the seeds that let it not matter."""

from dataclasses import replace

import pytest
import simulation as sim

from trinity_compat.explorer.jobs import make_job, seeds_requests
from trinity_compat.explorer.rollout import Job
from trinity_compat.explorer.routing import Loads
from trinity_compat.spec import SyncSpec


def jobs(*answers):
    return [Job(number, {}, n, {}) for number, n in enumerate(answers)]


def numbers(shares):
    return [[job.task_no for job in share] for share in shares]


def test_dealt_in_turn_whatever_the_load():
    loads = Loads(2, 8, by_load=False)
    assert numbers(loads.share(jobs(9, 1, 1, 1))) == [[0, 2], [1, 3]]
    assert numbers(loads.share(jobs(9, 1, 1))) == [[0, 2], [1]]


def test_the_engine_with_the_fewest_answers_under_way_comes_next():
    loads = Loads(3, 8, by_load=True)
    assert numbers(loads.share(jobs(8, 2, 4, 1))) == [[0], [1, 3], [2]]
    assert numbers(loads.share(jobs(2))) == [[], [0], []]
    loads.ended(0, 7)
    assert numbers(loads.share(jobs(2, 2))) == [[0, 1], [], []]


def test_room_is_what_the_slots_and_a_short_queue_leave():
    loads = Loads(2, 32, by_load=True)
    assert loads.room() == 2 * 34
    loads.share(jobs(30, 40))
    assert loads.room() == 4  # the full one takes nothing from the other
    loads.ended(1, 10)
    assert loads.room() == 8




@pytest.mark.parametrize(
    ("style", "fields", "full", "seeded"),
    [
        ("fixed", {}, False, True),
        ("trainer_driven", {}, False, False),
        ("explorer_driven", {}, False, False),
        ("fully_async", {}, False, False),
        ("fully_async", {}, True, True),
        ("fully_async", {"seeded_requests": True}, False, True),
    ],
)
def test_seeds_for_each_request_only_where_they_are_asked_for(style, fields, full, seeded):
    spec = sim.make_spec(4, 2, 1, SyncSpec(style), **fields)
    rollout = spec.verl["actor_rollout_ref"]["rollout"] | {"full_determinism": full}
    spec = replace(spec, verl=spec.verl | {"actor_rollout_ref": {"rollout": rollout, "model": {}}})
    assert seeds_requests(spec) is seeded
    job = make_job(spec.verl, "train", 3, {}, seeded=seeds_requests(spec))
    assert ("seed" in job.sampling) is seeded


def test_an_evaluation_is_seeded_in_any_case():
    assert "seed" in make_job(sim.make_spec(4, 2, 1, SyncSpec("fully_async")).verl, "eval", 3, {}).sampling
