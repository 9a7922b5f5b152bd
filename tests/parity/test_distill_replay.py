"""Exact replay, distillation: stock's answers and its teacher's numbers through our buffer and trainer.

Stock veRL runs a student and a teacher, each on a vLLM server of its own; the rows of its batch that belong
to responses become experiences, so that equal metrics also say that no other row is needed.
"""

import pytest
import torch
from test_trainer_runs import every_figure_is_stock_s, replayed, toy_dir  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]

LOSS, TEACHER = "distillation.distillation_loss", "distillation.teacher_models.teacher_model"
POOL = ["distillation.enabled=True", "distillation.n_gpus_per_node=1", "distillation.nnodes=1"]
ENGINE = [
    f"{TEACHER}.inference.tensor_model_parallel_size=1",
    f"{TEACHER}.inference.free_cache_engine=False",
    f"+{TEACHER}.inference.enable_sleep_mode=False",
]


@pytest.fixture(scope="module")
def teacher(toy_dir, tmp_path_factory):  # noqa: F811
    """The toy's model with other weights, so that no step's loss is 0."""
    folder = tmp_path_factory.mktemp("teacher")
    model = AutoModelForCausalLM.from_pretrained(toy_dir / "model", dtype=torch.float32)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.02 * torch.randn(weights.shape, generator=noise)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(toy_dir / "model").save_pretrained(folder)
    return folder


CASES = {
    "the top 16, supervised": [
        f"{LOSS}.loss_mode=forward_kl_topk",
        f"{LOSS}.topk=16",
        f"{LOSS}.use_policy_gradient=False",
        f"{LOSS}.use_task_rewards=False",
    ],
    "k1 as a reward, at another temperature": [
        f"{LOSS}.loss_mode=k1",
        f"{LOSS}.use_policy_gradient=True",
        f"{LOSS}.use_task_rewards=False",
        "actor_rollout_ref.rollout.temperature=0.8",
    ],
    "k3 beside task rewards": [
        f"{LOSS}.loss_mode=k3",
        f"{LOSS}.use_policy_gradient=False",
        f"{LOSS}.use_task_rewards=True",
    ],
}


@pytest.mark.parametrize("trainer", ["v0", "v1"])
@pytest.mark.parametrize("case", CASES)
def test_distillation_equals_stock_on_the_same_answers(toy_dir, teacher, tmp_path, case, trainer):  # noqa: F811
    options = ["trainer.total_training_steps=2", *POOL, f"{TEACHER}.model_path={teacher}", *CASES[case]]
    # The last one counts: stock has the teacher's engine beside the student's.
    engines = (*ENGINE, "ray_kwargs.ray_init.num_gpus=2")
    given = {"stock_only": engines, "ours_only": ENGINE[:1]}
    stock, ours = replayed(toy_dir, tmp_path, *options, trainer=trainer, **given)
    for step in (1, 2):
        assert stock[step]["actor/distillation/loss"] != 0
        assert stock[step]["actor/grad_norm"] > 0
    every_figure_is_stock_s(stock, ours)
