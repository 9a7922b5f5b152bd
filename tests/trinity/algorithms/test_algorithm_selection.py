"""What an ``algorithm`` section stands for: Trinity's defaults, veRL's keys, and what is refused."""

import subprocess
import sys

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.trinity.algorithms import ALGORITHMS, FUNCTIONS
from trinity_compat.trinity.algorithms.selection import choose, verl_keys

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss"


def test_a_bare_algorithm_type_has_trinitys_defaults():
    told = verl_keys({"algorithm_type": "opmd"})
    assert told["algorithm.adv_estimator"] == "trinity_opmd"
    assert told["algorithm.trinity_args"] == {"opmd_baseline": "mean", "tau": 1.0}
    assert told[f"{LOSS}.loss_mode"] == "trinity_opmd"
    assert told[f"{LOSS}.trinity_args"] == {"tau": 1.0}
    assert (told[f"{ACTOR}.use_kl_loss"], told[f"{ACTOR}.kl_loss_type"]) == (True, "mse")
    assert told["algorithm.use_kl_in_reward"] is False
    assert told[f"{ACTOR}.entropy_coeff"] == 0.0


def test_a_function_that_is_named_wins_over_the_algorithms():
    told = verl_keys({"algorithm_type": "opmd", "policy_loss_fn": "ppo", "advantage_fn": "rloo"})
    assert told["algorithm.adv_estimator"] == "rloo"
    assert told[f"{LOSS}.loss_mode"] == "vanilla"


def test_the_common_range_counts_for_a_side_that_is_not_given():
    told = verl_keys(
        {"algorithm_type": "grpo", "policy_loss_fn_args": {"clip_range": 0.1, "clip_range_high": 0.3}}
    )
    assert (told[f"{ACTOR}.clip_ratio_low"], told[f"{ACTOR}.clip_ratio_high"]) == (0.1, 0.3)


@pytest.mark.parametrize(("given", "prime"), [(None, 0.6), ({}, 0.4), ({"epsilon_low": 0.1}, 0.4)])
def test_no_arguments_at_all_are_other_defaults_than_some_left_out(given, prime):
    chosen = choose({"algorithm_type": "rec", "policy_loss_fn_args": given})["policy_loss_fn"]
    assert chosen.arguments["epsilon_low_prime"] == prime


@pytest.mark.parametrize(
    ("common", "arguments", "mode"),
    [
        (None, None, "token-mean"),
        ("token-sum", None, "token-sum"),
        ("token-mean", {"clip_range": 0.2}, "seq-mean-token-mean"),  # gspo's own
        ("token-mean", {"clip_range": 0.2, "loss_agg_mode": "seq-mean-token-sum"}, "token-mean"),
        (None, {"clip_range": 0.2, "loss_agg_mode": "seq-mean-token-sum"}, "seq-mean-token-sum"),
    ],
)
def test_which_aggregation_counts(common, arguments, mode):
    section = {"algorithm_type": "gspo", "loss_agg_mode": common, "policy_loss_fn_args": arguments}
    section |= {"kl_loss_fn": "none", "entropy_loss_fn": "none"}
    assert verl_keys(section)[f"{ACTOR}.loss_agg_mode"] == mode


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}}, "kl_loss_fn"),
        ({"entropy_loss_fn": "default", "entropy_loss_fn_args": {"entropy_coef": 0.01}}, "entropy_loss_fn"),
    ],
)
def test_terms_that_trinity_aggregates_otherwise_than_the_policy_loss_are_refused(more, kind):
    off = {"kl_loss_fn": "none", "entropy_loss_fn": "none", "policy_loss_fn_args": {"clip_range": 0.2}}
    section = {"algorithm_type": "grpo", "loss_agg_mode": "seq-mean-token-sum", **off}
    assert verl_keys(section)[f"{ACTOR}.loss_agg_mode"] == "token-mean"  # no other term is there
    with pytest.raises(UserError, match=rf"seq-mean-token-sum applies to algorithm.{kind}, .* token-mean"):
        verl_keys({**section, **more})
    named = {"clip_range": 0.2, "loss_agg_mode": "seq-mean-token-sum"}
    mode = verl_keys({**section, **more, "policy_loss_fn_args": named})[f"{ACTOR}.loss_agg_mode"]
    assert mode == "seq-mean-token-sum"


def test_what_verl_has_is_verls_and_what_it_lacks_is_ours():
    sapo = verl_keys({"algorithm_type": "sapo"})
    assert sapo["algorithm.adv_estimator"] == "grpo"
    assert sapo[f"{LOSS}.loss_mode"] == "trinity_sapo"  # veRL's sapo has another gradient
    masked = verl_keys({"algorithm_type": "cispo", "policy_loss_fn_args": {"enable_mask_clip": True}})
    assert masked[f"{LOSS}.loss_mode"] == "trinity_cispo"
    assert verl_keys({"algorithm_type": "cispo"})[f"{LOSS}.loss_mode"] == "cispo"


def test_a_kl_estimate_that_verl_lacks_keeps_its_reference_model():
    told = verl_keys(
        {"algorithm_type": "grpo", "kl_loss_fn": "corrected_k3", "kl_loss_fn_args": {"kl_coef": 0.1}}
    )
    assert told[f"{ACTOR}.use_kl_loss"] is True
    assert (told[f"{LOSS}.trinity_kl"], told[f"{ACTOR}.kl_loss_coef"]) == ("corrected_k3", 0.1)


def test_an_adaptive_coefficient_is_verls():
    told = verl_keys(
        {"kl_penalty_fn": "k1", "kl_penalty_fn_args": {"adaptive": True, "target_kl": 0.1, "horizon": 100}}
    )
    control = {key.split(".")[-1]: value for key, value in told.items() if "kl_ctrl" in key}
    assert control == {"type": "adaptive", "kl_coef": 0.001, "target_kl": 0.1, "horizon": 100}


def test_no_entropy_loss_is_no_entropy_bonus_whatever_its_argument():
    told = verl_keys({"entropy_loss_fn": "none", "entropy_loss_fn_args": {"entropy_coef": 0.1}})
    assert told[f"{ACTOR}.entropy_coeff"] == 0


def test_a_variable_that_is_not_known_yet_is_no_wrong_type():
    told = verl_keys({"algorithm_type": "opmd", "policy_loss_fn_args": {"tau": "${oc.env:TAU}"}})
    assert told[f"{LOSS}.trinity_args"] == {"tau": "${oc.env:TAU}"}


@pytest.mark.parametrize(
    ("section", "message", "hint"),
    [
        (
            {"algorithm_type": "opdm"},
            "algorithm_type=opdm: no release of trinity-rft has it",
            "did you mean 'opmd'?",
        ),
        (
            {"algorithm_type": "grpo", "policy_loss_fn": "mix"},
            "policy_loss_fn=mix tells an expert's rows apart, and .*sample_strategy=default takes none",
            "mix",
        ),
        (
            {"algorithm_type": "mix", "sample_strategy": "default"},
            "sample_strategy=default takes none",
            "mix",
        ),
        (
            {"algorithm_type": "mix", "policy_loss_fn_args": {"sft_loss_agg_mode": "mean"}},
            "sft_loss_agg_mode=mean: mix takes token-mean or .* or null",
            None,
        ),
        ({"advantage_fn": "clipv"}, "advantage_fn=clipv cannot be trained here: .* necs", "grpo"),
        (
            {"policy_loss_fn": "opmd", "policy_loss_fn_args": {"tua": 1}},
            "policy_loss_fn_args.tua: opmd",
            "'tau'",
        ),
        (
            {"policy_loss_fn": "opmd", "policy_loss_fn_args": {"something": 1}},
            "policy_loss_fn_args.something: opmd of policy_loss_fn has none of that name",
            "it has tau",
        ),
        (
            {"advantage_fn": "reinforce", "advantage_fn_args": {"something": 1}},
            "advantage_fn_args.something: reinforce",
            "it has no arguments",
        ),
        ({"policy_loss_fn": "opmd", "policy_loss_fn_args": {"tau": "a"}}, "tau=a: opmd takes a number", None),
        (
            {"policy_loss_fn": "opmd", "policy_loss_fn_args": {"tau": True}},
            "tau=True: opmd takes a number",
            None,
        ),
        (
            {"policy_loss_fn": "opmd", "policy_loss_fn_args": 3},
            "policy_loss_fn_args is 3, it should be a",
            None,
        ),
        (
            {"advantage_fn": "opmd", "advantage_fn_args": {"opmd_baseline": "max"}},
            "opmd_baseline=max: opmd takes mean or logavgexp",
            None,
        ),
        ({"policy_loss_fn": "sapo", "policy_loss_fn_args": {"tau_neg": 0.5}}, "sapo: tau_neg must be", None),
        ({"policy_loss_fn_args": {"clip_ratio_c": 2.0}}, "ppo: clip_range, or clip_range_low and", None),
        (
            {
                "advantage_fn": "grpo",
                "advantage_fn_args": {"std_threshold": 0, "duplicate_experiences": True},
            },
            "left out are replaced by other tasks",
            "grpo",
        ),
        (
            {"kl_loss_fn_args": {"adaptive": True}},
            "kl_loss_fn=k2 .* no effect on a KL term in the loss",
            "k1",
        ),
        (
            {"kl_penalty_fn": "k2", "kl_penalty_fn_args": {"adaptive": True}},
            "k2: adaptive needs target_kl and horizon",
            None,
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_the_yamls_words(section, message, hint):
    with pytest.raises(UserError, match=message) as error:
        verl_keys(section)
    assert hint is None or hint in (error.value.hint or "")


@pytest.mark.parametrize("more", [{}, {"epsilon": 0.1}])
def test_groups_without_a_difference_are_left_out_by_the_explorer(more):
    told = verl_keys({"algorithm_type": "grpo", "advantage_fn_args": {"std_threshold": 0.1, **more}})
    assert told["algorithm.filter_groups.enable"] and told["algorithm.filter_groups.metric"] == "reward"
    assert told["algorithm.trinity_std_threshold"] == 0.1


def test_a_teacher_scores_as_the_reference_and_changes_no_reward():
    told = verl_keys({"algorithm_type": "on_policy_distill"})
    assert (told["algorithm.use_kl_in_reward"], told["algorithm.kl_ctrl.kl_coef"]) == (True, 0.0)
    assert told[f"{ACTOR}.use_kl_loss"] is False
    for kind in ("kl_loss_fn", "kl_penalty_fn"):
        with pytest.raises(UserError, match=f"{kind}=k2: the reference model is the teacher of jsd"):
            verl_keys({"algorithm_type": "jsd", kind: "k2"})


def test_each_algorithm_names_functions_that_there_are():
    for algorithm in ALGORITHMS.values():
        for kind, functions in FUNCTIONS.items():
            assert getattr(algorithm, kind) in functions, algorithm.name


def test_algorithm_selection_does_not_import_torch():
    module = "trinity_compat.trinity.algorithms.selection"
    code = f"import sys, {module}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
