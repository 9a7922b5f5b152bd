"""A model that hears, trained on sounds: real vLLM, real veRL, on a CPU. Of Gemma 4's kind, the only one with
sounds whose processor veRL 0.9.1 knows; each prompt's is of another length.

With torchvision and qwen-vl-utils (tests/vision.py).
"""

from statistics import fmean

import pytest
from vision import make_toy, python_path

from trinity_compat.buffer import open_buffer

# Capitals are half of the letters that the model begins with.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(letter.isupper() for letter in solution_str) / 8
"""
STEPS, ROWS = 6, 16
ONE_SOUND = "+actor_rollout_ref.rollout.engine_kwargs.vllm.limit_mm_per_prompt={image:0,video:0,audio:1}"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    code = f"import hearing_toy as toy; toy.make_hearing_toy(folder, rows={ROWS}, warm_steps=40)"
    return make_toy(tmp_path_factory.mktemp("hearing") / "toy", code)


@pytest.mark.runtime
@pytest.mark.nightly
def test_a_model_that_hears_is_trained(run, toy, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    words = [
        "data.max_prompt_length=96",
        f"reward.custom_reward_function.path={tmp_path}/reward.py",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"trainer.total_training_steps={STEPS}",
        "trainer.total_epochs=3",
        ONE_SOUND,
    ]
    one = run(*words, env={"PYTHONPATH": python_path()}).start().finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    steps = one.sql(
        "select trainer_step, count(*), count(distinct group_id) from ledger group by 1 order by 1"
    )
    assert steps == [(step, 64, 8) for step in range(1, STEPS + 1)]
    assert one.sql("select count(*) from media") == [(ROWS,)]  # each sound once, however many answers it has
    found = figures(one)
    # What is left is the trainer's share for tokens that the engine never samples: 1e-4 of this toy's answers
    # in the mean, 6e-3 of single tokens. With prompts as stock veRL asks them tokens are up to 0.012 apart.
    assert max(each["training/rollout_probs_diff_mean"] for each in found) < 5e-4
    rewards = [each["critic/score/mean"] for each in found]
    assert fmean(rewards[-2:]) > rewards[0] + 0.1, rewards


def figures(one):
    """The trainer's of each step. An engine that hears other sounds than the trainer, or finds them at other
    places of the prompt, shows as a gap in probability."""
    buffer = open_buffer(f"sqlite:///{one.job}/buffer/experiences.db")
    found = buffer.read_metrics("trainer")
    buffer.close()
    assert [step for step, _ in found if step] == list(range(1, STEPS + 1))
    return [metrics for step, metrics in found if step]
