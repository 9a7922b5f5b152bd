"""``trinity.common.models.model``: for annotations."""

from __future__ import annotations

from trinity_compat.workflows.model import Model as ModelWrapper

__all__ = ["ModelWrapper"]
