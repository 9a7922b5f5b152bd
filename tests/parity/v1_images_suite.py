"""The adapters of veRL's v0 and v1 trainer train the same on the same images and videos."""

from dataclasses import replace

import pytest
from images_suite import opened, ours
from test_trainer_runs import train
from test_trainers_equal import SAME_ORDER, the_same_is_computed
from toy_job import job
from vision_toy import CLIP, make_vision_toy

from trinity_compat.buffer import open_buffer

pytestmark = pytest.mark.runtime
STEPS, BATCH = 2, 4
OPTIONS = ("data.train_batch_size=4", "data.max_prompt_length=96", "actor_rollout_ref.rollout.n=2")
OPTIONS += (
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
)


def test_both_trainers_compute_the_same(tmp_path):
    toy = make_vision_toy(tmp_path / "toy", images=(1, CLIP, 2, 1), warm_steps=0)
    made = opened(toy)
    groups = []
    for row in range(STEPS * BATCH):
        (tmp_path / f"row{row}").mkdir()
        group = ours(made, row, tmp_path / f"row{row}")[2]
        answers = tuple(
            replace(each, reward=float((row + run) % 3)) for run, each in enumerate(group.experiences)
        )
        groups.append(replace(group, experiences=answers, explorer_step=row // BATCH + 1))
    v0, v1 = (trained(toy, tmp_path / trainer, trainer, groups) for trainer in ("v0", "v1"))
    the_same_is_computed(v0, v1, STEPS)


def trained(toy, folder, trainer, groups):
    """The metrics by step of a trainer on ``groups``."""
    words = (f"trainer.total_training_steps={STEPS}", SAME_ORDER, *OPTIONS)
    spec = job(toy, folder, *words, trainer=trainer)
    buffer = open_buffer(spec.database_url)
    buffer.put_groups(groups)
    buffer.beat("explorer", "recorded", state="done")
    return train(folder)
