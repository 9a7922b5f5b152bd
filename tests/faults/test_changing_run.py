"""A dataset class whose ``on_batch_end`` changes the prompts: trained, and on from its checkpoint."""

import json

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.whole, pytest.mark.nightly]

# Each row shows the rewards of all batches before it; the prompt says how many those were.
MINE = """
from verl.utils.dataset.rl_dataset import RLHFDataset


class Mine(RLHFDataset):
    seen = ()

    def __getitem__(self, item):
        row = super().__getitem__(item)
        said = row["raw_prompt"][-1]
        changed = {**said, "content": " ".join([said["content"], *"1" * len(self.seen)])}
        told = {**row["extra_info"], "seen": list(self.seen)}
        return {**row, "raw_prompt": [*row["raw_prompt"][:-1], changed], "extra_info": told}

    def on_batch_end(self, batch):
        self.seen = (*self.seen, float(batch.batch["token_level_scores"].sum()))
"""
REWARD = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return len(solution_str)\n"
)


def test_the_explorers_prompts_follow_each_batch_also_after_a_resume(run, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "reward.py").write_text(REWARD)
    words = [
        f"data.custom_cls.path={tmp_path}/mine.py",
        "data.custom_cls.name=Mine",
        "data.max_prompt_length=64",
        f"reward.custom_reward_function.path={tmp_path}/reward.py",
    ]
    one = run("trainer.total_training_steps=2", *words).start().finish()
    assert one.code == 0, one.out + one.err
    assert "on_batch_end runs in the trainer and the explorer" in one.out
    followed(one, 2)
    again = run("trainer.total_training_steps=4", *words, name="again").start().finish()
    assert again.code == 0, again.out + again.err
    assert "from step 2" in again.out
    followed(again, 4)


def followed(one, steps):
    """Each step's tasks show what was trained before it, and the prompts are longer by as much."""
    rewards = one.sql("select trainer_step, sum(e.reward) from ledger l join experiences e"
                      " on e.id = l.experience_id group by 1 order by 1")  # fmt: skip
    assert [step for step, _ in rewards] == list(range(1, steps + 1))
    trained = [reward for _, reward in rewards]
    assert all(trained)
    tasks = one.sql("select g.explorer_step, g.task, e.prompt_text from task_groups g join experiences e"
                    " on e.group_id = g.id where g.kind = 'train'")  # fmt: skip
    assert {step for step, *_ in tasks} == {*range(1, steps + 1)}
    for step, task, prompt in tasks:
        assert json.loads(task)["extra_info"]["seen"] == pytest.approx(trained[: step - 1]), step
        assert ("1 " * (step - 1)).strip() in prompt
    assert one.sql("select step from train_batches where part = 0 order by 1") == [
        (step,) for step in range(1, steps + 1)
    ]
