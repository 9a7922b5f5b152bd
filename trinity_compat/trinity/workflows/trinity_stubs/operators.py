"""``trinity.buffer.operators``: the base classes, and the operators of our table under their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trinity_compat.trinity.pipelines import registry
from trinity_compat.trinity.workflows.trinity_stubs.registry import Registry


class ExperienceOperator(ABC):
    """Takes a batch's experiences; gives those that go on, and metrics."""

    @abstractmethod
    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """``exps``: of all answers that were made together."""

    def close(self) -> None:  # noqa: B027
        """The run ends."""


class ExperienceOperatorV1(ABC):
    """The same with coroutines, and with clients of the auxiliary models."""

    auxiliary_models: Mapping[str | int, list[Any]]

    def set_auxiliary_model(self, auxiliary_models: Mapping[str | int, list[Any]] | None = None) -> None:
        """openai.AsyncOpenAI clients by the model's name, else its place."""
        self.auxiliary_models = auxiliary_models or {}

    async def prepare(self) -> None:  # noqa: B027
        """The run begins."""

    @abstractmethod
    async def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """As ``ExperienceOperator``'s."""

    async def close(self) -> None:  # noqa: B027
        """The run ends."""


EXPERIENCE_OPERATORS = Registry("experience_operators")

for _name, _operator in registry.OPERATORS.items():
    EXPERIENCE_OPERATORS.register_module(_name, type(_operator.__name__, (_operator, ExperienceOperator), {}))
