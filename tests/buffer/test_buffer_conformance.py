"""What a buffer promises, on every backend."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from datetime import date
from decimal import Decimal

import numpy as np
import pytest
import sqlalchemy as sa
from buffer_samples import experience, group, groups

from trinity_compat.buffer import HistoryChanged, codec, open_buffer, queries
from trinity_compat.buffer.errors import ClaimLost, InvalidGroup
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.buffer.report import BufferReport
from trinity_compat.job.run_spec import ReplaySpec
from trinity_compat.studio.experiences import read_about, read_answers

ARRAYS = ("prompt_ids", "response_ids", "response_mask", "logprobs")


def tasks(claim):
    return None if claim is None else [g.task_no for g in claim.groups]


def train(buffer, count, step, **options):
    claim = buffer.claim_groups(count, owner="t", step=step, **options)
    buffer.mark_trained(claim, step=step)
    return tasks(claim)


def version(number, path="w"):
    return WeightVersion(number, path, f"sha-{number}", 10)


# -- writing and reading ------------------------------------------------------------------------


def test_a_group_comes_back_as_it_was_written(buffer):
    masked = dataclasses.replace(
        experience(1, version=3),
        response_mask=np.array([1, 0, 0, 1], np.uint8),
        min_model_version=2,
        metrics={"acc": 0.5, "lost": math.nan, "far": -math.inf},
        info={"pred": "42", "parts": [1, 2]},
        num_turns=4,
        response_text="日本語 😀",
    )
    written = dataclasses.replace(group(0, priority=1.5), experiences=(experience(0), masked))
    buffer.put_groups([written])
    (read,) = buffer.groups("train")
    assert read.group_id is not None
    assert dataclasses.replace(read, group_id=None, experiences=()) == dataclasses.replace(
        written, experiences=()
    )
    for before, after in zip(written.experiences, read.experiences, strict=True):
        for name in ARRAYS:
            assert getattr(after, name).dtype == getattr(before, name).dtype
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    blank = dict.fromkeys(ARRAYS) | {"metrics": {}}
    assert dataclasses.replace(read.experiences[1], **blank) == dataclasses.replace(masked, **blank)
    assert math.isnan(read.experiences[1].metrics["lost"])
    assert read.experiences[1].metrics["far"] == -math.inf


def test_a_task_keeps_its_types(buffer):
    row = {
        "index": np.int64(3),
        "answer": np.array([1.5]),
        "of": {1: (2,), "1": {3}},
        "when": date(2020, 1, 1),
    }
    buffer.put_groups([dataclasses.replace(group(0), task=row)])
    task = buffer.groups("train")[0].task
    assert repr(task) == repr(row)
    assert type(task["index"]) is np.int64


def test_people_and_pages_see_typed_values_as_text(buffer, url):
    row = {"index": date(2020, 1, 1), "data_source": "x", "of": {1: "a", "1": "b"}, "price": Decimal("1.50")}
    odd = dataclasses.replace(experience(0), info={"when": date(2020, 1, 2), "far": {3}})
    buffer.put_groups([dataclasses.replace(group(0), task=row, experiences=(odd,))])
    report = BufferReport(url)
    (shown,) = report.recent(1)
    (exported,) = report.export()
    report.close()
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        about = read_about(conn, shown["group_id"])
        ((_, answer),) = read_answers(conn, shown["group_id"], 9)
    engine.dispose()
    task = {"index": "2020-01-01", "data_source": "x", "of": {"1": "a", "'1'": "b"}, "price": "1.50"}
    assert shown["task"] == about["task"] == task
    assert about["name"] == "x 2020-01-01"
    assert exported["info"] == answer.info == {"when": "2020-01-02", "far": [3]}
    json.dumps([shown, exported])


def test_what_a_reward_function_says_is_stored_as_numbers_and_lists(buffer):
    """Training makes columns of it, and SQL reads it."""
    info = {"acc": np.float32(0.5), "of": np.array([1, 2]), "turns": (1, 2), "when": date(2020, 1, 1)}
    odd = dataclasses.replace(experience(0), info=info)
    buffer.put_groups([dataclasses.replace(group(0), experiences=(odd,))])
    read = buffer.groups("train")[0].experiences[0].info
    assert read == {"acc": 0.5, "of": [1, 2], "turns": [1, 2], "when": date(2020, 1, 1)}
    assert type(read["acc"]) is float


def test_a_number_that_json_lacks_comes_back_as_a_number_and_its_name_as_a_text(buffer):
    info = {"acc": math.nan, "far": [-math.inf, 1.0], "said": "NaN", "float": "nan"}
    odd = dataclasses.replace(experience(0), info=info)
    buffer.put_groups([dataclasses.replace(group(0), experiences=(odd,))])
    read = dict(buffer.groups("train")[0].experiences[0].info)
    assert math.isnan(read.pop("acc"))
    assert read == {"far": [-math.inf, 1.0], "said": "NaN", "float": "nan"}


def test_text_that_postgresql_cannot_hold_is_replaced_not_refused(buffer):
    odd = dataclasses.replace(experience(0), response_text="a\0b\ud800c", info={"raw": "x\0y"})
    buffer.put_groups([dataclasses.replace(group(0), experiences=(odd,))])
    assert buffer.groups("train")[0].experiences[0].response_text == "a�b�c"


def test_what_has_no_place_in_json_is_refused_by_name(buffer):
    with pytest.raises(
        InvalidGroup, match=r"group 'task 0' \(index 7 .*a value of type object cannot be stored"
    ):
        buffer.put_groups([dataclasses.replace(group(0), task={"index": 7, "extra_info": object()})])
    assert not buffer.groups("train")


@pytest.mark.parametrize("odd", [2**40, 2**31, -1, 2**70, 1.5])
@pytest.mark.parametrize("name", ["prompt_ids", "response_ids"])
def test_a_token_id_that_no_int32_holds_is_refused_with_its_task_and_place(buffer, name, odd):
    ids = [5, odd, 7, 8] if odd != 2**31 else np.array([5, odd, 7, 8])
    bad = dataclasses.replace(experience(1), **{name: ids})
    told = rf"index 3 of 'sample'\), run 1: .*{odd} is not .* of {name}"
    with pytest.raises(InvalidGroup, match=told):
        buffer.put_groups([group(2), dataclasses.replace(group(3), experiences=(experience(0), bad))])
    assert not buffer.groups("train")


IDS, LOGPROBS = np.full((4, 2), 3, np.int32), np.array([[-0.5, -math.inf]] * 4, np.float32)


def changed(array, place, value):
    copy = array.copy()
    copy[place] = value
    return copy


@pytest.mark.parametrize(
    ("ids", "logprobs", "told"),
    [
        (IDS, None, "teacher_ids without teacher_logprobs"),
        (IDS, LOGPROBS[:3], r"teacher_logprobs has shape \(3, 2\), not \(4, K\)"),
        (IDS, LOGPROBS[:, :0], r"teacher_logprobs has shape \(4, 0\), not \(4, K\)"),
        (IDS, LOGPROBS[:, 0], r"teacher_logprobs has shape \(4,\), not \(4, K\)"),
        (None, LOGPROBS, r"teacher_logprobs has shape \(4, 2\), not \(4, 1\)"),
        (IDS[:, :1], LOGPROBS, r"teacher_ids has shape \(4, 1\), teacher_logprobs \(4, 2\)"),
        (changed(IDS, (2, 1), -1), LOGPROBS, r"token id -1 is not .* of teacher_ids"),
        (IDS, changed(LOGPROBS, (2, 0), math.nan), "nan in teacher_logprobs, at token 2, rank 0"),
        (IDS, changed(LOGPROBS, (3, 1), math.inf), "inf in teacher_logprobs, at token 3, rank 1"),
        (IDS, changed(LOGPROBS, (1, 0), -math.inf), "-inf in teacher_logprobs, at token 1, rank 0"),
        (None, changed(LOGPROBS[:, :1], (1, 0), math.nan), "nan in teacher_logprobs, at token 1, rank 0"),
    ],
)
def test_arrays_of_a_teacher_that_do_not_fit_the_response_are_refused(buffer, ids, logprobs, told):
    bad = dataclasses.replace(experience(1), teacher_ids=ids, teacher_logprobs=logprobs)
    with pytest.raises(InvalidGroup, match=rf"index 3 of 'sample'\), run 1: {told}"):
        buffer.put_groups([dataclasses.replace(group(3), experiences=(experience(0), bad))])
    assert not buffer.groups("train")


@pytest.mark.parametrize(
    ("ids", "logprobs"), [(IDS, LOGPROBS), (None, LOGPROBS[:, :1]), (None, LOGPROBS[:, 1:])]
)
def test_tokens_that_a_teacher_lacks_are_no_reason_to_refuse(buffer, ids, logprobs):
    asked = dataclasses.replace(experience(0), teacher_ids=ids, teacher_logprobs=logprobs)
    assert buffer.put_groups([dataclasses.replace(group(3), experiences=(asked,))]) == 1


def taught(task_no, ids, logprobs):
    """A group of one answer about which a teacher was asked, and one about which none was."""
    asked = dataclasses.replace(experience(0, seed=task_no), teacher_ids=ids, teacher_logprobs=logprobs)
    return dataclasses.replace(group(task_no), experiences=(asked, experience(1, seed=task_no)))


@pytest.mark.parametrize(("ids", "logprobs"), [(IDS, LOGPROBS), (None, LOGPROBS[:, :1])])
def test_a_claim_returns_what_a_teacher_said(buffer, ids, logprobs):
    buffer.put_groups([taught(0, ids, logprobs)])
    claim = buffer.claim_groups(1, owner="t", step=1)
    asked, other = claim.groups[0].experiences
    assert (other.teacher_ids, other.teacher_logprobs) == (None, None)
    for before, after in ((ids, asked.teacher_ids), (logprobs, asked.teacher_logprobs)):
        assert (after is None) is (before is None)
        if before is not None:
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)
    buffer.mark_trained(claim, step=1)
    again = buffer.claim_groups(1, owner="t", step=2, replay=ReplaySpec(max_uses=2))
    np.testing.assert_array_equal(again.groups[0].experiences[0].teacher_logprobs, logprobs)


def test_an_empty_answer_comes_back_with_what_a_teacher_said_of_it(buffer):
    empty = dataclasses.replace(experience(0, tokens=0), teacher_logprobs=np.zeros((0, 1), np.float32))
    buffer.put_groups([dataclasses.replace(group(0), experiences=(empty,))])
    (read,) = buffer.claim_groups(1, owner="t", step=1).groups[0].experiences
    assert read.teacher_logprobs.shape == (0, 1)


def test_only_training_reads_what_teachers_said():
    """It is a hundred times an answer's size."""
    reading = {name for name, text in vars(queries).items() if "teacher_logprobs" in str(text)}
    dropping = {"DROP_CONTENT", "DROP_TEACHERS"}
    assert reading == {"PUT_EXPERIENCES", "_CLAIMED_EXPERIENCE", "CLAIMED_EXPERIENCES", *dropping}


def test_a_metric_that_no_float_holds_is_left_out_and_named_once(buffer, caplog, monkeypatch):
    monkeypatch.setattr(codec, "_reported", set())
    # Libraries that other tests have imported may have switched loggers off.
    monkeypatch.setattr(codec, "_log", logging.getLogger(f"{__name__}.metrics"))
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    caplog.set_level(logging.WARNING)
    metrics = {
        "a": 1,
        "far": 10**400,
        "text": "x",
        "whole": np.array([1, 2]),
        "b": np.float32(0.5),
        "c": math.inf,
    }
    for step in (1, 2):
        buffer.log_metrics("trainer", step, metrics)
    assert buffer.read_metrics("trainer") == [(step, {"a": 1.0, "b": 0.5, "c": math.inf}) for step in (1, 2)]
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "metric far of trainer's step 1 is left out: no float holds an integer of 1329 bits",
        "metric text of trainer's step 1 is left out: no float holds 'x'",
        "metric whole of trainer's step 1 is left out: no float holds array([1, 2])",
    ]


def test_a_metric_beyond_a_float_that_an_older_release_stored_hinders_no_reading(buffer):
    assert codec.numbers(f'{{"a":1.5,"far":1{"0" * 400}}}') == {"a": 1.5}
    odd = dataclasses.replace(experience(0), metrics={"far": 10**400, "near": 1.0})
    buffer.put_groups([dataclasses.replace(group(0), experiences=(odd,))])
    assert buffer.groups("train")[0].experiences[0].metrics == {"near": 1.0}


@pytest.mark.parametrize("name", ["response_mask", "logprobs"])
def test_arrays_of_unequal_length_are_refused(buffer, name):
    bad = dataclasses.replace(experience(1), **{name: np.ones(9, np.float32)})
    with pytest.raises(ValueError, match=f"run 1: {name} has 9 of 4 tokens"):
        buffer.put_groups([group(1), dataclasses.replace(group(0), experiences=(experience(0), bad))])
    assert buffer.groups("train") == []


def test_a_group_without_experiences_is_refused(buffer):
    with pytest.raises(ValueError, match="no experiences"):
        buffer.put_groups([dataclasses.replace(group(0), experiences=())])


def test_the_same_key_twice_is_stored_once(buffer):
    assert buffer.put_groups(groups(3)) == 3
    assert buffer.put_groups([*groups(3), group(7), group(7)]) == 1
    assert [g.task_no for g in buffer.groups("train")] == [0, 1, 2, 7]
    assert len(buffer.experiences()) == 8


def test_experiences_are_paged_by_id(buffer):
    buffer.put_groups(groups(3))
    first = buffer.experiences(limit=4)
    rest = buffer.experiences(after_id=first[-1][0])
    assert [e.response_text for _, e in first + rest] == [
        f"response {t}.{r}" for t in range(3) for r in range(2)
    ]


def test_nothing_is_lost_when_the_buffer_is_opened_again(buffer, url):
    buffer.put_groups(groups(2))
    again = open_buffer(url, create=False)
    assert [g.task_no for g in again.groups("train")] == [0, 1]
    again.close()


# -- claims -------------------------------------------------------------------------------------


def test_claims_come_in_task_order_whatever_order_they_were_written_in(buffer):
    for number in (3, 0, 2, 1):
        buffer.put_groups([group(number)])
    assert tasks(buffer.claim_groups(3, owner="t", step=1)) == [0, 1, 2]
    assert buffer.claim_groups(3, owner="t", step=1) is None
    assert tasks(buffer.claim_groups(1, owner="t", step=1)) == [3]


def test_higher_priority_comes_first(buffer):
    buffer.put_groups([group(0), group(1, priority=2.0), group(2, priority=2.0), group(3, priority=-1)])
    assert tasks(buffer.claim_groups(4, owner="t", step=1)) == [1, 2, 0, 3]


def test_a_claim_takes_all_or_nothing(buffer):
    buffer.put_groups(groups(3))
    assert buffer.claim_groups(4, owner="t", step=1) is None
    assert buffer.depth() == {"ready": 3, "claimed": 0, "trained": 0, "stale": 0, "void": 0}


def test_a_claim_holds_its_kind_only(buffer):
    buffer.put_groups([group(0), group(0, key="e", kind="eval:1")])
    assert tasks(buffer.claim_groups(1, owner="t", step=1)) == [0]
    assert buffer.claim_groups(1, owner="t", step=1) is None
    assert [g.key for g in buffer.groups("eval:1")] == ["e"]


def test_released_groups_return_in_their_old_order(buffer):
    buffer.put_groups(groups(4))
    claim = buffer.claim_groups(2, owner="t", step=1)
    buffer.release(claim)
    buffer.release(claim)
    assert tasks(buffer.claim_groups(4, owner="t", step=1)) == [0, 1, 2, 3]
    with pytest.raises(ClaimLost, match="released"):
        buffer.mark_trained(claim, step=1)


def test_a_lapsed_lease_gives_the_groups_to_the_next_and_fences_the_first(buffer, clock, sql):
    buffer.put_groups(groups(2))
    first = buffer.claim_groups(2, owner="a", step=1, lease_s=10)
    clock.seconds += 11
    assert buffer.depth()["ready"] == 2
    second = buffer.claim_groups(2, owner="b", step=1, lease_s=10)
    assert tasks(second) == [0, 1]
    for late in (lambda: buffer.renew(first), lambda: buffer.mark_trained(first, step=1)):
        with pytest.raises(ClaimLost, match="of a, step 1: its lease lapsed"):
            late()
    buffer.release(first)  # must not free what the second one holds
    assert buffer.depth()["claimed"] == 2
    buffer.mark_trained(second, step=1)
    assert sql("SELECT count(*) FROM ledger") == [(4,)]


def test_a_lapsed_lease_that_nobody_took_over_still_counts(buffer, clock):
    buffer.put_groups(groups(2))
    claim = buffer.claim_groups(2, owner="a", step=1, lease_s=10)
    clock.seconds += 11
    assert buffer.claim_groups(3, owner="b", step=1) is None
    buffer.renew(claim, lease_s=10)
    assert buffer.claim_groups(2, owner="b", step=1) is None
    clock.seconds += 11
    buffer.mark_trained(claim, step=1)
    assert buffer.depth()["trained"] == 2


def test_marking_twice_enters_once(buffer, sql):
    buffer.put_groups(groups(2))
    claim = buffer.claim_groups(2, owner="t", step=1)
    buffer.mark_trained(claim, step=1)
    buffer.mark_trained(claim, step=1)
    with pytest.raises(ClaimLost, match="in the ledger already"):
        buffer.mark_trained(claim, step=2)
    assert sql("SELECT trainer_step, count(*) FROM ledger GROUP BY 1") == [(1, 4)]


def test_stale_groups_are_dropped_and_their_tasks_are_missing_again(buffer):
    buffer.put_groups([group(0, version=0), group(1, version=1), group(2, version=2)])
    assert buffer.missing_tasks(upto=3, limit=9) == []
    assert tasks(buffer.claim_groups(2, owner="t", step=3, min_version=1)) == [1, 2]
    assert buffer.depth()["stale"] == 1
    assert buffer.missing_tasks(upto=4, limit=9) == [0, 3]
    buffer.put_groups([group(0, version=2)])
    assert tasks(buffer.claim_groups(1, owner="t", step=3, min_version=1)) == [0]


def test_a_clock_that_was_put_back_keeps_nothing_from_its_next_use(buffer, clock):
    buffer.put_groups(groups(1))
    train(buffer, 1, 1)
    clock.seconds -= 500
    assert train(buffer, 1, 2, replay=ReplaySpec(max_uses=2, cooldown_s=30)) == [0]


def test_a_released_reuse_goes_back_to_the_trained_ones(buffer):
    buffer.put_groups(groups(1))
    train(buffer, 1, 1)
    buffer.release(buffer.claim_groups(1, owner="t", step=2, replay=ReplaySpec(max_uses=2)))
    assert buffer.claim_groups(1, owner="t", step=2) is None
    assert buffer.depth()["trained"] == 1


# -- tasks --------------------------------------------------------------------------------------


def test_missing_tasks_are_the_gaps(buffer):
    buffer.put_groups([group(n) for n in (0, 1, 3, 6)])
    assert buffer.missing_tasks(upto=8, limit=9) == [2, 4, 5, 7]
    assert buffer.missing_tasks(upto=8, limit=2) == [2, 4]
    buffer.put_groups([group(2)])
    assert buffer.missing_tasks(upto=8, limit=9) == [4, 5, 7]
    assert buffer.missing_tasks(upto=2, limit=9) == []


def test_evaluation_fills_no_task(buffer):
    buffer.put_groups([group(0, kind="eval:1")])
    assert buffer.missing_tasks(upto=1, limit=9) == [0]


# -- weights, evaluation, liveness --------------------------------------------------------------


def test_versions_grow(buffer):
    assert buffer.latest_version() is None
    buffer.publish_version(version(0))
    buffer.publish_version(version(4))
    with pytest.raises(ValueError, match="version 3 after 4"):
        buffer.publish_version(version(3))
    buffer.publish_version(version(4, path="again"))
    assert buffer.latest_version() == version(4, path="again")
    assert (buffer.get_version(0), buffer.get_version(3)) == (version(0), None)


def test_an_evaluation_is_asked_once_and_done_once(buffer):
    assert buffer.glance().evaluation is None
    first = buffer.request_eval(step=2, version=2)
    assert buffer.request_eval(step=2, version=2) == first
    second = buffer.request_eval(step=4, version=4)
    assert buffer.glance().evaluation == first
    assert not buffer.eval_done(first)
    buffer.finish_eval(first)
    assert buffer.eval_done(first)
    assert buffer.glance().evaluation == second


def test_participants_age_by_the_databases_clock(buffer, clock):
    buffer.beat("explorer", "e0", state="starting")
    clock.seconds += 5
    buffer.beat("trainer", "t", state="running", detail={"step": 3})
    buffer.beat("explorer", "e0", state="running")
    clock.seconds += 2
    found = {p.name: (p.role, p.state, p.age_s, p.detail) for p in buffer.participants()}
    assert found == {"e0": ("explorer", "running", 2.0, {}), "t": ("trainer", "running", 2.0, {"step": 3})}


def test_the_newest_group_ages_by_the_databases_clock(buffer, clock):
    assert buffer.newest_group_age_s() is None
    buffer.put_groups([group(0)])
    clock.seconds += 5
    buffer.put_groups([group(1)])
    clock.seconds += 2
    assert buffer.newest_group_age_s() == 2.0


def test_state_is_json(buffer):
    buffer.set_state("position", {"epoch": 1, "rng": [1, 2]})
    buffer.set_state("position", {"epoch": 2})
    buffer.set_state("empty", {})
    assert buffer.get_state("position") == {"epoch": 2}
    assert buffer.get_state("empty") == {}
    assert buffer.get_state("other") is None


def test_metrics_replace_by_step(buffer):
    buffer.log_metrics("trainer", 1, {"loss": 1.0})
    buffer.log_metrics("trainer", 2, {"loss": math.nan})
    buffer.log_metrics("trainer", 1, {"loss": 0.5})
    buffer.log_metrics("explorer", 1, {"reward": 1.0})
    (one, two) = buffer.read_metrics("trainer")
    assert one == (1, {"loss": 0.5})
    assert math.isnan(two[1]["loss"])
    assert [step for step, _ in buffer.read_metrics("trainer", after_step=1)] == [2]


# -- resume -------------------------------------------------------------------------------------


def three_steps(buffer):
    """Tasks 0-1 trained in step 1, 2-3 in 2, 4-5 in 3; version v made tasks 2v and 2v+1; 6-7 wait."""
    for step in (1, 2, 3):
        buffer.publish_version(version(step - 1))
        buffer.put_groups(groups(2, first=2 * step - 2, version=step - 1))
        buffer.log_metrics("trainer", step, {"step": step})
        train(buffer, 2, step)
    buffer.put_groups(groups(2, first=6, version=1))
    assert buffer.missing_tasks(upto=8, limit=9) == []


def test_resume_returns_untrained_groups_and_voids_those_of_lost_weights(buffer, sql):
    three_steps(buffer)
    done = buffer.reconcile(step=1)
    assert (done.history, done.ready_again, done.voided, done.kept) == (2, 4, 2, 2)
    assert buffer.history() == 2
    assert buffer.missing_tasks(upto=8, limit=9) == [4, 5]  # made by version 2, which is lost
    assert buffer.latest_version() == version(1)
    assert buffer.read_metrics("trainer") == [(1, {"step": 1.0})]
    buffer.put_groups(groups(2, first=4, version=1))  # the same keys as the void ones
    assert [train(buffer, 2, step) for step in (2, 3, 4)] == [[2, 3], [4, 5], [6, 7]]
    steps = sql("SELECT history_id, trainer_step, count(*), max(use_no) FROM ledger GROUP BY 1, 2 ORDER BY 2")
    assert steps == [(1, 1, 4, 1), (2, 2, 4, 1), (2, 3, 4, 1), (2, 4, 4, 1)]


def test_resume_from_the_start_keeps_what_the_initial_policy_made(buffer, sql):
    three_steps(buffer)
    done = buffer.reconcile(step=0)
    assert (done.ready_again, done.voided, done.kept) == (2, 6, 0)
    assert sql("SELECT count(*) FROM ledger") == [(0,)]
    assert buffer.missing_tasks(upto=8, limit=9) == [2, 3, 4, 5, 6, 7]


def test_nothing_trained_before_the_checkpoint_returns(buffer):
    three_steps(buffer)
    buffer.reconcile(step=3)
    assert train(buffer, 2, 4) == [6, 7]
    assert buffer.claim_groups(1, owner="t", step=5) is None


def test_resume_fences_the_claims_and_writers_of_the_old_history(buffer):
    buffer.put_groups(groups(2))
    old = buffer.history()
    claim = buffer.claim_groups(2, owner="zombie", step=1)
    buffer.reconcile(step=0)
    with pytest.raises(ClaimLost, match="a resume started a new history"):
        buffer.mark_trained(claim, step=1)
    with pytest.raises(HistoryChanged):
        buffer.put_groups([group(5)], history=old)
    assert train(buffer, 2, 1) == [0, 1]


def test_resume_takes_back_only_the_lost_uses_of_a_reused_group(buffer, sql):
    buffer.put_groups(groups(1))
    assert [train(buffer, 1, step, replay=ReplaySpec(max_uses=9)) for step in (1, 2, 3)] == [[0]] * 3
    buffer.reconcile(step=2)
    assert sql("SELECT DISTINCT use_no, trainer_step FROM ledger ORDER BY 1") == [(1, 1), (2, 2)]
    assert train(buffer, 1, 3, replay=ReplaySpec(max_uses=3)) == [0]
    assert buffer.claim_groups(1, owner="t", step=4, replay=ReplaySpec(max_uses=3)) is None
    assert sql("SELECT max(use_no) FROM ledger") == [(3,)]


def test_what_was_made_otherwise_is_not_trained_again(buffer):
    buffer.put_groups(groups(2))
    assert train(buffer, 2, 1) == [0, 1]
    buffer.reconcile(step=1, remake=True)  # the script was edited
    again = {"replay": ReplaySpec(max_uses=9)}
    assert buffer.claim_groups(2, owner="t", step=2, **again) is None
    buffer.put_groups([group(2), group(3)])
    assert train(buffer, 2, 2, **again) == [2, 3]
    assert train(buffer, 2, 3, **again) == [2, 3]


def test_a_lost_version_can_be_published_again(buffer):
    three_steps(buffer)
    buffer.reconcile(step=1)
    buffer.publish_version(version(1, path="restored"))
    buffer.publish_version(version(2, path="new"))
    assert (buffer.get_version(1).path, buffer.get_version(2).path) == ("restored", "new")


def test_evaluations_and_participants_belong_to_their_history(buffer):
    buffer.beat("trainer", "t", state="running")
    old = buffer.request_eval(step=2, version=2)
    buffer.reconcile(step=1)
    assert buffer.participants() == []
    assert buffer.glance().evaluation is None
    assert buffer.request_eval(step=2, version=2) != old


def test_explorer_metrics_stay_and_a_redone_step_replaces_them(buffer):
    buffer.log_metrics("explorer", 2, {"reward": 0.1})
    buffer.reconcile(step=1)
    assert buffer.read_metrics("explorer") == [(2, {"reward": 0.1})]
    buffer.log_metrics("explorer", 2, {"reward": 0.2})
    assert buffer.read_metrics("explorer") == [(2, {"reward": 0.2})]


def test_a_resume_s_first_validation_joins_the_metrics_of_its_checkpoint_s_step(buffer):
    buffer.log_metrics("trainer", 1, {"loss": 0.5})
    buffer.reconcile(step=1)
    buffer.log_metrics("trainer", 1, {"val-core/acc": 0.75})
    joined = [(1, {"loss": 0.5, "val-core/acc": 0.75})]
    assert buffer.read_metrics("trainer") == buffer.read_metrics("trainer", newest=5) == joined


def test_one_glance_tells_what_the_single_questions_do(buffer):
    def same():
        seen = buffer.glance()
        parts = (buffer.history(), bool(buffer.get_state("finished")), buffer.latest_version())
        assert (seen.history, seen.finished, seen.latest) == parts
        return seen

    assert same().latest is None
    buffer.set_state("finished", False)
    buffer.publish_version(version(0))
    buffer.publish_version(version(2))
    first = buffer.request_eval(step=1, version=0)
    buffer.request_eval(step=2, version=2)
    assert (same().evaluation, same().latest) == (first, version(2))
    buffer.finish_eval(first)
    buffer.set_state("finished", True)
    assert same().finished and same().evaluation.step == 2
    buffer.reconcile(step=0)
    assert (same().history, same().evaluation, same().latest) == (2, None, version(0))
