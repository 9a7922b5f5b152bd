"""The defaults that trinity-rft has, as data, and ours in trinity_compat.trinity.algorithms beside them."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TARGETS, TRINITY, TRINITY_OLD
from trinity_compat.trinity.algorithms import ALGORITHMS, FUNCTIONS, KINDS
from trinity_compat.trinity.config.defaults import algorithm_defaults, with_defaults
from trinity_compat.trinity.config.schema import schema

# docs/algorithms.md says why.
OURS = {(name, "advantage_fn") for name in ("raft", "sft", "cpt", "dpo")}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_of_ours_names_the_functions_that_trinity_names(name, target):
    upstream = algorithm_defaults(target).algorithms.get(name)
    runs = not ALGORITHMS[name].lacks
    if upstream and runs:
        ours = {kind: getattr(ALGORITHMS[name], kind) for kind in KINDS if (name, kind) not in OURS}
        assert ours == {kind: upstream[kind] for kind in ours}


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_of_ours_has_trinity_s_arguments_where_none_are_given(kind):
    upstream = algorithm_defaults(TRINITY).functions[kind]
    for name, function in FUNCTIONS[kind].items():
        ours = {**function.defaults, **function.without_arguments}
        said = {key: value for key, value in upstream[name].items() if key in ours and key != "loss_agg_mode"}
        assert {key: ours[key] for key in said} == said, name


def test_every_algorithm_of_trinity_is_known_here():
    assert set(algorithm_defaults(TRINITY).algorithms) <= set(ALGORITHMS)


def test_a_section_gets_what_it_does_not_say_and_keeps_what_it_says():
    given = {"optimizer": {"lr": 1e-5}, "repeat_times": 8}
    full = with_defaults(given, "AlgorithmConfig", TRINITY)
    assert (full["repeat_times"], full["algorithm_type"], full["bypass_old_logprobs"]) == (8, "ppo", True)
    assert (full["optimizer"]["lr"], full["optimizer"]["min_lr_ratio"]) == (1e-5, 0.01)
    assert "kl_loss_fn" not in full  # null by default: the algorithm says it
    assert given == {"optimizer": {"lr": 1e-5}, "repeat_times": 8}


def test_a_default_that_the_releases_do_not_share_is_the_one_of_the_target():
    of = {target: with_defaults({}, schema(target).root, target) for target in TARGETS}
    assert of[TRINITY]["trainer"]["trainer_strategy"] == "fsdp2"
    assert of[TRINITY_OLD]["trainer"]["trainer_strategy"] == "fsdp"
    assert of[TRINITY_OLD]["algorithm"]["optimizer"]["min_lr_ratio"] == 0.0


def test_defaults_are_not_shared_between_two_files():
    with_defaults({}, "OptimizerConfig", TRINITY)["betas"].append(7)
    assert with_defaults({}, "OptimizerConfig", TRINITY)["betas"] == [0.9, 0.999]


def test_a_release_without_data_is_refused():
    with pytest.raises(UserError, match=r"9\.9\.9"):
        algorithm_defaults("9.9.9")
