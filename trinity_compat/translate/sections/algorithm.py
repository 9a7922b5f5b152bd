"""algorithm.*: advantage, losses, KL, entropy, and the choice of old log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_compat.common.releases import TRINITY_OLD
from trinity_compat.job.distillation import ENABLED, MODELS
from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue, Verdict
from trinity_compat.translate.model import Caution, Status, notice
from trinity_compat.translate.run_refusals import refused_of_teacher, runs_here
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.trinity_reader import FieldPair, TrinityReader
from trinity_compat.translate.verl_names import ESTIMATORS, POLICY_LOSSES
from trinity_compat.trinity.algorithms import FUNCTIONS, RegisteredFunction
from trinity_compat.trinity.algorithms.model import AGGREGATIONS
from trinity_compat.trinity.algorithms.selection import verl_keys

ACTOR = f"{ARR}.actor"
ESTIMATOR = "algorithm.adv_estimator"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
CORRECTION = "algorithm.rollout_correction"  # the same section in both
ALGORITHM, PENALTY, KL_LOSS, POLICY_LOSS = (
    f"algorithm.{name}" for name in ("algorithm_type", "kl_penalty_fn", "kl_loss_fn", "policy_loss_fn")
)
GAMMA = FieldPair("algorithm.advantage_fn_args.gamma", "algorithm.gamma")
LAM = FieldPair("algorithm.advantage_fn_args.lam", "algorithm.lam")
ENTROPY = FieldPair("algorithm.entropy_loss_fn_args.entropy_coef", f"{ACTOR}.entropy_coeff")
BYPASS = FieldPair("algorithm.bypass_old_logprobs", f"{CORRECTION}.bypass_mode")
AGGREGATION = FieldPair("algorithm.loss_agg_mode", f"{ACTOR}.loss_agg_mode")
DUAL_CLIP = FieldPair(f"{POLICY_LOSS}_args.clip_ratio_c", f"{ACTOR}.clip_ratio_c")
CLIPS = (
    FieldPair(f"{POLICY_LOSS}_args.clip_range", f"{ACTOR}.clip_ratio"),
    FieldPair(f"{POLICY_LOSS}_args.clip_range_low", f"{ACTOR}.clip_ratio_low"),
    FieldPair(f"{POLICY_LOSS}_args.clip_range_high", f"{ACTOR}.clip_ratio_high"),
    DUAL_CLIP,
)


@dataclass(frozen=True, slots=True)
class KlTerm:
    """A KL term: Trinity's field that names its estimate, and veRL's keys. ``default``: veRL's estimate."""

    function: str
    switch: str
    estimate: str
    coefficient: FieldPair
    default: str


IN_REWARD = KlTerm(
    PENALTY,
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    FieldPair(f"{PENALTY}_args.kl_coef", "algorithm.kl_ctrl.kl_coef"),
    default="kl",
)
IN_LOSS = KlTerm(
    KL_LOSS,
    f"{ACTOR}.use_kl_loss",
    f"{ACTOR}.kl_loss_type",
    FieldPair(f"{KL_LOSS}_args.kl_coef", f"{ACTOR}.kl_loss_coef"),
    default="low_var_kl",
)

# veRL's estimator; Trinity's algorithm_type, which is its advantage_fn too.
ADVANTAGES = {
    "gae": "ppo",
    "grpo": "grpo",
    "reinforce_plus_plus": "reinforceplusplus",
    "rloo": "rloo",
}
# veRL's estimate of KL, which has two names for some; Trinity's.
KL = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "low_var_kl",
    "k3": "low_var_kl",
    "abs": "abs",
}


def _losses_of_trinity() -> dict[str, RegisteredFunction]:
    """Return the policy losses of veRL that trinity-rft 0.6.0 computes too: veRL's name → the function."""
    found = {}
    for function in FUNCTIONS["policy_loss_fn"].values():
        told = function.verl({**function.defaults, **function.without_arguments}) or {}
        if LOSS_MODE in told:
            found[str(told[LOSS_MODE])] = function
    return found


LOSSES = _losses_of_trinity()
_OLD_LOSSES = ("vanilla", "gspo")  # trinity-rft 0.4.1
_GDPO_REWARDS = "algorithm.gdpo_reward_keys"  # the rewards that it normalizes each alone, by name


@derivation
def advantage(view: LaunchView) -> Derived:
    """Write algorithm_type, advantage_fn and its arguments."""
    name = str(view.value(ESTIMATOR, "gae"))
    function = ADVANTAGES.get(name, "grpo")
    yield PathValue(ALGORITHM, "dapo" if name == "grpo" and _is_dapo(view) else function, (ESTIMATOR,))
    yield PathValue("algorithm.advantage_fn", function, (ESTIMATOR,))
    if function in ("ppo", "reinforceplusplus"):
        yield GAMMA.put(view.number(GAMMA.key, 1.0))
    if function == "ppo":
        yield LAM.put(view.number(LAM.key, 1.0))
    if function not in ("ppo", "reinforceplusplus"):
        yield Verdict(GAMMA.key, Status.NO_EFFECT, f"{function} doesn't discount", "TC022")
    if function != "ppo":
        yield Verdict(LAM.key, Status.NO_EFFECT, f"{function} has no λ", "TC022")
    if name not in ADVANTAGES:
        status, ours = runs_here(view, ESTIMATOR, name, ESTIMATORS, "advantage")
        if name == "gdpo" and not view.value(_GDPO_REWARDS):
            status, ours = Status.UNSUPPORTED, f"veRL stops at its first step without {_GDPO_REWARDS}"
        reason = f"Trinity has no advantage {name!r}; the YAML says grpo for Trinity-RFT, {ours}"
        yield Verdict(ESTIMATOR, status, reason, "TC023")
        yield Caution("TW017", reason, view.where(ESTIMATOR))
    if function in ("ppo", "reinforceplusplus") and view.r > 1:
        yield notice(
            "TW009",
            f"Trinity-RFT whitens advantages over each mini-batch, "
            f"veRL over the train batch ({view.r} mini-batches); "
            "trinity-compat follows veRL",
            view.where(ESTIMATOR),
        )


def _is_dapo(view: LaunchView) -> bool:
    """DAPO upstream is grpo without a reference model: so only where none is needed."""
    if view.old_trinity or not view.flag("algorithm.filter_groups.enable"):
        return False
    return not (view.flag(IN_LOSS.switch) or view.flag(IN_REWARD.switch))


@way_back
def functions(reading: TrinityReader) -> VerlSettings:
    """Yield advantage, losses, KL and entropy, with Trinity's defaults for those that are not named.

    Raises UserError for what trinity-rft lacks, and for what a run cannot train.
    """
    section = reading.get("algorithm")
    if section:
        yield from verl_keys(section).items()


@derivation
def kl_reward(view: LaunchView) -> Derived:
    """Write kl_penalty_fn, the KL term in the reward."""
    yield from _kl_term(view, IN_REWARD)
    control = [f"algorithm.kl_ctrl.{name}" for name in ("type", "horizon", "target_kl")]
    if not view.flag(IN_REWARD.switch):
        for key in (IN_REWARD.estimate, IN_REWARD.coefficient.key, *control):
            yield Verdict(key, Status.NO_EFFECT, "use_kl_in_reward is off", "TC024")
    elif view.value(control[0], "fixed") == "adaptive":
        yield Verdict(
            control[0],
            Status.UNSUPPORTED_UPSTREAM,
            "adaptive raises a TypeError in trinity-rft; the YAML keeps the coefficient fixed",
        )


@derivation
def kl_loss(view: LaunchView) -> Derived:
    """Write kl_loss_fn, the KL term in the loss; always, since Trinity's default is k2."""
    yield from _kl_term(view, IN_LOSS)
    if not view.flag(IN_LOSS.switch):
        for key in (IN_LOSS.estimate, IN_LOSS.coefficient.key):
            yield Verdict(key, Status.NO_EFFECT, "use_kl_loss is off", "TC025")


def _kl_term(view: LaunchView, term: KlTerm) -> Derived:
    """Write the estimate and its coefficient, or that there is no KL term."""
    if not view.flag(term.switch):
        yield PathValue(term.function, "none", (term.switch,))
        return
    yield PathValue(term.function, _kl_name(view, term), (term.switch, term.estimate))
    name = str(view.value(term.estimate, term.default))
    if name not in KL:
        runs = name.removesuffix("+") in KL
        reason = (
            f"{'Trinity has no' if runs else 'neither Trinity nor veRL has a'} KL estimate {name!r}; "
            f"the YAML says {_kl_name(view, term)} for Trinity-RFT"
        )
        yield Verdict(term.estimate, Status.UNSUPPORTED_UPSTREAM if runs else Status.UNSUPPORTED, reason)
    yield term.coefficient.put(view.number(term.coefficient.key, 0.001))


def _kl_name(view: LaunchView, term: KlTerm) -> str:
    """Return Trinity's name of the estimate; veRL's ``k3+`` and the like add a straight-through gradient."""
    name = str(view.value(term.estimate, term.default))
    return KL.get(name.removesuffix("+"), "low_var_kl")


@derivation
def policy_loss(view: LaunchView) -> Derived:
    """Write policy_loss_fn and all its arguments: a partial dictionary would replace the defaults."""
    mode = str(view.value(LOSS_MODE, "vanilla"))
    known = LOSSES.keys() if not view.old_trinity else _OLD_LOSSES
    function = LOSSES[mode if mode in known else "vanilla"]
    yield PathValue(POLICY_LOSS, function.name, (LOSS_MODE,))
    # The clip ranges that Trinity's function takes; veRL's common one for a side without its own.
    common = CLIPS[0].key
    for clip in CLIPS:
        name = clip.path.rpartition(".")[2]
        given = view.value(clip.key)
        if name not in function.signature:
            what = "dual clip" if clip is DUAL_CLIP else "common range: its two bounds are written"
            yield Verdict(clip.key, Status.NO_EFFECT, f"{function.name} has no {what}", "TC026")
        elif given is not None:
            yield clip.put(view.number(clip.key))
        elif "clip_range" not in function.signature:
            yield PathValue(clip.path, view.number(common), (common,))
    mode_of_sum = view.choice(AGGREGATION.key, AGGREGATIONS)
    yield PathValue(f"{POLICY_LOSS}_args.loss_agg_mode", mode_of_sum, (AGGREGATION.key,))
    yield AGGREGATION.put(mode_of_sum)
    if mode not in known:
        status, ours = runs_here(view, LOSS_MODE, mode, POLICY_LOSSES, "policy_loss")
        reason = f"Trinity has no policy loss {_named(mode)}; the YAML says ppo for Trinity-RFT, {ours}"
        yield Verdict(LOSS_MODE, status, reason)
        yield Caution("TW017", reason, view.where(LOSS_MODE))


def _named(mode: str) -> str:
    """Name veRL's mode in words; Trinity's sapo is another function than veRL's."""
    return f"like veRL's {mode!r}" if mode in FUNCTIONS["policy_loss_fn"] else repr(mode)


@derivation
def entropy(view: LaunchView) -> Derived:
    """Write the entropy bonus, always."""
    note = "veRL's: − entropy_coeff × entropy"
    yield PathValue("algorithm.entropy_loss_fn", "default", (ENTROPY.key,), note)
    yield ENTROPY.put(view.number(ENTROPY.key, 0))


@derivation
def old_log_probs(view: LaunchView) -> Derived:
    """Write whether the ratio's denominator is the rollout's or the trainer's."""
    bypass = view.flag(BYPASS.key)
    used = {key: value for key, value in _correction(view).items() if value not in (None, False)}
    if view.old_trinity:
        for key in used:
            reason = f"trinity-rft {TRINITY_OLD} doesn't read it"
            yield Verdict(f"{CORRECTION}.{key}", Status.UNSUPPORTED_UPSTREAM, reason)
        yield _bypass_caution(view, True)
        return
    yield BYPASS.put(bypass, None if bypass else "veRL recomputes old log-probabilities with the trainer")
    if view.value(f"{CORRECTION}.rollout_is") or view.value(f"{CORRECTION}.rollout_rs"):
        for key, value in _correction(view).items():
            yield PathValue(f"algorithm.rollout_correction.{key}", value, (f"{CORRECTION}.{key}",))
    else:
        for key in _correction(view):
            if key != "bypass_mode":
                yield Verdict(
                    f"{CORRECTION}.{key}", Status.NO_EFFECT, "neither weights nor rejection are on", "TC053"
                )
    yield _bypass_caution(view, bypass)


@way_back
def correction(reading: TrinityReader) -> VerlSettings:
    """Yield the choice of old log-probabilities, and the correction of the difference."""
    yield from reading.verl_values(BYPASS)
    for name, value in (reading.get(CORRECTION) or {}).items():
        yield f"{CORRECTION}.{name}", value


def _correction(view: LaunchView) -> dict[str, object]:
    return view.below(CORRECTION)


def _bypass_caution(view: LaunchView, bypass: bool) -> Caution:
    place = view.where(BYPASS.key)
    if not bypass:
        text = (
            "old log-probabilities are recomputed by the trainer, as veRL does (bypass_old_logprobs: false)"
        )
    elif view.old_trinity:
        text = (
            f"trinity-rft {TRINITY_OLD} takes old log-probabilities from the rollout engine, veRL recomputes "
            "them with the trainer: ppo_kl and pg_clipfrac will differ"
        )
    else:
        text = "old log-probabilities are the rollout engine's, as the launch asks (bypass_mode)"
    return notice("TW008", text, place)


@derivation
def distillation(view: LaunchView) -> Derived:
    """Yield what a run refuses of the teachers, and that upstream has none."""
    if not view.flag(ENABLED):
        return
    for name in dict.fromkeys(key.partition(".")[0] for key in view.below(MODELS)):
        for key, _, why, _ in refused_of_teacher(view.value, f"{MODELS}.{name}"):
            yield Verdict(key, Status.UNSUPPORTED, f"trinity-compat refuses it: {why}")
    yield Caution(
        "TW017",
        "on-policy distillation: Trinity-RFT trains this YAML without teachers; trinity-compat serves them",
        view.where(ENABLED),
    )
