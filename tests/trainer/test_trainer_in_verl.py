"""What veRL's fit asks of the trainer's parts, without its workers: data, answers, entropies, evaluations."""

import contextlib
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.parent_watch import SUPERVISOR
from trinity_compat.job import stop_request
from trinity_compat.trainer import datasets, main
from trinity_compat.trainer.algorithms import ENTROPY
from trinity_compat.trainer.batch import BatchShape
from trinity_compat.trainer.verl_v0 import adapter

pytestmark = pytest.mark.verl  # verl is imported along the way


def answers(task, rewards):
    """A task's group; each answer's one token is its place in the group."""
    made = tuple(
        Experience(
            run=run,
            prompt_ids=np.array([11, 12], np.int32),
            response_ids=np.array([20 + run], np.int32),
            response_mask=np.ones(1, np.uint8),
            logprobs=np.zeros(1, np.float32),
            reward=reward,
            min_model_version=1,
            max_model_version=1,
        )
        for run, reward in enumerate(rewards)
    )
    return Group(f"h1/eval/{task}", task, {"data_source": "toy"}, 1, made, kind="eval")


def test_validation_rows_get_their_task_s_answers_in_turn():
    rollouts = adapter.StoredRollouts()
    groups = [answers(0, (0.1, 0.2)), answers(1, (0.3, 0.4))]
    rollouts.trainer = SimpleNamespace(
        validation_answers=lambda: groups, widths=lambda rows: BatchShape(4, 4, 0)
    )
    asked = DataProto.from_dict({"dummy": torch.zeros(4, 1)}, meta_info={"validate": True})
    asked.non_tensor_batch[datasets.TASK_NO] = np.array([1, 0, 1, 0], dtype=object)
    made = rollouts.generate_sequences(asked)
    assert made.batch["rm_scores"].sum(-1).tolist() == pytest.approx([0.3, 0.1, 0.4, 0.2])


def test_an_evaluation_is_asked_for_once_per_step():
    asked = []
    trainer = object.__new__(adapter.TrinityRayPPOTrainer)
    trainer._validated = None
    trainer.checkpoint_manager = SimpleNamespace(send=None)
    trainer.exchange = SimpleNamespace(
        evaluate=lambda step, send: asked.append(step) or [f"answers of {step}"]
    )
    for trainer.global_steps in (2, 2, 4, 4):
        assert trainer.validation_answers() == [f"answers of {trainer.global_steps}"]
    assert asked == [2, 4]


@pytest.mark.parametrize(("reads", "kept"), [(True, True), (False, False)])
def test_entropies_are_kept_where_the_estimator_reads_them(monkeypatch, reads, kept):
    entropies = torch.ones(2, 3)
    output = DataProto.from_dict({"old_log_probs": torch.zeros(2, 3), "entropys": entropies})
    stock = adapter.ray_trainer.RayPPOTrainer
    monkeypatch.setattr(stock, "_compute_old_log_prob", lambda self, batch: (output, 0.5))
    monkeypatch.setattr(adapter, "reads_entropy", lambda section: reads)
    monkeypatch.setattr(adapter.TrinityRayPPOTrainer, "ranks", 1)
    trainer = object.__new__(adapter.TrinityRayPPOTrainer)
    trainer.config = OmegaConf.create({"algorithm": {}})
    trainer.exchange = SimpleNamespace(keep_scores=lambda find: None)
    made, mfu = trainer._compute_old_log_prob(output)
    assert mfu == 0.5 and (ENTROPY in made.batch) is kept


def test_training_and_validation_rows_are_each_opened_from_their_own_files(monkeypatch):
    opened = {}

    def dataset(files, data, tokenizer, processor, *, is_train, max_samples):
        opened[is_train] = (files, max_samples)
        return [{"prompt": "a"}]

    monkeypatch.setattr(datasets, "create_rl_dataset", dataset)
    monkeypatch.setattr(
        datasets, "omega_conf_to_dataclass", lambda section: SimpleNamespace(tokenizer=None, processor=None)
    )
    data = {"train_files": "train.parquet", "val_files": "val.parquet", "val_max_samples": 8}
    datasets.Datasets(OmegaConf.create({"actor_rollout_ref": {"model": {}}, "data": data}))
    assert opened == {True: ("train.parquet", -1), False: ("val.parquet", 8)}


def test_verl_starts_no_teachers_and_gets_no_client_of_any(monkeypatch):
    """Its ``init_workers`` imports the manager where it starts it."""
    started = []

    def init_workers(self):
        from verl.experimental.teacher_loop import MultiTeacherModelManager

        started.append(MultiTeacherModelManager(config=self.config, resource_pool=None))
        self.async_rollout_manager, self.checkpoint_manager = SimpleNamespace(), SimpleNamespace()
        self.actor_rollout_wg = SimpleNamespace(leave_device=None)

    monkeypatch.setattr(adapter.ray_trainer.RayPPOTrainer, "init_workers", init_workers)
    trainer = object.__new__(adapter.TrinityRayPPOTrainer)
    trainer.config = OmegaConf.create({"distillation": {"enabled": True}})
    trainer.exchange = SimpleNamespace(before_leaving=lambda leave: None)
    trainer.init_workers()
    assert [each.get_client() for each in started] == [None]


@pytest.mark.parametrize(
    ("words", "step", "newest", "saved"),
    [
        ("", 3, 0, None),
        ("now", 3, 0, None),
        ("step", 3, 0, [3]),
        ("now step", 3, 3, []),  # its checkpoint is there already
        ("step", 0, 0, []),  # before the first step there is nothing to keep
        ("step", 9, 0, None),  # veRL ends by itself
    ],
)
def test_a_step_s_end_is_the_run_s_where_the_user_asked_with_its_checkpoint(
    tmp_path, words, step, newest, saved
):
    (tmp_path / "log").mkdir()
    stop_request.path_of(tmp_path).write_text(words)
    trainer, found = with_checkpoints(tmp_path, step, newest)
    if saved is None:
        trainer._stop_if_asked()
        assert found == []
    else:
        with pytest.raises(SystemExit) as ended:
            trainer._stop_if_asked()
        assert (ended.value.code, found) == (143, saved)


@pytest.mark.parametrize(("step", "newest", "saved"), [(4, 0, [3]), (4, 3, []), (1, 0, [])])
def test_a_trainer_that_waits_for_a_step_ends_with_a_checkpoint_of_the_one_before(
    tmp_path, step, newest, saved
):
    def claim(step):
        raise stop_request.StopBeforeStep

    trainer, found = with_checkpoints(tmp_path, step, newest)
    trainer.exchange = SimpleNamespace(claim=claim)
    with pytest.raises(stop_request.StoppedAfterStep) as ended:
        trainer.claimed(step)
    assert (ended.value.code, found) == (143, saved)


def with_checkpoints(folder, step, newest):
    """A trainer in ``step`` whose newest checkpoint is ``newest``'s, and the steps of those it writes."""
    found = []
    trainer = object.__new__(adapter.TrinityRayPPOTrainer)
    trainer._directory, trainer.global_steps, trainer._newest = folder, step, newest
    trainer.total_training_steps, trainer.actor_rollout_wg = 9, None
    trainer._save_checkpoint = lambda: found.append(trainer.global_steps)
    trainer._publish_marker = trainer._shutdown_dump_executor = lambda: None
    return trainer, found


@pytest.mark.parametrize("turned", [SystemExit(1), RuntimeError("a worker is gone")])
def test_what_a_signal_became_in_other_code_is_still_a_stop(turned, tmp_path):
    with pytest.raises(SystemExit) as ended, main._on_sigterm(tmp_path):
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise turned from None
    assert ended.value.code == 143
    with pytest.raises(type(turned)) as alone, main._on_sigterm(tmp_path):
        raise turned
    assert alone.value is turned


@pytest.mark.parametrize(
    ("asked", "supervised", "stays"),
    [("step", True, True), ("step now", True, False), ("step", False, False)],
)
def test_a_trainer_outlasts_the_sigterm_at_which_its_supervisor_asks_for_a_checkpoint(
    tmp_path, monkeypatch, asked, supervised, stays
):
    """Slurm sends it to all processes of a step."""
    monkeypatch.delenv(SUPERVISOR, raising=False)
    if supervised:
        monkeypatch.setenv(SUPERVISOR, "1")
    (tmp_path / "log").mkdir()
    stop_request.path_of(tmp_path).write_text(asked)
    ended = []
    with contextlib.suppress(SystemExit), main._on_sigterm(tmp_path):
        signal.raise_signal(signal.SIGTERM)
        ended.append("no")
    assert ended == (["no"] if stays else [])
