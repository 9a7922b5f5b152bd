"""What the trainer does with the buffer, without a model."""

import logging
import math
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.errors import ClaimLost
from trinity_compat.buffer.heartbeat_thread import SilenceDetector
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.job import stop_request
from trinity_compat.job.fingerprint import FilesEdited, made, sign
from trinity_compat.job.run_spec import ReplaySpec, RunSpec, SyncSpec
from trinity_compat.synchronizer.transports.files import versions_in

pytestmark = pytest.mark.verl  # verl's DataProto is imported along the way

BATCH, RUNS = 2, 3


@pytest.fixture
def buffer(tmp_path):
    buffer = open_buffer(f"sqlite:///{tmp_path}/b.db")
    yield buffer
    buffer.close()


@pytest.fixture
def heart(buffer):
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    with LeaseHeartbeat(buffer, "t0", beat_s=0.05) as heart:
        yield heart


@pytest.fixture
def make(buffer, heart, tmp_path):
    from trinity_compat.trainer.exchange import BufferExchange

    def make(database=buffer, **changes):
        sync = changes.pop("sync", SyncSpec(directory=str(tmp_path / "sync"), timeout_s=0.5))
        spec = RunSpec("", "", changes.pop("verl", {}), 1, None, sync, **changes)
        return BufferExchange(database, spec, heart, batch_size=BATCH, group_size=RUNS, val_size=2)

    return make


def group(number, *, runs=RUNS, version=0, kind="train"):
    def one(run):
        ids = np.array([1, 2], np.int32)
        ones, logprobs = np.ones(2, np.uint8), np.zeros(2, np.float32)
        return Experience(run, ids, ids, ones, logprobs, 1.0, version, version)

    return Group(f"{kind}-{number}", number, {}, 1, tuple(map(one, range(runs))), kind)


def put(buffer, *numbers, **more):
    buffer.put_groups([group(number, **more) for number in numbers])


def send(tmp_path):
    from trinity_compat.synchronizer.transports.files import write_file

    return lambda version: write_file(tmp_path / "sync", version, [("w", torch.full((2,), float(version)))])


def test_a_wait_for_answers_ends_where_the_user_asked_for_the_end(buffer, make, tmp_path, monkeypatch):
    exchange, stop = make(), stop_request.path_of(tmp_path)
    monkeypatch.chdir(tmp_path)  # the job's folder of these tests
    stop.parent.mkdir()
    put(buffer, 0)
    assert stop_request.ask(tmp_path)
    with pytest.raises(stop_request.StopBeforeStep):
        exchange.claim(1)
    put(buffer, 1)
    assert len(exchange.claim(1).groups) == BATCH, "a step whose answers are there is trained"
    stop.write_text("step\nnow\n")
    assert not stop_request.ask(tmp_path)


def test_a_step_s_sample_keeps_what_the_trainer_s_policy_gives_its_tokens(buffer, make):
    """Of two groups the one whose rewards differ, although the other is worse; by tokens, not by place."""
    from verl import DataProto

    from trinity_compat.trainer.batch import BatchShape, scores_of, to_dataproto

    def graded(number, rewards):
        made = group(number)
        parts = zip(made.experiences, rewards, strict=True)
        answers = [
            replace(it, reward=reward, response_ids=np.array([number, it.run], np.int32))
            for it, reward in parts
        ]
        return replace(made, experiences=tuple(answers))

    buffer.put_groups([graded(1, (0.0, 0.0, 0.0)), graded(2, (0.0, 1.0, 1.0))])
    exchange = make(token_scores=1)
    claimed = exchange.claim(1).groups
    batch = to_dataproto([it for each in claimed for it in each.experiences], BatchShape(3, 4, 0))
    batch.reorder(torch.tensor([5, 4, 3, 2, 1, 0]))  # as veRL balances its ranks
    own = batch.batch["responses"].float()
    scored = DataProto.from_dict({"old_log_probs": -own, "entropys": 2 * own})
    exchange.keep_scores(lambda answers: scores_of(answers, batch, scored))
    exchange.keep_scores(lambda answers: [None] * len(answers))  # an estimator's second pass adds nothing
    exchange.commit(1)
    with buffer._db.engine.connect() as conn:
        rows = conn.exec_driver_sql(
            "SELECT run, trainer_logprobs, entropies FROM experiences WHERE trainer_logprobs IS NOT NULL"
        ).all()
    floats = [(run, *(np.frombuffer(part, "<f4").tolist() for part in parts)) for run, *parts in rows]
    assert floats == [(run, [-2.0, -float(run)], [4.0, 2.0 * run]) for run in range(3)]
    assert scores_of(graded(9, (0.0, 0.0, 0.0)).experiences[:1], batch, scored) == [None]


def test_replay_fills_a_step_with_groups_that_were_trained_before(buffer, make):
    exchange = make(replay=ReplaySpec(max_uses=2))
    put(buffer, 0, 1)
    steps = {1: [0, 1]}
    exchange.claim(1)
    exchange.commit(1)
    put(buffer, 2)
    steps |= {2: [2, 0], 3: [1, 2]}  # the new one first, then by the time of the last use
    for step in (2, 3):
        assert [g.task_no for g in exchange.claim(step).groups] == steps[step]
        exchange.commit(step)
    told = exchange.log(3, {})
    assert (told["training/group_uses/mean"], told["training/group_uses/max"]) == (2, 2)
    with pytest.raises(RunError, match="no explorer"):
        exchange.claim(4)


def test_a_renewal_right_after_the_entry_finds_no_claim_to_lose(buffer, heart, make, monkeypatch):
    exchange, renewed, enter = make(), [], buffer.mark_trained
    put(buffer, 0, 1)
    exchange.claim(1)

    def entered(claim, *, step):
        enter(claim, step=step)
        heart._renewed = -math.inf  # due
        heart.after_beat(buffer)

    monkeypatch.setattr(buffer, "mark_trained", entered)
    monkeypatch.setattr(buffer, "renew", lambda claim, **_: renewed.append(claim))
    exchange.commit(1)
    assert renewed == []


def test_a_replay_ends_when_the_explorer_dies(buffer, make, monkeypatch):
    from trinity_compat.trainer import explorer_liveness
    from trinity_compat.trainer.explorer_liveness import PeerGone

    monkeypatch.setattr(explorer_liveness, "POLL_S", 0.0)
    exchange = make(replay=ReplaySpec(max_uses=9))
    put(buffer, 0, 1)
    exchange.claim(1)
    exchange.commit(1)
    exchange.claim(2)  # none ever came: a trainer may go on alone
    exchange.commit(2)
    buffer.beat("explorer", "e0", state="done")
    exchange.claim(3)
    exchange.commit(3)
    buffer.beat("explorer", "e0", state="failed", detail={"reason": "out of memory"})
    with pytest.raises(PeerGone, match="new groups for step 4, but explorer e0 failed: out of memory"):
        exchange.claim(4)


@pytest.mark.parametrize("signed", ["by the explorer", "by the trainer"])
def test_groups_of_an_edited_script_are_made_again_also_before_the_first_step(buffer, make, signed, tmp_path):
    before, after = {"data": {"max_response_length": 5}}, {"data": {"max_response_length": 9}}
    if signed == "by the explorer":
        sign(buffer, made(RunSpec("", "", before, 1, None, SyncSpec()), cwd=tmp_path))
    else:
        make(verl=before).resumed(0)
    put(buffer, 0, 1)
    make(verl=before).resumed(0)
    assert buffer.depth()["ready"] == 2
    make(verl=after).resumed(0)
    assert buffer.depth()["void"] == 2
    put(buffer, 0, 1)
    make(verl=after).resumed(0)
    assert buffer.depth()["ready"] == 2


@pytest.fixture
def reward(tmp_path):
    """A reward file, and the configuration that names it."""
    path = tmp_path / "r.py"
    path.write_text("def compute_score(**_):\n    return 1.0\n")
    return path, {"reward": {"custom_reward_function": {"path": str(path), "name": "compute_score"}}}


def trained_two_steps(make, buffer, **given):
    """And two more groups wait. The position of step 2."""
    exchange = make(**given)
    exchange.resumed(0)
    put(buffer, 0, 1, 2, 3, 4, 5)
    for step in (1, 2):
        exchange.claim(step)
        exchange.commit(step)
    return exchange.position(2)


def test_a_resume_with_an_edited_reward_file_trains_none_of_the_waiting_groups(buffer, make, reward, caplog):
    caplog.set_level(logging.INFO)
    path, verl = reward
    kept = trained_two_steps(make, buffer, verl=verl)
    path.write_text("def compute_score(**_):\n    return -7.0\n")
    make(verl=verl).resumed(2, kept)
    assert {k: v for k, v in buffer.depth().items() if v} == {"trained": 4, "void": 2}
    assert f"reward function {path} was edited: 2 groups will be generated again" in caplog.text
    put(buffer, 4, 5)
    make(verl=verl).resumed(2, kept)  # edited no more
    assert buffer.depth()["ready"] == 2


def test_a_trainer_that_is_started_again_goes_by_the_run_s_files(buffer, make, reward, tmp_path):
    """Its explorer goes on with what it loaded when the run started."""
    path, verl = reward
    run = {"verl": verl, "fingerprint": made(make(verl=verl)._spec, cwd=tmp_path)}
    kept = trained_two_steps(make, buffer, **run)
    path.write_text("def compute_score(**_):\n    return -7.0\n")
    make(**run).resumed(2, kept)
    assert buffer.depth()["ready"] == 2


def test_a_trainer_that_is_started_again_does_not_go_on_with_an_edited_dataset(buffer, make, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    verl = {"data": {"train_files": str(rows)}}
    run = {"verl": verl, "fingerprint": made(make(verl=verl)._spec, cwd=tmp_path)}
    kept = trained_two_steps(make, buffer, **run)
    rows.write_text("{}\n{}\n")
    with pytest.raises(FilesEdited, match=f"training data {rows} was edited since the run started"):
        make(**run).resumed(2, kept)


def test_a_checkpoint_of_a_replay_may_have_trained_fewer_tasks_than_steps_would(make):
    kept = {"below": 3, "beyond": [], "buffer": "another", "history": 1}
    make(replay=ReplaySpec(max_uses=2)).resumed(2, kept)
    with pytest.raises(UserError, match="has trained 3 tasks"):
        make().resumed(2, kept)
    with pytest.raises(UserError, match="has trained 5 tasks"):
        make(replay=ReplaySpec(max_uses=2)).resumed(2, {**kept, "below": 5})


def test_a_step_waits_for_its_groups_and_enters_them_once(buffer, make, monkeypatch):
    exchange, claim, looks = make(), buffer.claim_groups, []

    def claim_and_make_after_the_first_look(*args, **given):
        found = claim(*args, **given)
        if not looks:
            looks.append(found)
            threading.Timer(0.2, put, (buffer, 0, 1, 2)).start()
        return found

    monkeypatch.setattr(buffer, "claim_groups", claim_and_make_after_the_first_look)
    buffer.beat("explorer", "e0", state="running")
    claimed = exchange.claim(1)
    assert [g.task_no for g in claimed.groups] == [0, 1]
    assert claimed.waited_s > 0.1
    exchange.commit(1)
    exchange.commit(1)
    assert {k: v for k, v in buffer.depth().items() if v} == {"trained": 2, "ready": 1}


def test_a_group_of_another_size_is_refused(buffer, make):
    put(buffer, 0, 1, runs=2)
    with pytest.raises(RunError, match="holds 2 answers, not 3"):
        make().claim(1)


def taught(number, *, top=False, rows=RUNS):
    """A group whose first ``rows`` answers have a teacher's rows."""
    made = group(number)
    size = 4 if top else 1
    arrays = {
        "teacher_ids": np.zeros((2, size), np.int32) if top else None,
        "teacher_logprobs": np.zeros((2, size), np.float32),
    }
    parts = [replace(part, **arrays) if part.run < rows else part for part in made.experiences]
    return replace(made, experiences=tuple(parts))


def distilled(mode, estimator="grpo"):
    loss = {"enabled": True, "distillation_loss": {"loss_mode": mode}}
    return {"distillation": loss, "algorithm": {"adv_estimator": estimator}}


@pytest.mark.parametrize(
    ("mode", "rows", "lacks"),
    [
        ("k1", {"rows": 0}, "needs a teacher's log-probabilities, and has none"),
        ("k1", {"rows": RUNS - 1}, "and has none"),
        ("k1", {"top": True}, "and has those of another loss_mode"),
        ("forward_kl_topk", {}, "and has those of another loss_mode"),
    ],
)
def test_answers_without_the_rows_of_the_loss_are_refused_before_the_step(buffer, make, mode, rows, lacks):
    buffer.put_groups([taught(number, **rows) for number in range(BATCH)])
    with pytest.raises(RunError, match=f"distillation.enabled=True: group train-0 .*{lacks}"):
        make(verl=distilled(mode)).claim(1)


@pytest.mark.parametrize(
    ("mode", "estimator", "rows"),
    [
        ("k1", "grpo", {}),
        ("forward_kl_topk", "grpo", {"top": True}),
        ("k1", "remax", {"rows": RUNS - 1}),  # no teacher is asked about a baseline
    ],
)
def test_answers_with_the_rows_of_the_loss_are_trained(buffer, make, mode, estimator, rows):
    buffer.put_groups([taught(number, **rows) for number in range(BATCH)])
    assert len(make(verl=distilled(mode, estimator)).claim(1).groups) == BATCH


def test_answers_that_are_not_trained_on_need_no_rows(buffer, make):
    failed = [
        replace(part, response_mask=np.zeros(2, np.uint8)) if part.run else part
        for part in taught(0, rows=1).experiences
    ]
    buffer.put_groups([replace(taught(0), experiences=tuple(failed)), taught(1)])
    assert len(make(verl=distilled("k1")).claim(1).groups) == BATCH


def test_groups_too_old_for_max_staleness_are_dropped(buffer, make):
    put(buffer, 0, 1, version=0)
    put(buffer, 2, 3, version=2)
    assert [g.task_no for g in make(max_staleness=1).claim(4).groups] == [2, 3]
    assert buffer.depth()["stale"] == 2


def test_a_claim_given_back_is_ready_for_the_next_trainer(buffer, make):
    put(buffer, 0, 1)
    exchange = make()
    exchange.claim(1)
    exchange.release()
    assert buffer.depth()["ready"] == 2
    assert [g.task_no for g in make().claim(1).groups] == [0, 1]


def test_a_lost_claim_is_not_entered(buffer, make):
    put(buffer, 0, 1)
    exchange = make()
    exchange.claim(1)
    buffer.reconcile(step=0)
    with pytest.raises(ClaimLost):
        exchange.commit(1)


def test_the_lease_outlives_a_step_longer_than_itself(tmp_path, monkeypatch):
    """The database's clock goes on only after a renewal: a busy machine may be late with one."""
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    now, renewals = [1000.0], []
    buffer = open_buffer(f"sqlite:///{tmp_path}/leased.db", clock=lambda: now[0])
    renew = buffer.renew
    monkeypatch.setattr(buffer, "renew", lambda *a, **k: renewals.append(renew(*a, **k)))
    put(buffer, 0, 1)
    with LeaseHeartbeat(buffer, "t0", lease_s=0.2, beat_s=0.01) as heart:
        heart.keep(buffer.claim_groups(2, owner="t0", step=1, lease_s=0.2))
        for _ in range(4):
            now[0] += 0.15
            seen, until = len(renewals), time.monotonic() + 120
            while len(renewals) < seen + 2:  # of two one has begun after the clock went on
                heart.check()
                assert time.monotonic() < until, "nobody renews the claim"
                time.sleep(0.01)
        assert buffer.claim_groups(2, owner="t1", step=1) is None
    buffer.close()


def test_without_any_explorer_the_wait_ends(make):
    from trinity_compat.trainer.explorer_liveness import PeerGone

    with pytest.raises(PeerGone, match="no explorer has started"):
        make().claim(1)


@pytest.mark.parametrize(
    ("state", "detail", "said"),
    [
        ("failed", {"reason": "vLLM died"}, "explorer e0 failed: vLLM died"),
        ("done", {}, "explorer e0 is done"),
        ("stopped", {"reason": "by a signal"}, "explorer e0 was stopped: by a signal"),
    ],
)
def test_an_explorer_that_ended_ends_the_wait_with_its_reason(buffer, make, state, detail, said):
    from trinity_compat.trainer.explorer_liveness import PeerGone

    buffer.beat("explorer", "e0", state=state, detail=detail)
    with pytest.raises(PeerGone, match=f"waiting for the 2 groups of step 1, but {said}"):
        make().claim(1)


def test_what_an_explorer_stored_before_it_ended_is_still_trained(buffer, make):
    buffer.beat("explorer", "e0", state="done")
    put(buffer, 0, 1)
    assert len(make().claim(1).groups) == 2


class Watched:
    """Explorers, and a watch that looks ``later`` seconds after their last beats."""

    def __init__(self, monkeypatch, tmp_path):
        from trinity_compat.trainer import explorer_liveness

        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(explorer_liveness, "time", clock)
        monkeypatch.setattr(
            explorer_liveness, "SilenceDetector", lambda: SilenceDetector(gap_s=1e9, clock=clock.monotonic)
        )
        self.buffer = open_buffer(f"sqlite:///{tmp_path}/watched.db", clock=clock.monotonic)
        self.watch = explorer_liveness.ExplorerWatch(self.buffer, start_s=3600, stall_s=60.0)

    def beat(self, name, state="running", **detail):
        self.buffer.beat("explorer", name, state=state, detail=detail)

    def verdict(self, *, later):
        self.now += later
        return self.watch.verdict("groups")


@pytest.fixture
def watched(monkeypatch, tmp_path):
    made = Watched(monkeypatch, tmp_path)
    yield made
    made.buffer.close()


def test_an_explorer_silent_for_ten_seconds_is_gone(watched):
    watched.beat("e0")
    assert watched.verdict(later=9) is None
    assert "e0 was last heard of 10 s ago" in str(watched.verdict(later=1))


@pytest.mark.parametrize("state", ["failed", "running"])
@pytest.mark.parametrize("all_needed", [False, True])
def test_one_of_several_explorers_that_died_leaves_its_tasks_to_the_others(watched, state, all_needed):
    """Not where a handover of weights takes all of them."""
    watched.watch._all_needed = all_needed
    watched.beat("e0", state)
    assert state == "failed" or watched.verdict(later=9) is None
    watched.beat("e1")
    found = watched.verdict(later=1)
    assert "but explorer e0 " in str(found) if all_needed else found is None
    watched.beat("e1", "failed")
    assert "explorer e0 " in str(watched.verdict(later=1))


def test_one_of_several_explorers_that_is_done_does_not(watched):
    watched.beat("e0", "done")
    watched.beat("e1")
    assert watched.verdict(later=1) is None


@pytest.mark.parametrize("state", ["failed", "running"])
def test_an_explorer_that_is_started_again_is_waited_for(watched, state):
    watched.beat("e0", state, restarts=1)
    assert watched.verdict(later=100) is None
    watched.beat("e0")
    assert watched.verdict(later=1) is None
    watched.beat("e0", state, restarts=1)
    assert "explorer e0" in str(watched.verdict(later=130))


def test_explorers_hidden_by_another_start_count_as_started(watched):
    """A command that starts beside a run with a job directory of its own forgets all participants."""
    watched.beat("e0")
    assert watched.verdict(later=1) is None
    for _ in range(500):
        watched.now += 9
        watched.beat("e0")
        assert watched.verdict(later=0) is None
    watched.buffer.forget_participants()
    assert watched.verdict(later=1) is None
    assert "no explorer has started" in str(watched.verdict(later=3700))


def waits(watched, seconds, *beats):
    """The verdict after a wait in which the explorers say ``beats`` (name, state, detail) each second."""
    for _ in range(seconds):
        for name, state, detail in beats:
            watched.beat(name, state, **detail)
        found = watched.verdict(later=1)
    return found


def test_sides_that_wait_for_each_other_do_not_wait_for_ever(watched):
    idle = ("e0", "waiting", {"progress": 7})
    assert waits(watched, 120, idle) is None
    found = waits(watched, 2, idle)
    assert "waited 121 s for groups, while e0 waited too and made no progress" in str(found)
    assert "trinity_compat.stall_timeout" in str(found)


@pytest.mark.parametrize(
    "busy",
    [
        ("e0", "running", {"progress": 7}),
        ("e0", "starting", {"progress": 7}),
        ("e0", "waiting", {"progress": 7, "doing": "loading version 3 of the weights"}),
    ],
)
def test_an_explorer_that_is_at_work_has_limits_of_its_own(watched, busy):
    assert waits(watched, 300, busy) is None
    assert waits(watched, 300, ("e1", "waiting", {"progress": 1}), busy) is None


def test_the_run_s_limit_is_that_of_the_watch(make):
    assert make(stall_timeout_s=45.0)._watch._watchdog.limit_s == 45.0


def test_progress_of_an_explorer_or_another_wait_begins_the_limit_again(watched):
    assert waits(watched, 119, ("e0", "waiting", {"progress": 7})) is None
    assert waits(watched, 119, ("e0", "waiting", {"progress": 8})) is None
    assert watched.watch.verdict("groups") is None
    watched.now += 1
    assert watched.watch.verdict("an evaluation") is None
    assert watched.verdict(later=1) is None


def test_a_group_that_came_between_the_look_and_the_verdict_is_taken(buffer, make, monkeypatch):
    """The explorer stores the last groups of a step, and is done; the trainer had looked a moment before."""
    exchange = make()
    put(buffer, 0)

    def verdict(what):
        put(buffer, 1)
        return RuntimeError(f"nobody is left for {what}")

    monkeypatch.setattr(exchange._watch, "verdict", verdict)
    assert [g.task_no for g in exchange.claim(1).groups] == [0, 1]
    monkeypatch.setattr(exchange._watch, "verdict", lambda what: RuntimeError(f"nobody is left for {what}"))
    exchange.commit(1)
    with pytest.raises(RuntimeError, match="nobody is left for the 2 groups of step 2"):
        exchange.claim(2)


def test_versions_come_every_interval_and_old_files_go(buffer, make, tmp_path):
    exchange = make(sync=SyncSpec(interval=2, directory=str(tmp_path / "sync")))
    put(buffer, *range(4 * BATCH))
    for step in range(5):
        exchange.publish(step, send(tmp_path))
    assert buffer.latest_version().version == 4
    assert [buffer.get_version(v) is not None for v in range(5)] == [True, False, True, False, True]
    assert sorted(path.name for path in (tmp_path / "sync").iterdir()) == ["spare", "v00000004"]


def test_a_version_stays_while_an_explorer_that_is_behind_may_ask_for_it(buffer, make, tmp_path):
    """Two explorers, one of them fast: the trainer has taken its tasks of later steps first."""
    exchange = make(sync=SyncSpec(offset=1, directory=str(tmp_path / "sync"), timeout_s=1), explorers=2)
    exchange.publish(0, send(tmp_path))
    put(buffer, 0, 1, 3, 5, 7)  # 2 is missing: it is of step 2, made by version 0
    for step in (1, 2):
        exchange.claim(step)
        exchange.publish(step, send(tmp_path))
    assert sorted(versions_in(tmp_path / "sync")) == [0, 1, 2]
    put(buffer, 2, 4)
    exchange.publish(3, send(tmp_path))
    assert sorted(versions_in(tmp_path / "sync")) == [2, 3]


def test_evaluation_uses_the_weights_of_its_own_step(buffer, make, tmp_path):
    exchange = make(sync=SyncSpec(interval=4, directory=str(tmp_path / "sync"), timeout_s=600))

    def explorer():
        while (request := buffer.glance().evaluation) is None:
            time.sleep(0.02)
        assert buffer.get_version(request.version).version == 3
        put(buffer, 1, 0, runs=1, kind=f"eval:{request.request_id}")
        buffer.finish_eval(request)

    exchange.publish(0, send(tmp_path))
    thread = threading.Thread(target=explorer)
    thread.start()
    assert [g.task_no for g in exchange.evaluate(3, send(tmp_path))] == [0, 1]
    thread.join()


def test_an_evaluation_with_a_hole_is_an_error(buffer, make, tmp_path):
    exchange = make()
    request = buffer.request_eval(step=0, version=0)
    put(buffer, 0, runs=1, kind=f"eval:{request.request_id}")
    buffer.finish_eval(request)
    with pytest.raises(RunError, match="has 1 of 2 tasks"):
        exchange.evaluate(0, send(tmp_path))


def test_a_fresh_job_keeps_its_first_history(buffer, make):
    make().resumed(0)
    assert buffer.history() == 1


def test_a_restart_without_checkpoint_starts_again(buffer, make, tmp_path):
    first = make()
    first.publish(0, send(tmp_path))
    put(buffer, 0, 1)
    first.claim(1)
    first.commit(1)
    make().resumed(0)
    assert buffer.history() == 2
    assert buffer.depth()["ready"] == 2


def test_disable_leaves_what_an_earlier_run_left_in_the_database(buffer, make, tmp_path):
    make().publish(0, send(tmp_path))
    put(buffer, 0, 1)
    make().resumed(0, afresh=True)
    assert buffer.depth()["ready"] == 0
    assert buffer.latest_version() is None
    assert buffer.missing_tasks(upto=4, limit=2) == [0, 1]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_fresh_database_goes_on_at_the_checkpoint_s_task(buffer, make, tmp_path, keeps):
    """With what our checkpoint keeps, and with one of stock veRL, which keeps nothing for us."""
    other = open_buffer(f"sqlite:///{tmp_path}/other.db")
    put(other, 0, 1)
    first = make(other)
    first.claim(1)
    first.commit(1)
    make().resumed(1, first.position(1) if keeps else None)
    assert buffer.missing_tasks(upto=6, limit=2) == [2, 3]
    other.close()


def test_another_batch_size_than_the_checkpoint_s_is_refused(buffer, make):
    """The explorer would count other steps than the trainer, and wait for a version that never comes."""
    put(buffer, 0, 1, 2, 3)
    exchange = make()
    for step in (1, 2):
        exchange.claim(step)
        exchange.commit(step)
    kept = exchange.position(2)
    with pytest.raises(UserError, match=r"trained 3 tasks; data\.train_batch_size=2 makes 4 of 2 steps"):
        make().resumed(2, {**kept, "below": 3})
    make().resumed(2, kept)


def test_tasks_that_were_trained_out_of_order_count_as_trained(make):
    kept = {"below": 1, "beyond": [2, 5, 6], "buffer": "another", "history": 1}
    make().resumed(2, kept)
    with pytest.raises(UserError, match="has trained 3 tasks"):
        make().resumed(2, {**kept, "beyond": [2, 5]})


ROLLOUT = {"actor_rollout_ref": {"rollout": {"n": 3, "temperature": 1.0}}}


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, 2),
        ({"trainer": {"total_epochs": 9}}, 2),
        ({"actor_rollout_ref": {"rollout": {"n": 3, "temperature": 0.5}}}, 0),
        ({"reward": {"custom_reward_function": {"path": "other.py"}}}, 0),
    ],
)
def test_what_other_settings_made_is_made_again(buffer, make, tmp_path, changed, left):
    """Of a job whose script was edited: what it has trained stays, what waits for training does not."""
    first = make(verl=ROLLOUT)
    first.resumed(0)
    first.publish(0, send(tmp_path))
    put(buffer, 0, 1, 2, 3)
    first.claim(1)
    first.commit(1)
    make(verl=ROLLOUT | changed).resumed(1, first.position(1))
    assert (buffer.depth()["trained"], buffer.depth()["ready"]) == (2, left)
    make(verl=ROLLOUT | changed).resumed(1, first.position(1))
    assert buffer.depth()["ready"] == left
    assert buffer.missing_tasks(upto=4, limit=4) == [2, 3][left:]


def test_metrics_of_a_step_are_kept_and_completed(buffer, make):
    put(buffer, 0, 1)
    exchange = make()
    exchange.claim(1)
    exchange.commit(1)
    given = {"perf/total_num_tokens": 100, "perf/time_per_step": 4.0, "note": "text"}
    out = exchange.log(1, given)
    assert out["note"] == "text"
    ((step, kept),) = buffer.read_metrics("trainer")
    assert step == 1
    assert kept["perf/tokens_per_second"] == 25.0
    assert kept["training/model_version_lag/mean"] == 0.0
    assert kept["buffer/trained"] == 2.0
    assert "timing_s/buffer_wait" in kept
    assert "note" not in kept
    assert "timing_s/buffer_wait" not in exchange.log(2, {}), "it was the first step's"


def test_a_trainer_that_waits_goes_on_and_one_in_a_call_must_come_back(buffer):
    from trinity_compat.common.hung_process import HungProcess
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    clock = [0.0]

    def passes(seconds):
        for _ in range(seconds):
            clock[0] += 1
            heart.watchdog.tick()
        return heart.watchdog.look()

    heart = LeaseHeartbeat(buffer, "t0", limit_s=60.0)
    heart.watchdog._clock, heart.watchdog._last = lambda: clock[0], 0.0
    for _ in range(10):
        heart.say("waiting", step=3)
        assert passes(300) is None
        heart.check()
    heart.say("running", step=3)
    assert passes(300) is None
    heart.record_call("actor_update_actor", lambda: [HungProcess("training process 0", 1, host="node7")])
    assert passes(360) is None
    found = passes(1)
    assert found.what == "running step 3, actor_update_actor in the training processes"
    assert [each.name for each in found.suspects] == ["training process 0"]
    heart.record_call("actor_save_checkpoint", list)
    assert passes(360) is None
    assert heart.progress()[1] == ["running step 3, actor_save_checkpoint in the training processes"]


def test_a_trainer_says_with_each_beat_whether_it_would_be_started_again(buffer, monkeypatch):
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    monkeypatch.setenv("TRINITY_COMPAT_RESTARTS", "2")
    with LeaseHeartbeat(buffer, "t0") as heart:
        heart.say("failed", reason="out of memory")
    (trainer,) = buffer.participants()
    assert trainer.detail.items() >= {"reason": "out of memory", "restarts": 2}.items()


def test_a_new_state_or_a_note_does_not_wait_for_the_next_beat(buffer):
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    heart = LeaseHeartbeat(buffer, "t0", beat_s=3600.0)  # it has not begun: nothing beats but what is said
    heart.say("running", step=3)
    (trainer,) = buffer.participants()
    assert (trainer.state, trainer.detail["step"]) == ("running", 3)
    heart.note("waits for a place")
    (trainer,) = buffer.participants()
    assert "waits for a place" in trainer.detail.values()


def test_publishing_takes_the_seconds_between_its_beginning_and_its_end(buffer, make, tmp_path, monkeypatch):
    from trinity_compat.trainer import exchange as exchanges

    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, sleep=time.sleep)
    monkeypatch.setattr(exchanges, "time", clock)

    def sending(version):
        clock.now += 7.0
        return send(tmp_path)(version)

    exchange = make()
    exchange.publish(0, sending)
    assert exchange.log(0, {})["timing_s/publish_weights"] == 7.0


def test_the_last_word_of_a_side_is_not_overtaken_by_its_heartbeat(tmp_path):
    """The thread's "running", on its way when the side says "done", lands before it."""
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    landed, at_the_lock, may_go = [], threading.Event(), threading.Event()

    class Slow:
        def beat(self, role, name, *, state, detail=None):
            if state == "running" and threading.current_thread() is not threading.main_thread():
                at_the_lock.set()
                may_go.wait(60)
            landed.append(state)

    with LeaseHeartbeat(Slow(), "t0", beat_s=0.01) as heart:
        heart.say("running")
        assert at_the_lock.wait(60)
        threading.Timer(0.1, may_go.set).start()
        heart.say("done")
    assert landed[-1] == "done"


def test_the_answer_that_checks_the_weights_goes_without_its_teachers_arrays():
    from trinity_compat.trainer.exchange import _example

    made = group(0)
    asked = [replace(part, teacher_logprobs=np.zeros((2, 1), np.float32)) for part in made.experiences]
    example = _example([replace(made, experiences=tuple(asked))])
    assert len(example.response_ids) == 1  # a token less than the answer
    assert example.teacher_logprobs is None
