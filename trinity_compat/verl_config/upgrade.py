"""A configuration of an older veRL, carried forward to the pinned release with its meaning kept.

The rows are data: translators/by_hand/verl/upgrade.jsonl. ``old`` and ``new`` are dotted keys, ``x.*`` stands
for everything below x; ``new`` null drops the key. ``values`` maps old values (as JSON text) to new
ones; ``default: pinned`` takes the pinned default where the launch sets nothing; ``null: skip`` means
that null said nothing; ``only`` restricts a row to one flavour; ``forks`` marks a key that no release has
had, and whose meaning in the forks that have it is known; of a key that is dropped ``off`` lists the values
that did nothing: with another one something is lost. What no key said in its days is
written by the functions below (``_IMPLIED``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trinity_compat.common.nested import copied, paired_leaves, sections_above
from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.common.resources import data_path
from trinity_compat.verl_config.interpolate import Resolver
from trinity_compat.verl_config.model import EffectiveConfig, Setting, VersionChoice
from trinity_compat.verl_config.pinned import Pinned, pinned_release, put
from trinity_compat.verl_config.value_kinds import misfit

_DO_SAMPLE = "actor_rollout_ref.rollout.val_kwargs.do_sample"
_NO_DUAL_CLIP = 1.0e8  # clip_ratio_c so large that the dual clip never acts


@dataclass(frozen=True, slots=True)
class KeyMove:
    """A key whose name, place or spelling changed. ``old`` is "" for what the old release only implied."""

    old: str
    new: tuple[str, ...]
    why: str
    given: bool  # the launch sets it; False for a default of its release


@dataclass(frozen=True, slots=True)
class DropKey:
    """A key that means nothing in the pinned release. ``lost``: what its value did, no other key does."""

    key: str
    why: str
    given: bool
    lost: bool = False


@dataclass(frozen=True, slots=True)
class UpgradeResult:
    """``config`` under the pinned release's keys, and what became of the keys that it hasn't.

    ``explicit``: the keys whose value the launch or its own release gives; others have the pinned release's
    default.
    """

    config: EffectiveConfig
    moves: tuple[KeyMove, ...]
    dropped: tuple[DropKey, ...]
    explicit: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One row of upgrade.jsonl. ``one_value``: the pinned release takes no value but the new one."""

    old: str
    new: tuple[str, ...]
    why: str
    values: Mapping[str, object]
    take_pinned: bool = False
    skip_null: bool = False
    only: str | None = None
    forks: bool = False
    one_value: bool = False
    off: tuple[object, ...] | None = None

    def targets(self, key: str) -> tuple[str, ...]:
        """The new keys of ``key``, which this row matches."""
        tail = key[len(self.old) - 1 :] if self.old.endswith(".*") else ""
        return tuple(new.removesuffix("*") + tail for new in self.new)

    def loses(self, value: object) -> bool:
        """Return True if what a value of a dropped key did is no longer done."""
        return not self.new and self.off is not None and value not in self.off

    def value(self, value: object) -> object:
        """The new spelling of a value."""
        if not self.values:
            return value
        try:
            text = value if isinstance(value, str) else json.dumps(value)
        except (TypeError, ValueError):
            return value
        return self.values.get(text, value)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A value to stand at ``key`` of the pinned tree."""

    key: str
    value: object
    setting: Setting
    optional: bool  # a default of the old release: written only where the pinned default differs


def upgrade(config: EffectiveConfig) -> UpgradeResult:
    """Carry ``config`` forward to the pinned release.

    Every key of ``config`` either stands in the result under the same name, has a Move or a Drop.
    A default of the old release that differs from the pinned one is written into the result; a default
    that a fork changed counts as the fork has it.
    """
    placed: list[_Placed] = []
    moves: list[KeyMove] = []
    dropped: list[DropKey] = []
    pinned = pinned_release(config.flavour or "ppo_trainer")
    tree = copied(pinned.tree)
    for setting in config.settings.values():
        _carry(config, setting, pinned, placed, moves, dropped)
    for implied, why in _implied(config):
        placed.append(implied)
        moves.append(KeyMove("", (implied.key,), why, False))
    settings = _settle(tree, placed)
    explicit = frozenset(item.key for item in placed)
    return UpgradeResult(_result(config, settings, placed, pinned), tuple(moves), tuple(dropped), explicit)


@lru_cache(maxsize=8192)
def row_for(key: str, flavour: str) -> KeyChange | None:
    """The row that a key of an older release falls under: its own, else the longest prefix's."""
    exact, prefixes = _rows()
    for row in exact.get(key, ()):
        if row.only in (None, flavour):
            return row
    for section in sections_above(key):
        for row in prefixes.get(f"{section}.*", ()):
            if row.only in (None, flavour):
                return row
    return None


def misfit_of(key: str, value: object, flavour: str) -> str:
    """`kinds.misfit` of a default ``value`` where the pinned release has ``key`` now."""
    row, tree = row_for(key, flavour), pinned_release(flavour or "ppo_trainer").resolved
    targets, now = (row.targets(key), row.value(value)) if row else ((key,), value)
    return next(filter(None, (misfit(tree, target, now) for target in targets)), "")


def loses_default(config: EffectiveConfig, key: str) -> bool:
    """Return whether a fork's default of ``key`` does something that the pinned release no longer does."""
    row = row_for(key, config.flavour)
    is_off = key.startswith(f"{_OLD_WEIGHTS}_") and not _has_old_weights(config)
    return row is not None and row.loses(config.get(key)) and not is_off


def is_well_known(key: str) -> bool:
    """Return whether no release has ``key``, and its meaning in the forks that have it is known."""
    return any(row.forks for row in _rows()[0].get(key, ()))


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, list[KeyChange]], dict[str, list[KeyChange]]]:
    exact: dict[str, list[KeyChange]] = {}
    prefixes: dict[str, list[KeyChange]] = {}
    text = data_path("translators/by_hand/verl/upgrade.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        stored = json.loads(line)
        new = stored["new"] or ()
        row = KeyChange(
            stored["old"],
            (new,) if isinstance(new, str) else tuple(new),
            stored["why"],
            stored.get("values", {}),
            stored.get("default") == "pinned",
            stored.get("null") == "skip",
            stored.get("only"),
            stored.get("forks", False),
            stored.get("one_value", False),
            tuple(stored["off"]) if "off" in stored else None,
        )
        (prefixes if row.old.endswith(".*") else exact).setdefault(row.old, []).append(row)
    return exact, prefixes


def _carry(
    config: EffectiveConfig,
    setting: Setting,
    pinned: Pinned,
    placed: list[_Placed],
    moves: list[KeyMove],
    dropped: list[DropKey],
) -> None:
    """Decide what becomes of one old key."""
    key, given = setting.key, setting.where is not None
    row = row_for(key, config.flavour)
    meant = given or (config.fork is not None and config.fork.gives(key))
    if not given and config.fork and (why := misfit_of(key, setting.value, config.flavour)):
        dropped.append(DropKey(key, f"the fork's default is {why}", False))
        return
    if key == _LENGTH and setting.value is not None and (why := _overwrites_length(config, pinned)):
        dropped.append(DropKey(key, why, given))
        return
    if key.rpartition(".")[2] == "_target_":
        if given or key not in pinned.nodes:
            dropped.append(DropKey(key, "the class behind a section belongs to its release", given))
        return
    if row is None:
        # A fork's key stays, so that a user's rule can say what becomes of it.
        if pinned.takes(key) is False and not (config.fork and config.fork.key(key)):
            dropped.append(
                DropKey(key, f"{VERL} makes a dataclass of this section, which has no such field", given)
            )
        elif given or key in pinned.nodes or (setting.value is not None and setting.value not in ({}, [])):
            placed.append(_Placed(key, setting.value, setting, not given))
        else:
            dropped.append(DropKey(key, f"null or empty, and {VERL} has no such key", given))
        return
    targets = row.targets(key)
    if not targets:
        dropped.append(DropKey(key, row.why, given, meant and row.loses(setting.value)))
        return
    value = row.value(setting.value)
    if targets != (key,) or value != setting.value or (row.take_pinned and not meant):
        moves.append(KeyMove(key, targets, row.why, given))
    if (row.take_pinned and not meant) or (row.skip_null and value is None):
        return
    placed += [_Placed(new, value, setting, not given) for new in targets]


def _overwrites_length(config: EffectiveConfig, pinned: Pinned) -> str:
    """Return with what the servers of a release overwrite a given length of the engine, "" if they don't.

    Source: __init__ of workers/rollout/*/*async_*server.py. They take it since 0.7.1, for which 0.7.0 stands
    in, and in forks that have keys of the rollout from after 0.7.0.
    """
    rollout, version = "actor_rollout_ref.rollout.", config.version
    if config.get(rollout + "mode") != "async":
        return ""
    if version.value == "0.6.1":
        return "the servers of 0.6 write prompt + response over it"
    added = config.fork.added if config.fork else ()
    newer = version.stands_in or any(key.startswith(rollout) and key in pinned.nodes for key in added)
    if version.value == "0.7.0" and not newer:
        return "the servers of 0.7.0 write the model's own length over it"
    return ""


def _settle(tree: dict[str, object], placed: list[_Placed]) -> dict[str, Setting]:
    """The settings of the pinned tree: what is given, then each old default that still differs.

    Writing a value can change others that refer to it, so this repeats until nothing differs.
    """
    for item in placed:
        if not item.optional:
            put(tree, item.key, item.value)
    written = {item.key: item for item in placed if not item.optional}
    pending = [item for item in placed if item.optional and item.key not in written]
    while True:
        leaves = {key: (raw, value) for key, raw, value in paired_leaves(tree, Resolver(tree).resolve())}
        differing = [item for item in pending if not _holds(leaves, item)]
        for item in differing:
            put(tree, item.key, item.value)
            written[item.key] = item
        if not differing:
            return _as_settings(leaves, written)
        pending = [item for item in pending if item.key not in written]


def _holds(leaves: Mapping[str, tuple[object, object]], item: _Placed) -> bool:
    """Return whether the tree has ``item``'s value; an empty section matches any filled one."""
    leaf = leaves.get(item.key)
    if leaf is None:
        return item.value == {} and any(key.startswith(item.key + ".") for key in leaves)
    value = leaf[1]
    # To Python True equals 1 and 1 equals 1.0; a configuration that says one does not say the other.
    return type(value) is type(item.value) and (value == item.value or item.value == {})


def _as_settings(
    leaves: Mapping[str, tuple[object, object]], written: Mapping[str, _Placed]
) -> dict[str, Setting]:
    out: dict[str, Setting] = {}
    for key, (raw, value) in leaves.items():
        item = written.get(key)
        if item is None:
            shown = raw if isinstance(raw, str) and "${" in raw else None
            out[key] = Setting(key, value, None, None, key, shown)
        else:
            old = item.setting
            out[key] = Setting(key, value, old.where, old.word, old.spelling, old.interpolation)
    return out


def _result(
    config: EffectiveConfig,
    settings: dict[str, Setting],
    placed: list[_Placed],
    pinned: Pinned,
) -> EffectiveConfig:
    given: dict[str, list[str]] = {item.setting.key: [] for item in placed if not item.optional}
    for item in placed:
        if not item.optional:
            given[item.setting.key].append(item.key)
    order = [new for key in config.set_keys for new in given.get(key, ())]
    set_keys = tuple(dict.fromkeys(key for key in order if key in settings))
    unknown = tuple(key for key in set_keys if not pinned.takes(key))
    why = f"converted from {config.version.value} ({config.version.why})"
    choice = VersionChoice(VERL, why)
    return replace(config, version=choice, settings=settings, set_keys=set_keys, unknown=unknown)


_Rule = Callable[[EffectiveConfig], object]


def _implied(config: EffectiveConfig) -> Iterator[tuple[_Placed, str]]:
    """Yield values that ``config``'s release had without a key, unless the launch sets it, with the reasons.

    A fork that lacks a key of its nearest release has the code from before it.
    """
    for until, key, rule, why in _IMPLIED:
        lacks = config.fork is not None and key in config.fork.removed
        if VERL_RELEASES.index(config.version.value) > VERL_RELEASES.index(until) and not lacks:
            continue
        value = rule(config)
        if value is not None and (key not in config.settings or key in _RECAST):
            base = config.settings.get(DERIVED_FROM.get(key, ""))  # the clip ratio for its two bounds
            where, word = (base.where, base.word) if base else (None, None)
            yield _Placed(key, value, Setting(key, value, where, word, key), False), why


def _samples_validation(config: EffectiveConfig) -> object:
    """True where a fork's ``val_temperature`` is given, which veRL would not use without ``do_sample``."""
    setting = config.settings.get(_DO_SAMPLE)
    temperature = config.get("actor_rollout_ref.rollout.val_temperature")
    given = setting is not None and setting.where is not None
    return True if isinstance(temperature, int | float) and temperature > 0 and not given else None


def _v0_unless_said(config: EffectiveConfig) -> bool | None:
    setting = config.settings.get(_USE_V1)
    return None if setting is not None and setting.where is not None else False


def _clip_of(model: str) -> _Rule:
    """Megatron's sections have no grad_clip: it always clipped by its optimizer's."""
    return lambda config: config.get(f"{model}.grad_clip")


def _critic_ulysses(config: EffectiveConfig) -> int | None:
    """Return over how many GPUs the old critic split a sequence, None for one."""
    size = config.get("critic.ulysses_sequence_parallel_size")
    return size if isinstance(size, int) and size > 1 else None


def _overlong_length(config: EffectiveConfig) -> object:
    if not any(key.startswith("reward_model.overlong_buffer.") for key in config.settings):
        return None
    return config.get("data.max_response_length")


def _rejection(config: EffectiveConfig) -> str | None:
    """0.6 and 0.7's rejection levels are the k1 statistics of 0.8 (ratio between two bounds)."""
    level = config.get("algorithm.rollout_correction.rollout_rs")
    names = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
    return names.get(str(level))


def _rejection_bounds(config: EffectiveConfig) -> str | None:
    if _rejection(config) is None:
        return None
    section = "algorithm.rollout_correction."
    upper = config.get(section + "rollout_rs_threshold") or config.get(section + "rollout_is_threshold")
    if not isinstance(upper, int | float) or not upper:
        return None
    lower = config.get(section + "rollout_rs_threshold_lower") or 1.0 / upper
    return f"{lower}_{upper}"


def _truncated_weights(config: EffectiveConfig) -> str | None:
    """The level of the weights that 0.6.0, and revisions before it, had under other keys.

    Source: ``compute_rollout_importance_weights`` (trainer/ppo/mismatch_helper.py), and
    ``compute_policy_loss_vanilla`` in revisions from August 2025 on.
    """
    cap = config.get("actor_rollout_ref.actor.tis_imp_ratio_cap")
    if isinstance(cap, int | float) and cap > 0:
        return "token"
    level = config.get(f"{_OLD_WEIGHTS}_level", "token")
    is_same = level in ("token", "sequence") and config.get(f"{_OLD_WEIGHTS}_mode", "truncate") == "truncate"
    return str(level) if _has_old_weights(config) and is_same else None


def _has_old_weights(config: EffectiveConfig) -> bool:
    return config.get(_OLD_WEIGHTS) is True and config.get(f"{_OLD_WEIGHTS}_threshold") is not None


def _resume_path(config: EffectiveConfig) -> str | None:
    mode = config.get("trainer.resume_mode")
    return mode if isinstance(mode, str) and "global_step_" in mode else None


def _tools_of_sglang(config: EffectiveConfig) -> str | None:
    """Return the agent loop for a launch whose ``sglang`` rollout called tools itself, else None.

    SGLang's own rollout called the tools; in its async mode veRL's agent loops did, as they do today.
    """
    setting = config.settings.get(_AGENT)
    if setting is not None and setting.where is not None:
        return None
    rollout = "actor_rollout_ref.rollout."
    sglang = str(config.get(rollout + "name")).startswith("sglang")
    its_own = config.get(rollout + "multi_turn.enable") and config.get(rollout + "mode") != "async"
    return "tool_agent" if sglang and its_own else None


_AGENT = "actor_rollout_ref.rollout.agent.default_agent_loop"
_OLD_WEIGHTS = "algorithm.rollout_is"  # a switch, whose threshold is another one
_LENGTH = "actor_rollout_ref.rollout.max_model_len"
_USE_V1 = "trainer.use_v1"
_ACTOR = "actor_rollout_ref.actor."
_CORRECTION = "algorithm.rollout_correction."
# Key that an older release had no key for → the key that it follows from.
DERIVED_FROM: Mapping[str, str] = {
    _ACTOR + "clip_ratio_low": _ACTOR + "clip_ratio",
    _ACTOR + "clip_ratio_high": _ACTOR + "clip_ratio",
    _ACTOR + "optim.clip_grad": _ACTOR + "grad_clip",
    "critic.optim.clip_grad": "critic.grad_clip",
    "critic.fsdp.ulysses_sequence_parallel_size": "critic.ulysses_sequence_parallel_size",
    "algorithm.use_kl_in_reward": _ACTOR + "use_kl_loss",
    _CORRECTION + "rollout_rs": _CORRECTION + "rollout_rs",
    _CORRECTION + "rollout_rs_threshold": _CORRECTION + "rollout_rs_threshold",
    _CORRECTION + "loss_type": _CORRECTION + "use_policy_gradient",
    "trainer.resume_from_path": "trainer.resume_mode",
    _AGENT: "actor_rollout_ref.rollout.multi_turn.enable",
}
# Keys that the old release has under the same name with another meaning: the derived value stands.
_RECAST = {
    _CORRECTION + "rollout_is",
    _CORRECTION + "rollout_rs",
    _CORRECTION + "rollout_rs_threshold",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    _USE_V1,
    _DO_SAMPLE,
    _AGENT,
    _ACTOR + "optim.clip_grad",
    "critic.optim.clip_grad",
}
_CLIP_WHY = "until 0.7 FSDP's gradients were clipped by grad_clip of the model, since then by its optimizer's"
_EVERY = VERL_RELEASES[-1]  # holds for every release that is read
# (last release it holds for, key of the pinned release, value, why)
_IMPLIED: tuple[tuple[str, str, _Rule, str], ...] = (
    ("0.2.0", "data.filter_overlong_prompts", lambda _: True, "0.2 always dropped prompts that are too long"),
    (
        "0.2.0",
        "trainer.resume_mode",
        lambda config: "resume_path" if _resume_path(config) else None,
        "0.2 wrote the checkpoint's path into resume_mode",
    ),
    ("0.2.0", "trainer.resume_from_path", _resume_path, "0.2 wrote the checkpoint's path into resume_mode"),
    (
        "0.3.0",
        "algorithm.use_kl_in_reward",
        lambda config: not config.get(_ACTOR + "use_kl_loss", False),
        "until 0.3 the KL penalty was in the reward unless actor.use_kl_loss was set",
    ),
    *(
        (
            "0.3.0",
            f"{_ACTOR}clip_ratio_{bound}",
            lambda config: config.get(_ACTOR + "clip_ratio", 0.2),
            "until 0.3 clip_ratio was both bounds",
        )
        for bound in ("low", "high")
    ),
    ("0.3.0", _ACTOR + "clip_ratio_c", lambda _: _NO_DUAL_CLIP, "until 0.3 there was no dual clip"),
    (
        "0.6.1",
        _AGENT,
        _tools_of_sglang,
        "until 0.6 sglang's rollout called the tools where multi_turn.enable was set",
    ),
    ("0.7.0", _ACTOR + "optim.clip_grad", _clip_of("actor_rollout_ref.actor"), _CLIP_WHY),
    ("0.7.0", "critic.optim.clip_grad", _clip_of("critic"), _CLIP_WHY),
    (
        "0.7.0",
        "critic.fsdp.ulysses_sequence_parallel_size",
        _critic_ulysses,
        "since 0.8 the critic's engine takes the size of its FSDP section",
    ),
    ("0.7.0", _CORRECTION + "rollout_rs", _rejection, "0.8 names the statistic"),
    ("0.7.0", _CORRECTION + "rollout_rs_threshold", _rejection_bounds, "0.8 takes both bounds in one text"),
    (
        "0.7.0",
        _CORRECTION + "loss_type",
        lambda config: "reinforce" if config.get(_CORRECTION + "use_policy_gradient") else None,
        "use_policy_gradient became loss_type",
    ),
    (
        "0.7.0",
        "reward.reward_kwargs.max_resp_len",
        _overlong_length,
        "main_dapo passed data.max_response_length to the reward manager",
    ),
    (_EVERY, _CORRECTION + "rollout_is", _truncated_weights, "veRL 0.6.0 had this in other keys"),
    (
        _EVERY,
        _DO_SAMPLE,
        _samples_validation,
        "a fork's val_temperature is a temperature to sample validation answers at",
    ),
    (
        _EVERY,
        _USE_V1,
        _v0_unless_said,
        "trinity-compat trains with veRL's v0 trainer unless the launch or trinity_compat.trainer says v1; "
        "both compute the same losses",
    ),
)
