"""Runs on two ranks of engines that a user's module registers, which have nothing of FSDP's."""

import os
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STEPS = 8
WORDS = [
    "actor_rollout_ref.model.external_lib=plain_engine",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
    "trainer.n_gpus_per_node=2",
    f"trainer.total_training_steps={STEPS}",
]


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["plain", "twins"])
def test_its_weights_are_published_and_a_killed_trainer_goes_on_from_its_checkpoint(run, engine):
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    words = [*WORDS, f"actor_rollout_ref.actor.strategy={engine}"]
    one = run(*words, options=("--restarts", "1"), env={"PYTHONPATH": path}).start()
    one.wait_for(lambda: one.trained_steps() >= 3 and (one.job / "global_step_2" / "actor").is_dir())
    one.side("trainer").kill()
    one.finish()
    assert one.code == 0, one.out + one.err
    assert "the trainer was killed by SIGKILL" in one.out
    assert re.search(r"Resuming from \S+/global_step_\d", (one.job / "log" / "trainer.log").read_text())
    one.nothing_is_left_and_nothing_lost()
    steps = one.sql(
        "select trainer_step, count(distinct group_id), count(*) from ledger group by 1 order by 1"
    )
    assert steps == [(step, 8, 64) for step in range(1, STEPS + 1)]
    tasks = one.sql("select task_no from task_groups where kind = 'train' and state = 'trained' order by 1")
    assert tasks == [(number,) for number in range(8 * STEPS)]
    told = (one.job / "log" / "explorer.log").read_text()
    assert "weight-sync check: version 1: mean log-probability" in told
    assert (one.job / f"global_step_{STEPS}" / "actor" / "plain.pt").is_file()
