"""The functions that a YAML's ``algorithm`` section selects, with Trinity's defaults, and veRL's keys.

Defaults as trinity-rft 0.6.0 sets them (common/config_validator.py: AlgorithmConfigValidator): a function
that is not named is the algorithm's; arguments that are not given at all are the function's ``default_args``,
and if some are given its constructor's defaults stand for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from trinity_compat.common.errors import UserError
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.common.releases import TRINITY
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.trinity.algorithms import of_plugins
from trinity_compat.trinity.algorithms.model import (
    ALGORITHMS,
    CLASSES,
    FUNCTIONS,
    KINDS,
    MIX,
    PREFIX,
    Algorithm,
    Kind,
    RegisteredFunction,
    Schema,
)
from trinity_compat.trinity.algorithms.regularizers import loss_keys

_ACTOR = "actor_rollout_ref.actor"
_POLICY_LOSS = f"{_ACTOR}.policy_loss"
_AGGREGATION = "loss_agg_mode"


@dataclass(frozen=True, slots=True)
class SelectedFunction:
    """A function and all its arguments.

    ``given``: those that the YAML names; None where it has no section.
    """

    function: RegisteredFunction
    arguments: Mapping[str, Any]
    given: Mapping[str, Any] | None

    @property
    def path(self) -> str:
        """The path of its name in the YAML."""
        return f"algorithm.{self.function.kind}"


def choose(section: Mapping[str, Any], skip: Iterable[Kind] = ()) -> dict[Kind, SelectedFunction]:
    """Return the functions of an ``algorithm`` section, except for the kinds in ``skip``.

    Raises UserError, in the YAML's words, for a name or an argument that trinity-rft lacks, a value of
    another type, and what a run here cannot do.
    """
    name = str(section.get("algorithm_type") or "ppo")
    known = [each.name for each in ALGORITHMS.values() if not each.lacks]
    if name not in ALGORITHMS:
        raise _unknown("algorithm.algorithm_type", name, list(ALGORITHMS), known)
    of = ALGORITHMS[name]
    if of.lacks:
        raise _lacking("algorithm.algorithm_type", name, of.lacks, known)
    chosen = {kind: _choose(kind, section, of) for kind in KINDS if kind not in skip}
    strategy = section.get("sample_strategy") or of.sample_strategy
    for each in chosen.values():
        if "expert_mask" in each.function.columns and strategy != MIX:
            raise UserError(
                f"{each.path}={each.function.name} tells an expert's rows apart, and"
                f" algorithm.sample_strategy={strategy} takes none",
                hint=f"write sample_strategy: {MIX}, or another function",
            )
    return chosen


def verl_keys(section: Mapping[str, Any], skip: Iterable[Kind] = ()) -> dict[str, object]:
    """Return dotted keys of the pinned veRL for an ``algorithm`` section. Raises as ``choose``."""
    # DPO needs a reference model. Trinity takes no "none" for its KL term, and uses k2 then (algorithm.py:
    # DPOAlgorithm.check_config).
    if section.get("algorithm_type") == "dpo" and section.get("kl_loss_fn") in ("none", None):
        section = {**section, "kl_loss_fn": "k2"}
    functions = choose(section, skip)
    keys: dict[str, object] = {}
    for chosen in functions.values():
        keys |= _keys(chosen)
    if needs_teacher(functions):
        keys |= _scored_by_the_reference(functions)
    if "policy_loss_fn" in functions:
        mode = _aggregation(section, functions["policy_loss_fn"])
        _check_one_aggregation(section, functions, mode)
        keys[f"{_ACTOR}.loss_agg_mode"] = mode
    return keys


def needs_teacher(functions: Mapping[Kind, SelectedFunction]) -> bool:
    """Return True if an advantage is computed from a teacher's log-probabilities."""
    return "advantage_fn" in functions and "ref_log_prob" in functions["advantage_fn"].function.columns


def _scored_by_the_reference(functions: Mapping[Kind, SelectedFunction]) -> dict[str, object]:
    """Return keys that make veRL compute the reference's log-probabilities.

    veRL does so if a KL term needs them: one in the reward with the coefficient 0 changes no reward and logs
    the KL from the teacher.
    """
    for kind in ("kl_loss_fn", "kl_penalty_fn"):
        if kind in functions and functions[kind].function.name != "none":
            raise UserError(
                f"algorithm.{kind}={functions[kind].function.name}: the reference model is the teacher of"
                f" {functions['advantage_fn'].function.name}, so there is none for a KL term",
                hint="write none",
            )
    control = "algorithm.kl_ctrl"
    return {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": "kl",
        f"{control}.type": "fixed",
        f"{control}.kl_coef": 0.0,
    }


def schema_of(section: Mapping[str, Any]) -> Schema:
    """Return the kind of rows that an ``algorithm`` section trains on; an explorer's if it names none."""
    found = ALGORITHMS.get(str(section.get("algorithm_type")))
    return found.schema if found else "experience"


def _choose(kind: Kind, section: Mapping[str, Any], of: Algorithm) -> SelectedFunction:
    name = str(section.get(kind) or getattr(of, kind))
    path, functions = f"algorithm.{kind}", FUNCTIONS[kind]
    known = [each.name for each in functions.values() if each.signature or each.call or not each.lacks({})]
    function = functions.get(name) or of_plugins.named(kind, name)
    if function is None:
        raise _unknown(path, name, list(functions), known)
    given = section.get(f"{kind}_args")
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"{path}_args is {given!r}, it should be a section")
    if name not in known and not function.of_plugin:
        raise _lacking(path, name, function.lacks({}), known)
    chosen = SelectedFunction(function, _arguments(function, given), None if given is None else dict(given))
    if why := function.lacks(chosen.arguments):
        raise _lacking(path, name, why, known)
    known_now = not any(isinstance(value, str) and "${" in value for value in chosen.arguments.values())
    if known_now and (why := function.check(chosen.arguments)):
        raise UserError(f"{path}_args: {name}: {why}")
    return chosen


def _arguments(function: RegisteredFunction, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {**function.defaults, **function.without_arguments}
    if function.of_plugin:
        return dict(given)
    path = f"algorithm.{function.kind}_args"
    for name, value in given.items():
        if name not in function.signature:
            has = ", ".join(function.signature) or "no arguments"
            near = question(nearest(name, function.signature))
            raise UserError(
                f"{path}.{name}: {function.name} of {function.kind} has none of that name",
                hint=near or f"it has {has}",
            )
        if (wanted := _wanted(function.signature[name], value)) is not None:
            raise UserError(f"{path}.{name}={value}: {function.name} takes {wanted}")
    # A null is Trinity's way to leave an argument out only where the argument may be none.
    return {**function.defaults, **given}


def _wanted(parameter: Parameter, value: object) -> str | None:
    """Return the expected type if ``value`` does not have it; None if it has, or isn't known yet."""
    if isinstance(value, str) and "${" in value:
        return None
    annotation = parameter.annotation
    # A choice of literals or none is typing's Union, other ones are the language's.
    several = isinstance(annotation, UnionType) or get_origin(annotation) is Union
    kinds = get_args(annotation) if several else (annotation,)
    return None if any(_is(value, kind) for kind in kinds) else " or ".join(_words(kind) for kind in kinds)


def _is(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is float:
        return is_number(value)
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return {float: "a number", bool: "true or false", NoneType: "null"}.get(kind, kind.__name__)


def _keys(chosen: SelectedFunction) -> Mapping[str, object]:
    """Return veRL's own function if it has the same numbers, else ours under its registered name."""
    function, arguments = chosen.function, dict(chosen.arguments)
    if (of_verl := function.verl(arguments)) is not None:
        return {**of_verl, **_left_out(arguments)}
    name = f"{PREFIX}{function.name}"
    if function.kind == "kl_loss_fn":
        # veRL has to keep a reference model; the estimate is replaced in its workers.
        ours = {
            f"{_POLICY_LOSS}._target_": f"{CLASSES}.PolicyLoss",
            f"{_POLICY_LOSS}.{PREFIX}kl": function.name,
        }
        return {**loss_keys("low_var_kl", arguments["kl_coef"]), **ours}
    arguments.pop(_AGGREGATION, None)
    if function.kind == "advantage_fn":
        return {
            "algorithm.adv_estimator": name,
            "algorithm._target_": f"{CLASSES}.Algo",
            f"algorithm.{PREFIX}args": arguments,
            **({} if function.of_plugin else _left_out(arguments)),
        }
    return {
        f"{_POLICY_LOSS}.loss_mode": name,
        f"{_POLICY_LOSS}._target_": f"{CLASSES}.PolicyLoss",
        f"{_POLICY_LOSS}.{PREFIX}args": arguments,
    }


def _left_out(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return keys that leave out groups without signal: the explorer draws others in their place."""
    threshold = arguments.get("std_threshold")
    if threshold is None:
        return {}
    return {
        "algorithm._target_": f"{CLASSES}.Algo",
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "reward",
        f"algorithm.{PREFIX}std_threshold": threshold,
    }


def _aggregation(section: Mapping[str, Any], loss: SelectedFunction) -> object:
    """Trinity's common mode where the loss names one too, or nothing at all.

    Trinity replaces a mode that stands among the arguments alone by token-mean; here it is followed.
    """
    common, given = section.get(_AGGREGATION), loss.given
    if given is None or _AGGREGATION not in loss.function.signature:
        return common or "token-mean"
    if _AGGREGATION in given:
        return common or given[_AGGREGATION]
    return loss.arguments[_AGGREGATION]


def _check_one_aggregation(
    section: Mapping[str, Any], functions: Mapping[Kind, SelectedFunction], mode: object
) -> None:
    """Raise UserError if KL and entropy would have another aggregation than the policy loss.

    Trinity aggregates KL and entropy by its common mode and the policy loss by ``mode``; veRL has one mode
    for all three.
    """
    common, given = section.get(_AGGREGATION) or "token-mean", functions["policy_loss_fn"].given
    if mode == common or given is None or _AGGREGATION in given:
        return
    coefficients: dict[Kind, str] = {"kl_loss_fn": "kl_coef", "entropy_loss_fn": "entropy_coef"}
    for kind, name in coefficients.items():
        term = functions.get(kind)
        if term and term.function.name != "none" and term.arguments.get(name):
            raise UserError(
                f"algorithm.{_AGGREGATION}={common} applies to algorithm.{kind}, but the policy loss uses"
                f" {mode}, since algorithm.policy_loss_fn_args names none: here both must have the same mode",
                hint=f"write {_AGGREGATION}: {common} into policy_loss_fn_args, or {kind}: none",
            )


def _unknown(path: str, name: str, all_of_them: list[str], known: list[str]) -> UserError:
    near = question(nearest(name, all_of_them))
    return UserError(
        f"{path}={name}: no release of trinity-rft has it up to {TRINITY}",
        hint=near or f"use one of {', '.join(known)}",
    )


def _lacking(path: str, name: str, why: str, known: list[str]) -> UserError:
    return UserError(
        f"{path}={name} cannot be trained here: {why}",
        hint=f"use one of {', '.join(known)}, or run the YAML on trinity-rft",
    )
