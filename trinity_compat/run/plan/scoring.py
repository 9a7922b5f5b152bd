"""How long a reward function may take, and what becomes of an answer that it fails on."""

from __future__ import annotations

from typing import cast, get_args

from trinity_compat.common.containers import Tree
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.job.run_spec import OnAgentFailure, OnFailure, ScoringSpec
from trinity_compat.translate import verl_from_trinity

TIMEOUT_S = 300.0  # veRL 0.7.0: workers/reward_manager/prime.py
MODEL_TIMEOUT_S = 1800.0  # an answer waits for those before it in the reward model's queue


def scoring_of(config: Tree, verl: Tree) -> ScoringSpec:
    """From ``trinity_compat.reward_timeout``, ``.reward_failure`` and ``.reward_memory``; what is not given
    as veRL has it: an error ends the run, but for ``prime``. Raises UserError."""
    given = verl_from_trinity.compat_of(config)
    by_model = _by_model(verl)
    limit = MODEL_TIMEOUT_S if by_model else TIMEOUT_S
    timeout_s = number(given, "reward_timeout", "seconds, or null for no limit") or None
    on_error: OnFailure = "zero" if value_at(verl, "reward.reward_manager.name") == "prime" else "raise"
    asked = _failure(given)
    return ScoringSpec(
        timeout_s=timeout_s if "reward_timeout" in given else limit,
        on_error=asked or on_error,
        on_hang=asked or ("raise" if by_model else "zero"),
        memory_gb=number(given, "reward_memory", "GB"),
    )


def _by_model(verl: Tree) -> bool:
    function = value_at(verl, "reward.custom_reward_function.path")
    return bool(value_at(verl, "reward.reward_model.enable") and not function)


def seconds(name: str, limit: object) -> float | None:
    """The setting ``name``; None for no limit. Raises UserError."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
        raise UserError(f"{name} is {limit!r}: write a number of seconds")
    return float(limit)


def number(given: Tree, name: str, unit: str, default: float | None = None) -> float | None:
    """Of the run's own settings; ``default`` where it is not given, None where it is null.

    Raises UserError for what is not above 0.
    """
    value = given.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UserError(f"trinity_compat.{name} is {value!r}: write a number of {unit}")
    return float(value)


def _failure(given: Tree) -> OnFailure | None:
    return cast("OnFailure | None", _one_of(given, "reward_failure", get_args(OnFailure)))


def agent_failure(config: Tree) -> OnAgentFailure:
    """From ``trinity_compat.agent_failure``; as in veRL an agent loop that fails ends the run.

    Raises UserError.
    """
    asked = _one_of(verl_from_trinity.compat_of(config), "agent_failure", get_args(OnAgentFailure))
    return cast(OnAgentFailure, asked or "raise")


def _one_of(given: Tree, name: str, allowed: tuple[str, ...]) -> str | None:
    value = given.get(name)
    if value is None or (isinstance(value, str) and value in allowed):
        return value
    raise UserError(
        f"trinity_compat.{name} is {value!r}: it may be {', '.join(allowed[:-1])} or {allowed[-1]}",
        hint=question(nearest(str(value), allowed)),
    )
