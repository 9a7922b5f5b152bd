"""docs/algorithms.md says of each of trinity-rft's algorithms what the registry says."""

from pathlib import Path

from trinity_compat.trinity.algorithms import ALGORITHMS, FUNCTIONS, KINDS
from trinity_compat.trinity.algorithms.selection import verl_keys

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
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
    return [_runs(algorithm, told), *functions, algorithm.kl_loss_fn]


def _runs(algorithm, told):
    if algorithm.schema != "experience":
        return "on rows"
    if algorithm.sample_strategy == "mix":
        return "on both"
    if algorithm.advantage_fn in told["algorithm.adv_estimator"] and "ref_log_prob" in columns(algorithm):
        return "with a teacher"
    return "on fresh answers" if algorithm.name == "raft" else "yes"


def columns(algorithm):
    return FUNCTIONS["advantage_fn"][algorithm.advantage_fn].columns


def functions_in_table():
    """(kind, name) of each function that the second table names as running."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for kind in cells[0].split(", "):
            if kind in KINDS and len(cells) == 3:
                yield from ((kind, name.strip()) for name in cells[1].split(","))


def test_the_table_of_functions_has_all_that_run():
    named = set(functions_in_table())
    for kind, functions in FUNCTIONS.items():
        run = {name for name, each in functions.items() if each.signature or each.call or not each.lacks({})}
        assert {name for field, name in named if field == kind} == run, kind


def test_all_of_trinitys_algorithms_are_known():
    assert sorted(ALGORITHMS) == sorted(OF_TRINITY.split())


def test_the_table_is_what_the_registry_says():
    lines = (line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| "))
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    assert {name: rows[name][:4] for name in ALGORITHMS} == {name: row_of(name) for name in ALGORITHMS}
    for name, algorithm in ALGORITHMS.items():
        if algorithm.paper and not algorithm.lacks:
            assert algorithm.paper in rows[name][4]
