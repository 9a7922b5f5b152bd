"""docs/algorithms.md says of each of trinity-rft's algorithms what the registry says."""

from pathlib import Path

from trinity_compat.algorithms import ALGORITHMS
from trinity_compat.algorithms.chosen import verl_keys

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
# trinity-rft 0.6.0, algorithm/__init__.py.
OF_TRINITY = (
    "cpt sft ppo grpo dapo reinforceplusplus rloo opmd asymre dpo topr cispo gspo sapo mix mix_chord raft"
    " sppo rec multi_step_grpo gigpo on_policy_distill jsd grpo_verl"
)


def row_of(name):
    """What the page should say: where it runs, what computes its advantage and its loss, its KL."""
    algorithm = ALGORITHMS[name]
    if algorithm.lacks:
        return ["not yet", "", "", ""]
    told = verl_keys({"algorithm_type": name})
    made = [told["algorithm.adv_estimator"], told["actor_rollout_ref.actor.policy_loss.loss_mode"]]
    functions = [of[8:] if of.startswith("trinity_") else f"veRL {of}" for of in map(str, made)]
    runs = "on rows" if algorithm.of_files else "on fresh answers" if name == "raft" else "yes"
    return [runs, *functions, algorithm.kl_loss_fn]


def test_all_of_trinitys_algorithms_are_known():
    assert sorted(ALGORITHMS) == sorted(OF_TRINITY.split())


def test_the_table_is_what_the_registry_says():
    lines = (line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| "))
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    assert {name: rows[name][:4] for name in ALGORITHMS} == {name: row_of(name) for name in ALGORITHMS}
    for name, algorithm in ALGORITHMS.items():
        if algorithm.paper and not algorithm.lacks:
            assert algorithm.paper in rows[name][4]
