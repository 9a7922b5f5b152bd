"""``trinity.common.constants``: what an operator reads of it."""

from __future__ import annotations

from enum import Enum

from trinity_compat.trinity.pipelines.operators import SELECTOR_METRIC

__all__ = ["SELECTOR_METRIC", "OpType"]


class OpType(Enum):
    """Operations of reward shaping."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
