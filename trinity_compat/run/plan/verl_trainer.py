"""Refusal of runs that the adapter of veRL's v1 trainer does not train, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.settings import SETTINGS


def check(spec: RunSpec) -> list[str]:
    """Return what to say of a run of v1. Raises UserError for one that needs more than its adapter does."""
    if spec.trainer != "v1":
        return []
    key = SETTINGS["trainer"].key
    if found := next(_unfit(spec), None):
        raise UserError(f"{key}: {found}", hint=f"let veRL's v0 trainer train it: --set {key}=v0")
    return [
        f"{key}=v1: mini-batches hold other rows than v0's, and losses are divided by rejected tokens too"
    ]


def _unfit(spec: RunSpec) -> Iterator[str]:
    if spec.rows:
        yield "v1 does not train rows of files here"
    if spec.experts:
        yield "v1 does not train an expert's rows here"
