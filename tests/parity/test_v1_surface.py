"""Both trainers compute the same with what our adapters add to v1: estimators, dropped rows, images."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_trainer_runs import toy_dir, train  # noqa: F401
from test_trainers_equal import SAME_ORDER, the_same_is_computed
from toy_job import PlainExplorer, job
from vision import check_suite

from trinity_compat.buffer.model import DROPPED
from trinity_compat.common.nested import copied, put
from trinity_compat.job.answer_info import OF_RUN
from trinity_compat.job.run_spec import has_baseline
from trinity_compat.trinity.algorithms.selection import verl_keys

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]

STEPS = 2
# Words of a launch, an ``algorithm`` section of a YAML, or both.
CASES = {
    "remax": (["algorithm.adv_estimator=remax"], {}),
    "gdpo": (["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[acc,format]"], {}),
    "optimal token baseline": (
        [
            "algorithm.adv_estimator=optimal_token_baseline",
            "actor_rollout_ref.actor.calculate_sum_pi_squared=True",
        ],
        {},
    ),
    "Trinity's estimator of entropies, and its loss": (
        [],
        {"algorithm_type": "topr", "advantage_fn": "clipb", "advantage_fn_args": {"mu": 0.1}},
    ),
    "entropies, without old log-probabilities": (
        ["algorithm.rollout_correction.bypass_mode=True"],
        {"algorithm_type": "ppo", "advantage_fn": "clipb", "advantage_fn_args": {"mu": 0.1}},
    ),
    "Trinity's KL": (
        [],
        {
            "algorithm_type": "opmd",
            "advantage_fn_args": {"opmd_baseline": "logavgexp", "tau": 0.5},
            "kl_loss_fn": "corrected_k3",
            "kl_loss_fn_args": {"kl_coef": 0.05},
        },
    ),
    "dropped answers": ([], {}),
    "runs of several rows": ([], {}),
}


def store_groups(spec, case):
    """Groups for ``STEPS``, the same in each call."""
    explorer = PlainExplorer(spec)
    explorer.version = 0
    runs = explorer.n + has_baseline(spec.verl)
    for step in range(1, STEPS + 1):
        rng = torch.Generator().manual_seed(step)
        places = range((step - 1) * explorer.batch, step * explorer.batch)
        made = [explorer._group(n, explorer.train[n], step, rng, key=f"1-{n}", n=runs) for n in places]
        explorer.buffer.put_groups([completed(group, case) for group in made])
    explorer.buffer.beat("explorer", "recorded", state="done")


def completed(group, case):
    """The group with a second reward, and what ``case`` is about."""
    answers = []
    for run, each in enumerate(group.experiences):
        more = {"info": {**each.info, "format": (group.task_no + run) % 3}}
        if case == "dropped answers" and group.task_no % 3 == run:
            more["metrics"] = {**each.metrics, DROPPED: 1.0}
        if case == "runs of several rows":
            more["info"] |= {OF_RUN: {"run": run, "row": 0}}
        answers.append(replace(each, **more))
    if case == "runs of several rows" and group.task_no % 2:
        second = {OF_RUN: {"run": 0, "row": 1}}
        answers.append(replace(answers[0], run=len(answers), info={**answers[0].info, **second}))
    return replace(group, experiences=tuple(answers))


@pytest.mark.parametrize("case", CASES)
def test_both_trainers_compute_the_same(toy_dir, tmp_path, case):  # noqa: F811
    options, section = CASES[case]
    words = (f"trainer.total_training_steps={STEPS}", SAME_ORDER, *options)
    metrics = []
    for trainer in ("v0", "v1"):
        spec = job(toy_dir, tmp_path / trainer, *words, trainer=trainer)
        verl = copied(spec.verl)
        for key, value in (verl_keys(section) if section else {}).items():
            put(verl, key, value)
        spec = replace(spec, verl=verl)
        spec.save(Path(spec.job_dir) / "config" / "run.json")
        store_groups(spec, case)
        metrics.append(train(Path(spec.job_dir)))
    the_same_is_computed(*metrics, STEPS)


def test_both_trainers_compute_the_same_on_images():
    check_suite(Path(__file__).with_name("v1_images_suite.py"))
