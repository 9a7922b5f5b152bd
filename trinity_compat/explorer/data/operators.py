"""The pipeline of a run, in the explorer's own process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from trinity_compat.common.nested import value_at
from trinity_compat.explorer.data.tasks import TaskStream
from trinity_compat.trinity.pipelines import SECTION
from trinity_compat.trinity.pipelines.operators import OPERATORS
from trinity_compat.trinity.pipelines.runner import OperatorPipeline
from trinity_compat.trinity.workflows import plugins, trinity_stubs
from trinity_compat.trinity.workflows.auxiliary import clients_of


def pipeline_of(verl: Mapping[str, Any], train: TaskStream) -> OperatorPipeline | None:
    """Build the pipeline of a configuration, None where it names no operators.

    Raises RunError for a plugin or an operator that fails.
    """
    operators = value_at(verl, f"{SECTION}.operators")
    if not operators:
        return None
    trinity_stubs.install()
    plugins.load(plugins.folders(os.environ.get(plugins.VARIABLE, "")))
    plugins.register("operator", (each["name"] for each in operators), known=OPERATORS)
    return OperatorPipeline([(each["name"], each["args"]) for each in operators], train.place)


@asynccontextmanager
async def prepared(
    pipeline: OperatorPipeline | None, verl: Mapping[str, Any], routers: Sequence[str] = ()
) -> AsyncIterator[None]:
    """Prepare the pipeline for a block. ``routers``: the auxiliary models' addresses (host:port)."""
    if pipeline is None:
        yield
        return
    # The models as upstream passes them: each by its name, else by its place.
    found = enumerate(clients_of(verl, routers))
    await pipeline.prepare({each.name or place: [each.get_openai_async_client()] for place, each in found})
    try:
        yield
    finally:
        await pipeline.close()
