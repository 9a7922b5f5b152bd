"""A model that sees, trained on images and videos: real vLLM, real veRL, killed in the middle. The videos are
of two frames, one step in time to the model: at more, veRL 0.9.1's positions for Qwen2.5-VL are not vLLM's
(docs/explorer.md, Images).

With torchvision and qwen-vl-utils (tests/vision.py).
"""

import pyarrow.parquet as pq
import pytest
from vision import make_toy, python_path

from trinity_compat.buffer import open_buffer

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(letter.isascii() for letter in solution_str) / 8
"""
STEPS = 6


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    code = "import vision_toy as toy; toy.make_vision_toy(folder, images=(1, toy.CLIP, 2, 1))"
    return make_toy(tmp_path_factory.mktemp("vision"), code)


def words_of(folder):
    (folder / "reward.py").write_text(REWARD)
    return [
        "data.max_prompt_length=96",
        f"reward.custom_reward_function.path={folder}/reward.py",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"trainer.total_training_steps={STEPS}",
        "trainer.total_epochs=3",
    ]


@pytest.mark.runtime
@pytest.mark.nightly
def test_a_model_that_sees_is_trained_through_a_kill(run, toy, tmp_path):
    words, env = words_of(tmp_path), {"PYTHONPATH": python_path()}
    first = run(*words, env=env, name="first").start()
    first.wait_for(lambda: first.trained_steps() >= 3)
    first.kill_all()
    one = run(*words, env=env, name="second").start().finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    steps = one.sql(
        "select trainer_step, count(*), count(distinct group_id) from ledger group by 1 order by 1"
    )
    assert steps == [(step, 64, 8) for step in range(1, STEPS + 1)]
    assert not one.sql("select 1 from ledger group by experience_id having count(*) > 1")
    assert one.sql("select count(*) from media") == [(len(media_of(toy)),)]
    assert max(probability_gaps(one)) < 5e-3  # the trainer also counts what the engine never samples


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.parametrize(("spared", "adapters"), [(".*visual.*", True), (None, False)])
def test_its_adapter_is_handed_over_where_the_vision_tower_has_none(run, toy, tmp_path, spared, adapters):
    """veRL's own trainer makes the versions, vLLM answers images with them; else whole models travel."""
    model = "actor_rollout_ref.model"
    lora = [f"{model}.lora_rank=4", f"{model}.lora_alpha=8", f"{model}.exclude_modules={spared or 'null'}"]
    one = run(*words_of(tmp_path), *lora, env={"PYTHONPATH": python_path()}).start().finish()
    assert one.code == 0, one.out + one.err
    one.nothing_is_left_and_nothing_lost()
    whole = (toy / "model" / "model.safetensors").stat().st_size
    sizes = [nbytes for version, nbytes in one.sql("select version, nbytes from weight_versions") if version]
    assert len(sizes) >= STEPS - 1 and all((nbytes < whole / 4) == adapters for nbytes in sizes), sizes
    assert max(probability_gaps(one)) < 5e-3
    told = (one.job / "log" / "trainer.log").read_text()
    assert ("each version is a whole model" in told) == (not adapters)


def media_of(toy):
    """The distinct images and videos' frames in the data that the run reads, which evaluates nothing: each is
    stored once."""
    rows = pq.read_table(toy / "data" / "train.parquet", columns=["images", "videos"]).to_pylist()
    frames = {frame for row in rows for video in row["videos"] for frame in video["video"]}
    return frames | {image["bytes"] for row in rows for image in row["images"]}


def probability_gaps(one):
    """Of each step the largest gap between the trainer's probability of a token and the engine's. An engine
    that took the pictures' embeddings from before an update, or a trainer with other pixels or positions,
    would show here."""
    buffer = open_buffer(f"sqlite:///{one.job}/buffer/experiences.db")
    found = buffer.read_metrics("trainer")
    buffer.close()
    assert [step for step, _ in found if step] == list(range(1, STEPS + 1))
    return [metrics["training/rollout_probs_diff_max"] for step, metrics in found if step]
