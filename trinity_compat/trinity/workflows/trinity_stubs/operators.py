"""``trinity.buffer.operators``: the base classes, and the operators of our table under their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trinity_compat.trinity.pipelines.operators import OPERATORS
from trinity_compat.trinity.workflows.trinity_stubs.base import Registry


class ExperienceOperator(ABC):
    """Operator on a batch's experiences; returns those kept, and metrics."""

    @abstractmethod
    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Process the experiences of one batch."""

    def close(self) -> None:  # noqa: B027
        """The run ends."""


class ExperienceOperatorV1(ABC):
    """The same with coroutines, and with clients of the auxiliary models."""

    auxiliary_models: Mapping[str | int, list[Any]]

    def set_auxiliary_model(self, auxiliary_models: Mapping[str | int, list[Any]] | None = None) -> None:
        self.auxiliary_models = auxiliary_models or {}

    async def prepare(self) -> None:  # noqa: B027
        """The run begins."""

    @abstractmethod
    async def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Process like ``ExperienceOperator``."""

    async def close(self) -> None:  # noqa: B027
        """The run ends."""


EXPERIENCE_OPERATORS = Registry("experience_operators")

for _name, _operator in OPERATORS.items():
    EXPERIENCE_OPERATORS.register_module(_name, type(_operator.__name__, (_operator, ExperienceOperator), {}))
