"""Prompts of a workflow for a row: trinity-rft 0.6.0, workflow.py and customized_math_workflows.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from trinity_compat.common.errors import UserError
from trinity_compat.common.resources import data_json
from trinity_compat.trinity.workflows.tasksets import Taskset

Row: TypeAlias = Mapping[str, object]
Message: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt of a row: ``messages`` for the chat template, or ``text`` as the whole prompt.

    ``about``: arguments of the reward beside the response and the truth.
    """

    messages: list[Message]
    reward: str
    text: str | None = None
    about: Mapping[str, object] = field(default_factory=dict)


Ask: TypeAlias = Callable[[Taskset, str, str | None], Prompt]  # taskset, question, the reward's name


def simple(taskset: Taskset, question: str, reward: str | None) -> Prompt:
    """``simple_workflow``: system_prompt, question, reply_prefix. Raises UserError without a reward."""
    if reward is None:
        raise UserError(
            f"{taskset.place} names no reward: {taskset.workflow} needs one",
            hint="write default_reward_fn_type",
        )
    return Prompt(_messages(taskset, question, taskset.text("system_prompt")), reward)


def math(taskset: Taskset, question: str, reward: str | None) -> Prompt:
    """``math_workflow``: simple_workflow with math_reward, which brings a system prompt of its own."""
    reward = reward or "math_reward"
    given = taskset.text("system_prompt")
    own = default_system_prompt("math_workflow") if given is None and reward == "math_reward" else given
    return Prompt(_messages(taskset, question, own), reward)


def math_boxed(taskset: Taskset, question: str, reward: str | None) -> Prompt:
    """Prompt of ``math_boxed_workflow``.

    ``workflow_args``: use_base (a prompt without a chat template), with_think, format_score_coef.
    """
    arguments = taskset.workflow_args
    think = bool(arguments.get("with_think", False))
    own = default_system_prompt("math_boxed_workflow with_think" if think else "math_boxed_workflow")
    system = taskset.text("system_prompt", own)
    return Prompt(
        _messages(taskset, question, system),
        reward or "math_boxed_reward",
        _base_prompt(system, question) if arguments.get("use_base", False) else None,
        {"with_think": think, "format_score_coef": arguments.get("format_score_coef", 0.1)},
    )


def _messages(taskset: Taskset, question: str, system: str | None) -> list[Message]:
    said = [("system", system or ""), ("assistant", taskset.text("reply_prefix") or "")]
    before, after = ([{"role": role, "content": text}] if text else [] for role, text in said)
    return [*before, {"role": "user", "content": question}, *after]


def _base_prompt(system: str | None, question: str) -> str:
    head = f"System:{system}\n" if system else ""
    return f"{head}User:\n{question}\nAssistant:\n"


@functools.cache
def _texts() -> dict[str, object]:
    found = data_json("translators/generated/workflows/texts.json")
    return dict(found)


def default_system_prompt(name: str) -> str:
    """Return the system prompt of a workflow for a taskset without one. Raises KeyError."""
    return str(_texts()[name])


def units() -> Sequence[str]:
    """Return upstream's regular expressions for words that are removed before answers are compared."""
    found = _texts()["units"]
    return [str(unit) for unit in found] if isinstance(found, list) else []
