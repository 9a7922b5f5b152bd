"""Leases of tasks among several explorers, on every backend."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
from buffer_samples import group, groups

from trinity_compat.buffer import HistoryChanged, open_buffer
from trinity_compat.buffer.model import LeaseHolder, PendingTasks, TaskQuery

A, B = LeaseHolder(0, "a"), LeaseHolder(1, "b")


@pytest.fixture
def two(buffer):
    for holder in (A, B):
        buffer.enter(holder, ready=True, lease_s=10.0)
    return buffer


def lease(buffer, holder, limit=99, upto=8, history=1, **asked):
    query = TaskQuery(holder, upto, **asked)
    return buffer.lease_tasks(query, limit=limit, version=0, history=history)


def free(buffer, holder, limit=99, upto=8, **asked):
    return buffer.free_tasks(TaskQuery(holder, upto, **asked), limit=limit)


def test_a_task_is_one_explorer_s_until_its_group_is_stored(two):
    assert lease(two, A, limit=2) == [0, 1]
    assert lease(two, B, limit=2) == [2, 3]
    assert free(two, A) == [0, 1, 4, 5, 6, 7]
    assert free(two, B, limit=3) == [2, 3, 4]
    two.put_groups(groups(1), holder=A)
    assert free(two, A, limit=2) == [1, 4]
    assert lease(two, A, limit=2, have={1}) == [4, 5]
    assert lease(two, A, limit=2, have={1, 4}) == [5, 6], "5 was given to it, and it doesn't know"


def test_those_who_are_ready_get_equally_many(two):
    assert lease(two, A) == [0, 1, 2, 3]
    assert lease(two, A, have={0, 1, 2, 3}) == []
    assert lease(two, B, limit=1) == [4]
    two.put_groups(groups(4), holder=A)
    assert lease(two, A) == [5, 6]
    two.enter(replace(B, token="b2"), ready=False, lease_s=10.0)
    assert lease(two, A, have={5, 6}) == [
        4,
        7,
    ]  # B starts anew: what it had is free, and it takes nothing yet


def test_by_place_each_has_its_part_and_that_of_who_is_gone(two, clock):
    assert lease(two, A, by_place=3) == [0, 2, 3, 5, 6]  # nobody has the third place
    assert lease(two, B, by_place=3, limit=2) == [1, 4]
    clock.seconds += 6
    assert two.keep(A, lease_s=10.0)
    mine = {0, 2, 3, 5, 6}
    assert lease(two, A, by_place=3, have=mine) == []
    clock.seconds += 6
    assert lease(two, A, by_place=3, have=mine) == [1, 4, 7]


def test_what_lapses_is_free_and_its_holder_may_come_back(two, clock):
    assert lease(two, B, limit=2) == [0, 1]
    clock.seconds += 11
    two.keep(A, lease_s=10.0)
    assert two.places() == {0: True}
    assert lease(two, A, limit=1) == [0]
    assert two.keep(B, lease_s=10.0)
    assert free(two, B) == [1, 2, 3, 4, 5, 6, 7]  # what nobody has taken is still its own
    two.put_groups(groups(1), holder=B)  # it had gone on: stored once, and A's lease stands until A stores
    two.put_groups(groups(1), holder=A)
    assert two.depth()["ready"] == 1


@pytest.mark.parametrize("by_place", [0, 2])
def test_a_clock_that_was_put_back_leaves_no_task_with_the_dead(two, clock, by_place):
    assert lease(two, A, limit=2, by_place=by_place) and lease(two, B, limit=2, by_place=by_place)
    clock.seconds -= 500
    two.keep(A, lease_s=10.0)  # B is dead
    assert two.places() == {0: True}
    assert len(free(two, A, by_place=by_place)) == 8
    two.keep(B, lease_s=10.0)  # it lives, and was only late
    assert two.places() == {0: True, 1: True}


def test_another_in_its_place_ends_all_that_an_explorer_had(two):
    assert lease(two, A, limit=3) == [0, 1, 2]
    again = LeaseHolder(0, "a2")
    two.enter(again, ready=True, lease_s=10.0)
    assert free(two, B, limit=2) == [0, 1]
    assert not two.keep(A, lease_s=10.0)
    assert lease(two, A) == []
    two.leave(again)
    assert two.places() == {1: True}


def test_a_resume_ends_all_leases(two):
    lease(two, A, limit=3)
    two.reconcile(step=0)
    with pytest.raises(HistoryChanged):
        lease(two, A)
    assert free(two, B, limit=2) == [0, 1]
    assert lease(two, B, limit=2, history=2) == [0, 1]


def test_a_group_that_is_dropped_as_stale_leaves_its_task_to_anybody(two):
    lease(two, A, limit=2)
    two.put_groups(groups(2), holder=A)
    two.claim_groups(1, owner="t", step=9, min_version=5)
    assert lease(two, B, limit=2) == [0, 1]


def test_what_others_have_under_way_is_known_with_its_version(two):
    two.put_groups(groups(2))
    two.lease_tasks(TaskQuery(A, 8), limit=2, version=3, history=1)
    two.lease_tasks(TaskQuery(B, 8), limit=1, version=4, history=1)
    two.put_groups([group(5)])
    assert two.pending(B, upto=8) == PendingTasks(3, {3: 2})
    assert two.pending(A, upto=8) == PendingTasks(3, {4: 1})


def take_all(url, place, tasks):
    """Lease and store by ones until nothing is missing; what this process stored."""
    buffer, mine = open_buffer(url), []
    holder = LeaseHolder(place, f"t{place}")
    buffer.enter(holder, ready=True, lease_s=60.0)
    while buffer.missing_tasks(upto=tasks, limit=1):
        for number in lease(buffer, holder, limit=2, upto=tasks):
            mine += [number] * buffer.put_groups([group(number)], history=1, holder=holder)
            assert mine[-1:] == [number], "somebody else had it too"
    return mine


def test_four_explorers_at_once_take_each_task_once(url):
    open_buffer(url).close()
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as workers:
        shares = list(workers.map(take_all, [url] * 4, range(4), [80] * 4))
    assert sorted(number for share in shares for number in share) == list(range(80))


# -- drawings ----------------------------------------------------------------------------------------


def drawn(number, step=1, **fields):
    return group(number, key=f"h1/draw:{step}/{number}", kind=f"draw:{step}", **fields)


def settle(buffer, numbers, history=1):
    found = {one.task_no: one for one in buffer.groups("draw:1")}
    kept = [
        replace(found[number], task_no=slot, key=f"h1/train/{slot}")
        for slot, number in enumerate(numbers)
        if number in found
    ]
    return buffer.settle_drawing(kept, step=1, position=6, history=history)


def test_what_a_drawing_keeps_becomes_training_groups_and_the_rest_is_void(two):
    two.put_groups([drawn(number) for number in range(6)], history=1)
    assert two.claim_groups(1, owner="t", step=1) is None
    assert settle(two, [1, 3, 4])
    assert not settle(two, [1, 3, 4])
    assert [(one.task_no, one.task["index"]) for one in two.groups("train")] == [(0, 1), (1, 3), (2, 4)]
    assert two.groups("draw:1") == []
    assert two.get_state("stream/2") == 6
    assert two.missing_tasks(upto=4, limit=9) == [3]


def test_a_drawing_puts_nothing_in_the_place_of_what_is_there(two):
    two.put_groups([group(1, key="h0/train/1")])
    two.put_groups([drawn(number) for number in range(3)], history=1)
    assert settle(two, [0, 1, 2])
    assert [(one.task_no, one.task["index"]) for one in two.groups("train")] == [(0, 0), (1, 1), (2, 2)]
    assert two.depth()["ready"] == 3


def test_a_drawing_does_not_outlive_its_history(two):
    two.put_groups([drawn(number) for number in range(3)], history=1)
    two.reconcile(step=0)
    assert two.groups("draw:1") == []
    with pytest.raises(HistoryChanged):
        settle(two, [0], history=1)
