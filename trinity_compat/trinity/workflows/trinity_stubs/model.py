"""``trinity.common.models.model``: for annotations."""

from __future__ import annotations

from trinity_compat.trinity.workflows.model import WorkflowModel as ModelWrapper

__all__ = ["ModelWrapper"]
