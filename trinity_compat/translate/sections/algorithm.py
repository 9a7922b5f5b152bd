"""algorithm.*: advantage, losses, KL, entropy, and whose old log-probabilities count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinity_compat.nearest import did_you_mean
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.ours import why_refused
from trinity_compat.translate.view import ARR, Put, Verdict, View

ACTOR = f"{ARR}.actor"
ESTIMATOR = "algorithm.adv_estimator"

# veRL's estimator → (algorithm_type, advantage_fn) that mean the same in Trinity.
ADVANTAGES = {
    "gae": ("ppo", "ppo"),
    "grpo": ("grpo", "grpo"),
    "reinforce_plus_plus": ("reinforceplusplus", "reinforceplusplus"),
    "rloo": ("rloo", "rloo"),
}
KL = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "abs": "abs",
    "low_var_kl": "low_var_kl",
    "k3": "low_var_kl",
}
LOSSES = {"vanilla": "ppo", "gspo": "gspo"}
# The pinned veRL's (workers/config/actor.py); the first is its default.
AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
# What the pinned veRL registers itself (core_algos.py); code of the user's may register more.
ESTIMATORS = (
    "gae",
    "grpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "opo",
    "grpo_passk",
    "gpg",
    "rloo_vectorized",
    "grpo_vectorized",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
    "gdpo",
)
POLICY_LOSSES = (
    "vanilla",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
    "bypass_mode",
)


def advantage(view: View) -> Iterator[Put | Verdict | Caution]:
    """algorithm_type, advantage_fn and its arguments."""
    name = str(view.value(ESTIMATOR, "gae"))
    kind, function = ADVANTAGES.get(name, ("grpo", "grpo"))
    if name == "grpo" and _is_dapo(view):
        kind = "dapo"
    yield Put("algorithm.algorithm_type", kind, (ESTIMATOR,))
    yield Put("algorithm.advantage_fn", function, (ESTIMATOR,))
    if function in ("ppo", "reinforceplusplus"):
        yield Put(
            "algorithm.advantage_fn_args.gamma", view.number("algorithm.gamma", 1.0), ("algorithm.gamma",)
        )
    if function == "ppo":
        yield Put("algorithm.advantage_fn_args.lam", view.number("algorithm.lam", 1.0), ("algorithm.lam",))
    yield from _unused_discounts(view, function)
    if name not in ADVANTAGES:
        status, ours = _runs_here(view, ESTIMATOR, name, ESTIMATORS)
        reason = f"Trinity has no advantage {name!r}; the YAML says grpo for upstream, {ours}"
        yield Verdict(ESTIMATOR, status, reason, "TC023")
        yield Caution("TW017", reason, view.where(ESTIMATOR))
    if function in ("ppo", "reinforceplusplus") and view.r > 1:
        yield Caution(
            "TW009",
            f"upstream whitens advantages over each mini-batch, "
            f"veRL over the train batch (r={view.r} mini-batches); "
            "our runtime follows veRL",
            view.where(ESTIMATOR),
        )


def _runs_here(view: View, key: str, name: str, known: tuple[str, ...]) -> tuple[Status, str]:
    """Whether our runtime runs what Trinity lacks, and the words for it. ``known``: what veRL itself has."""
    if (why := why_refused(view.value, key)) is not None:
        return Status.UNSUPPORTED, f"our runtime refuses it: {why}"
    if name in known:
        return Status.UNSUPPORTED_UPSTREAM, f"our runtime runs {name!r}"
    near = did_you_mean(name.lower(), known)
    hint = f"; did you mean {near}?" if near else ""
    return Status.UNSUPPORTED, f"veRL has none either unless code of yours registers it{hint}"


def _unused_discounts(view: View, function: str) -> Iterator[Verdict]:
    if function not in ("ppo", "reinforceplusplus"):
        yield Verdict("algorithm.gamma", Status.NO_EFFECT, f"{function} doesn't discount", "TC022")
    if function != "ppo":
        yield Verdict("algorithm.lam", Status.NO_EFFECT, f"{function} has no λ", "TC022")


def _is_dapo(view: View) -> bool:
    """DAPO upstream is grpo without a reference model: so only where none is needed."""
    if view.options.trinity == "0.4.1" or not view.flag("algorithm.filter_groups.enable"):
        return False
    return not (view.flag(f"{ACTOR}.use_kl_loss") or view.flag("algorithm.use_kl_in_reward"))


def kl_reward(view: View) -> Iterator[Put | Verdict | Caution]:
    """kl_penalty_fn: the KL term in the reward."""
    keys = ("algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef")
    if not view.flag(keys[0]):
        yield Put("algorithm.kl_penalty_fn", "none", keys[:1])
        for key in (
            *keys[1:],
            "algorithm.kl_ctrl.type",
            "algorithm.kl_ctrl.horizon",
            "algorithm.kl_ctrl.target_kl",
        ):
            yield Verdict(key, Status.NO_EFFECT, "use_kl_in_reward is off", "TC024")
        return
    yield Put("algorithm.kl_penalty_fn", _kl_name(view, keys[1], "kl"), keys[:2])
    yield from _kl_verdict(view, keys[1], "kl")
    yield Put("algorithm.kl_penalty_fn_args.kl_coef", view.number(keys[2], 0.001), keys[2:])
    if view.value("algorithm.kl_ctrl.type", "fixed") == "adaptive":
        yield Verdict(
            "algorithm.kl_ctrl.type",
            Status.UNSUPPORTED_UPSTREAM,
            "adaptive raises a TypeError in trinity-rft; the YAML keeps the coefficient fixed",
        )


def kl_loss(view: View) -> Iterator[Put | Verdict | Caution]:
    """kl_loss_fn: the KL term in the loss; always written, Trinity's default is k2."""
    keys = (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_type", f"{ACTOR}.kl_loss_coef")
    if not view.flag(keys[0]):
        yield Put("algorithm.kl_loss_fn", "none", keys[:1])
        for key in keys[1:]:
            yield Verdict(key, Status.NO_EFFECT, "use_kl_loss is off", "TC025")
        return
    yield Put("algorithm.kl_loss_fn", _kl_name(view, keys[1], "low_var_kl"), keys[:2])
    yield from _kl_verdict(view, keys[1], "low_var_kl")
    yield Put("algorithm.kl_loss_fn_args.kl_coef", view.number(keys[2], 0.001), keys[2:])


def _kl_name(view: View, key: str, default: str) -> str:
    name = str(view.value(key, default))
    return KL.get(name, KL.get(name.removesuffix("+"), "low_var_kl"))


def _kl_verdict(view: View, key: str, default: str) -> Iterator[Verdict]:
    name = str(view.value(key, default))
    if name not in KL:
        runs = name.removesuffix("+") in KL
        reason = (
            f"{'Trinity' if runs else 'neither Trinity nor veRL'} has no KL estimate {name!r}; "
            f"the YAML says {_kl_name(view, key, default)} for upstream"
        )
        yield Verdict(key, Status.UNSUPPORTED_UPSTREAM if runs else Status.UNSUPPORTED, reason)


def policy_loss(view: View) -> Iterator[Put | Verdict | Caution]:
    """policy_loss_fn and its arguments in full: a partial dictionary would replace the defaults."""
    mode = str(view.value(f"{ACTOR}.policy_loss.loss_mode", "vanilla"))
    yield Put("algorithm.policy_loss_fn", LOSSES.get(mode, "ppo"), (f"{ACTOR}.policy_loss.loss_mode",))
    for name, key in _clips(view, mode).items():
        yield Put(f"algorithm.policy_loss_fn_args.{name}", view.number(key), (key,))
    key = f"{ACTOR}.loss_agg_mode"
    agg = view.choice(key, AGGREGATIONS)
    yield Put("algorithm.policy_loss_fn_args.loss_agg_mode", agg, (key,))
    yield Put("algorithm.loss_agg_mode", agg, (key,))
    if mode == "gspo":
        yield Verdict(f"{ACTOR}.clip_ratio_c", Status.NO_EFFECT, "gspo has no dual clip", "TC026")
    elif mode not in LOSSES:
        key = f"{ACTOR}.policy_loss.loss_mode"
        status, ours = _runs_here(view, key, mode, POLICY_LOSSES)
        reason = f"Trinity has no policy loss {mode!r}; the YAML says ppo for upstream, {ours}"
        yield Verdict(key, status, reason)
        yield Caution("TW017", reason, view.where(key))


def _clips(view: View, mode: str) -> dict[str, str]:
    names = {
        "clip_range": "clip_ratio",
        "clip_range_low": "clip_ratio_low",
        "clip_range_high": "clip_ratio_high",
    }
    if mode != "gspo":
        names["clip_ratio_c"] = "clip_ratio_c"
    keys = {name: f"{ACTOR}.{key}" for name, key in names.items()}
    return {name: key for name, key in keys.items() if view.value(key) is not None}


def entropy(view: View) -> Iterator[Put | Verdict | Caution]:
    """The entropy bonus, always written."""
    key = f"{ACTOR}.entropy_coeff"
    yield Put("algorithm.entropy_loss_fn", "default", (key,), note="veRL's: − entropy_coeff × entropy")
    yield Put("algorithm.entropy_loss_fn_args.entropy_coef", view.number(key, 0), (key,))


def old_log_probs(view: View) -> Iterator[Put | Verdict | Caution]:
    """Whether the ratio's denominator is the rollout's or the trainer's."""
    prefix = "algorithm.rollout_correction"
    bypass = view.flag(f"{prefix}.bypass_mode")
    used = {key: value for key, value in _correction(view).items() if value not in (None, False)}
    if view.options.trinity == "0.4.1":
        for key in used:
            yield Verdict(f"{prefix}.{key}", Status.UNSUPPORTED_UPSTREAM, "trinity-rft 0.4.1 doesn't read it")
        yield _bypass_caution(view, True)
        return
    yield Put(
        "algorithm.bypass_old_logprobs",
        bypass,
        (f"{prefix}.bypass_mode",),
        None if bypass else "veRL recomputes old log-probabilities with the trainer",
    )
    if view.value(f"{prefix}.rollout_is") or view.value(f"{prefix}.rollout_rs"):
        for key, value in _correction(view).items():
            yield Put(f"algorithm.rollout_correction.{key}", value, (f"{prefix}.{key}",))
    else:
        for key in _correction(view):
            if key != "bypass_mode":
                yield Verdict(
                    f"{prefix}.{key}", Status.NO_EFFECT, "neither weights nor rejection are on", "TC053"
                )
    yield _bypass_caution(view, bypass)


def _correction(view: View) -> dict[str, Any]:
    return view.below("algorithm.rollout_correction")


def _bypass_caution(view: View, bypass: bool) -> Caution:
    place = view.where("algorithm.rollout_correction.bypass_mode")
    if not bypass:
        text = (
            "old log-probabilities are recomputed by the trainer, as veRL does (bypass_old_logprobs: false)"
        )
    elif view.options.trinity == "0.4.1":
        text = (
            "trinity-rft 0.4.1 takes old log-probabilities from the rollout engine, veRL recomputes them "
            "with the trainer: ppo_kl and pg_clipfrac will differ"
        )
    else:
        text = "old log-probabilities are the rollout engine's, as the launch asks (bypass_mode)"
    return Caution("TW008", text, place)
