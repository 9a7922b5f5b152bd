"""An expert's rows beside answers: claimed and entered once, and what veRL's trainer is handed."""

import json
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from test_trainer_exchange import BATCH, RUNS, put

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.job.run_spec import ExpertSpec, RowFormat, RowsSpec, RunSpec, SyncSpec
from trinity_compat.run.toy import make_tokenizer

pytestmark = pytest.mark.verl  # verl is imported along the way

ROWS = [{"prompt": f"sort {number}", "response": str(number)} for number in (21, 43, 65)]
EACH = 2


@pytest.fixture
def job(tmp_path):
    """Starts a trainer's side of a run, as often as it is called, on the same database."""
    from trinity_compat.trainer.exchange import BufferExchange
    from trinity_compat.trainer.experts.claims import Experts
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat
    from trinity_compat.trainer.supervised.formats import Formatter
    from trinity_compat.trainer.supervised.order import RowOrder

    open_now = []

    def start(name="b.db", rows=ROWS):
        buffer = open_buffer(f"sqlite:///{tmp_path}/{name}")
        heart = LeaseHeartbeat(buffer, f"t{len(open_now)}", beat_s=0.05).__enter__()
        open_now.append((heart, buffer))
        told = RowsSpec("sft", ("rows",), format=RowFormat(prompt_type="plaintext"))
        experts = Experts(buffer, rows, Formatter(told, make_tokenizer()), RowOrder(told, len(rows), EACH))
        spec = RunSpec("", "", {}, 1, None, SyncSpec(directory=str(tmp_path / "sync"), timeout_s=0.5))
        sizes = {"batch_size": BATCH, "group_size": RUNS, "val_size": 2}
        return BufferExchange(buffer, spec, heart, experts=experts, **sizes), buffer

    yield start
    for heart, buffer in open_now:
        heart.__exit__()
        buffer.close()


def taken(exchange, step):
    """(places in the expert's stream, rows of the file) of ``step``."""
    experts = exchange.claim(step).experts
    return [group.task_no for group in experts], [group.task["row"] for group in experts]


def ledger(path):
    """(step, key) of every entry about an expert's row that counts."""
    with sqlite3.connect(path) as database:
        return database.execute(
            "SELECT l.trainer_step, g.key FROM ledger_entries l JOIN task_groups g ON g.id = l.group_id"
            " WHERE g.kind = 'expert' AND l.voided_in IS NULL ORDER BY l.trainer_step, g.task_no"
        ).fetchall()


def test_each_step_adds_expert_rows_which_repeat(job, tmp_path):
    exchange, buffer = job()
    put(buffer, *range(6))
    for step, (places, rows) in {1: ([0, 1], [0, 1]), 2: ([2, 3], [2, 0]), 3: ([4, 5], [1, 2])}.items():
        assert taken(exchange, step) == (places, rows)
        assert buffer.depth("expert")["claimed"] == EACH
        exchange.commit(step)
    assert ledger(tmp_path / "b.db") == [(1 + place // 2, f"expert-{place}") for place in range(6)]
    assert buffer.depth() == {"ready": 0, "claimed": 0, "trained": 6, "stale": 0, "void": 0}
    assert buffer.position(step=3).below == 6  # of the explorer's tasks alone


@pytest.mark.parametrize("committed", [True, False])
def test_a_resume_trains_the_rows_of_a_step_once_whatever_became_of_it(job, tmp_path, committed):
    exchange, buffer = job()
    put(buffer, *range(4))
    exchange.claim(1)
    exchange.commit(1)
    kept = exchange.position(1)
    exchange.claim(2)
    if committed:
        exchange.commit(2)
    # … and dies; the rows of step 2 have been corrected before it goes on.
    again, buffer = job(rows=[*ROWS[:2], {"prompt": "sort 87", "response": "78"}])
    again.resumed(1, kept)
    experts = again.claim(2).experts
    assert [group.task_no for group in experts] == [2, 3]
    assert make_tokenizer().decode(experts[0].experiences[0].response_ids).startswith("78")
    again.commit(2)
    assert ledger(tmp_path / "b.db") == [(1, "expert-0"), (1, "expert-1"), (2, "expert-2"), (2, "expert-3")]


def test_another_database_goes_on_with_the_rows_of_its_step(job):
    exchange, buffer = job()
    put(buffer, 0, 1)
    exchange.claim(1)
    exchange.commit(1)
    kept = exchange.position(1)
    other, buffer = job("other.db")
    other.resumed(1, kept)
    put(buffer, 2, 3)
    assert taken(other, 2) == ([2, 3], [2, 0])


def test_rows_that_somebody_else_has_are_not_trained_twice(job):
    exchange, buffer = job()
    put(buffer, *range(4))
    exchange.claim(1)
    other, _ = job()
    with pytest.raises(RunError, match="the expert's rows of step 1 are not ready: none"):
        other.claim(1)
    other.release()
    assert buffer.depth()["ready"] == 2 and buffer.depth("expert")["claimed"] == EACH


def test_a_row_that_cannot_be_used_gives_the_answers_back(job):
    exchange, buffer = job(rows=[{"prompt": "sort 1"}, *ROWS])
    put(buffer, 0, 1)
    with pytest.raises(UserError, match="row 0 has no column 'response'"):
        exchange.claim(1)
    exchange.release()
    assert buffer.depth()["ready"] == 2


# -- what veRL's trainer is handed ----------------------------------------------------------------


@pytest.fixture
def trainer(job, monkeypatch):
    """A trainer without models, at step 1, with the answers and the expert's rows of that step. ``scored``
    and ``updated``: batches that the models were given."""
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    from trinity_compat.trainer.batch import BatchShape
    from trinity_compat.trainer.experts.trainer import MixTrainer
    from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer

    exchange, buffer = job()
    put(buffer, 0, 1)
    made = object.__new__(MixTrainer)
    made.exchange, made.shape, made.global_steps = exchange, BatchShape(4, 3, 0), 1
    actor, rollout = {"ppo_mini_batch_size": BATCH}, {"n": RUNS}
    made.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"actor": actor, "rollout": rollout},
            "trainer": {"balance_batch": False},
            "algorithm": {"adv_estimator": "grpo"},
        }
    )
    monkeypatch.setattr(MixTrainer, "ranks", 1)
    made.scored, made.updated = [], []

    def score(self, batch):
        self.scored.append(batch)
        values = torch.arange(len(batch)).float()[:, None].expand(-1, batch.batch["responses"].shape[1])
        return DataProto.from_dict(tensors={"ref_log_prob": values.clone()})

    def update(self, batch):
        sizes = self.config.actor_rollout_ref
        self.updated.append((batch, sizes.actor.ppo_mini_batch_size * sizes.rollout.n))
        return DataProto.from_single_dict(data={}, meta_info={"metrics": {}})

    monkeypatch.setattr(TrinityRayPPOTrainer, "_compute_ref_log_prob", score)
    monkeypatch.setattr(RayPPOTrainer, "_update_actor", update)
    return made


def answers_of(trainer):
    from trinity_compat.trainer.batch import to_dataproto

    claimed = trainer.claimed(1)
    experiences = [each for group in claimed.groups for each in group.experiences]
    batch = to_dataproto(experiences, trainer.widths(experiences))
    for name in ("old_log_probs", "advantages", "returns"):
        batch.batch[name] = torch.ones_like(batch.batch["rollout_log_probs"])
    batch.meta_info["temperature"] = 0.7
    return batch


def test_an_update_is_of_all_rows_and_an_experts_have_no_advantage(trainer):
    from trinity_compat.trainer.algorithms import COUNTS

    batch = answers_of(trainer)
    reference = trainer._compute_ref_log_prob(batch)
    assert len(trainer.scored[0]) == 8 and len(reference) == 6  # scored together, in one pass
    batch = batch.union(reference)
    trainer._update_actor(batch)
    ((mixed, size),) = trainer.updated
    assert size == 8 and mixed.meta_info["temperature"] == 0.7
    assert mixed.batch["expert_mask"].tolist() == [False] * 6 + [True] * 2
    assert mixed.batch["step"].tolist() == [1] * 8
    assert mixed.batch["ref_log_prob"][:, 0].tolist() == list(range(8))
    for name in ("old_log_probs", "advantages"):
        assert mixed.batch[name][:6].all() and not mixed.batch[name][6:].any()
    tokens = mixed.batch["response_mask"].sum(-1)
    assert mixed.batch[COUNTS].tolist() == [[int(tokens[:6].sum()), 6]] * 6 + [[int(tokens[6:].sum()), 2]] * 2
    assert len(mixed.meta_info["global_token_num"]) == 8
    sizes = trainer.config.actor_rollout_ref
    assert (sizes.actor.ppo_mini_batch_size, sizes.rollout.n) == (BATCH, RUNS)


def test_an_experts_row_may_be_longer_than_an_answer(trainer):
    from trinity_compat.trainer.batch import to_dataproto

    batch = answers_of(trainer)
    widest = max(len(each.prompt_ids) for each in trainer._rows)
    assert widest > trainer.shape.prompt == 4
    assert batch.batch["prompts"].shape[1] == widest
    trainer._update_actor(batch)
    mixed, _ = trainer.updated[0]
    alone = to_dataproto(trainer._rows, trainer.widths([]))
    assert torch.equal(mixed.batch["input_ids"][6:], alone.batch["input_ids"])
    assert np.array_equal(mixed.batch["prompts"][0][-2:], [1, 2])


def test_an_answer_alone_is_scored_without_the_experts(trainer, monkeypatch):
    from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer

    answers_of(trainer)
    seen = []
    monkeypatch.setattr(TrinityRayPPOTrainer, "response_logprobs", lambda self, _: seen.append(self._rows))
    trainer.response_logprobs(SimpleNamespace())
    assert seen == [[]] and len(trainer._rows) == EACH


def test_experts_read_their_files_in_the_order_of_the_run(tmp_path):
    from trinity_compat.trainer.experts.claims import Experts

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"sort {n}", "response": str(n)}) + "\n" for n in range(3)))
    told = RowsSpec("sft", (str(file),), format=RowFormat(prompt_type="plaintext"))
    buffer = open_buffer(f"sqlite:///{tmp_path}/b.db")
    experts = Experts.of(buffer, ExpertSpec(told, EACH), tokenizer := make_tokenizer())
    answers = [
        [tokenizer.decode(e.response_ids)[0] for group in experts.groups(step) for e in group.experiences]
        for step in (1, 2)
    ]
    assert answers == [["0", "1"], ["2", "0"]]
    buffer.close()
