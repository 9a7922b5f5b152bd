"""The pipeline of a run, in the explorer's own process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from trinity_compat.dotted import value_at
from trinity_compat.explorer.tasks import TaskStream
from trinity_compat.pipelines import SECTION
from trinity_compat.pipelines.running import Pipeline
from trinity_compat.workflows import plugins, standin
from trinity_compat.workflows.auxiliary import Auxiliary


def pipeline_of(verl: Mapping[str, Any], train: TaskStream) -> Pipeline | None:
    """What a configuration asks for, None where it names no operators. Raises RunError for a plugin or an
    operator that fails."""
    asked = value_at(verl, f"{SECTION}.operators")
    if not asked:
        return None
    standin.install()
    plugins.load(plugins.folders(os.environ.get(plugins.VARIABLE, "")))
    return Pipeline([(each["name"], each["args"]) for each in asked], train.place)


@asynccontextmanager
async def prepared(
    pipeline: Pipeline | None, verl: Mapping[str, Any], router: str | None
) -> AsyncIterator[None]:
    """Around its use. ``router``: where the auxiliary model answers (host:port), None where there is none."""
    if pipeline is None:
        yield
        return
    await pipeline.prepare(_auxiliary(verl, router) if router else None)
    try:
        yield
    finally:
        await pipeline.close()


def _auxiliary(verl: Mapping[str, Any], router: str) -> dict[str | int, list[Any]]:
    """As upstream hands it: by its name, else its place."""
    path = str(value_at(verl, "reward.reward_model.model_path"))
    name = value_at(verl, f"{SECTION}.auxiliary_name")
    return {str(name) if name else 0: [Auxiliary(router, path).get_openai_async_client()]}
