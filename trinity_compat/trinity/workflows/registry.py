"""The workflows and rewards that run here, by the names that Trinity registers them under.

Those of trinity-rft itself run if it is installed; else the missing package is named.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TRINITY
from trinity_compat.common.resources import data_path
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.trinity.workflows import prompts
from trinity_compat.trinity.workflows.prompts import Ask

VERL = "verl_workflow"  # veRL's own agent loops and scoring: trinity_compat/plugins/upstream

PROGRAM = "agent_program"  # a user's program that calls the model over the OpenAI API: agents.py

# An async one has the same prompts: upstream differs in waiting, and repeats the task run by run.
WORKFLOWS: Mapping[str, Ask] = {
    f"{prefix}{name}": ask
    for name, ask in (
        ("simple_workflow", prompts.simple),
        ("math_workflow", prompts.math),
        ("math_boxed_workflow", prompts.math_boxed),
    )
    for prefix in ("", "async_")
}

_REWARDS = "trinity_compat.trinity.workflows.rewards"
REWARDS: Mapping[str, str] = {
    "math_reward": f"{_REWARDS}.accuracy:MathReward",
    "math_boxed_reward": f"{_REWARDS}.boxed:MathBoxedReward",
    "format_reward": f"{_REWARDS}.accuracy:FormatReward",
    "countdown_reward": f"{_REWARDS}.countdown:CountdownReward",
    "accuracy_reward": f"{_REWARDS}.accuracy:AccuracyReward",
    "math_dapo_reward": f"{_REWARDS}.dapo:MathDapoReward",
}
# Rewards that take the workflow's arguments besides response and truth.
TAKES_ABOUT = ("math_boxed_reward", "math_dapo_reward")
WANTS_NO_TRUTH = ("format_reward",)


class Reward(Protocol):
    """Reward of an answer: its parts by name, whose sum is the reward."""

    def __call__(self, response: str, truth: str, **about: object) -> dict[str, float]:
        """Score a response; ``about``: see ``Prompt``."""


def make_reward(name: str, arguments: Mapping[str, object]) -> Reward:
    """Create a reward by name with ``reward_fn_args``. Raises UserError for unknown arguments."""
    check_arguments(name, arguments)
    reward: Reward = _class_of(name)(**arguments)
    return reward


def check_arguments(name: str, arguments: Mapping[str, object], where: str = "reward_fn_args") -> None:
    """Raise UserError where a reward takes no such ``reward_fn_args``, which ``where`` names."""
    try:
        inspect.signature(_class_of(name)).bind(**arguments)
    except TypeError as error:
        raise UserError(f"{where} of {name}: {error}", hint="leave it out") from error


def _class_of(name: str) -> Any:
    module, _, attribute = REWARDS[name].partition(":")
    return getattr(import_module(module), attribute)


def check_workflow(name: str, where: str, of_plugins: Collection[str] = ()) -> Ask:
    """Return the prompt function; raise UserError with the nearest name if the table lacks it."""
    if name not in WORKFLOWS:
        raise UserError(
            f"{where}={name}: no workflow of that name runs here",
            hint=_known(name, [*WORKFLOWS, PROGRAM], [*of_plugins, *upstream_names().workflows]),
        )
    return WORKFLOWS[name]


def check_reward(name: str, where: str, of_plugins: Collection[str] = ()) -> None:
    """Check a reward as ``check_workflow`` checks a workflow."""
    if name not in REWARDS:
        hint = _known(name, REWARDS, of_plugins)
        raise UserError(f"{where}={name}: no reward of that name runs here", hint=hint)


def _known(name: str, known: Collection[str], theirs: Collection[str]) -> str:
    """``theirs``: further names that run here, beside trinity-rft or with this run's plugins."""
    # Only a close match counts as a misspelling.
    near = question(nearest(name, [*known, *theirs], cutoff=0.9))
    return near or (
        f"neither trinity-rft {TRINITY} nor a plugin of this run has it: it may be another release's, or a"
        f" plugin's (--plugin-dir DIR); else write one of {', '.join(known)}"
    )


# -- trinity-rft's own ----------------------------------------------------------------------------

PACKAGE = "trinity-rft"


@dataclass(frozen=True, slots=True)
class UpstreamNames:
    """Names registered by trinity-rft 0.6.0.

    ``workflows``: name → modules of its environment, which are not dependencies of the package.
    """

    workflows: Mapping[str, Sequence[str]]
    rewards: Sequence[str]


@cache
def upstream_names() -> UpstreamNames:
    """Return trinity-rft's names; scripts/generate/make_workflow_names.py writes them."""
    return UpstreamNames(
        **json.loads(data_path("translators/generated/workflows/names.json").read_text(encoding="utf-8"))
    )


def is_registered(name: str, known: Sequence[str] | Mapping[str, object]) -> bool:
    """Return whether an installed trinity-rft has a workflow or reward of that name or dotted path.

    ``known``: names of the release that was read; another release may have any.
    """
    installed = optional_packages.version(PACKAGE)
    return installed is not None and (name in known or "." in name or installed != TRINITY)


def check_environment(name: str, where: str) -> None:
    """Raise UserError for a workflow of trinity-rft's whose packages are not installed, naming them."""
    modules = [module for module in upstream_names().workflows.get(name, ()) if not find_spec(module)]
    if optional_packages.version(PACKAGE) is None:
        modules = [PACKAGE, *modules]
    if modules:
        theirs = [module for module in modules if module != PACKAGE]
        steps = [f"pip install --no-deps {PACKAGE}=={TRINITY}"] if PACKAGE in modules else []
        if theirs:
            steps.append(f"the packages of its environment: {', '.join(theirs)}")
        raise UserError(
            f"{where}={name}: trinity-rft's own workflow, for which {', '.join(modules)} would have to be"
            " installed here",
            hint=f"{', and '.join(steps)} (docs/workflows.md)",
        )
