"""The pipeline of a run, in the explorer's own process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trinity_compat.dotted import value_at
from trinity_compat.explorer.tasks import TaskStream
from trinity_compat.pipelines.running import Pipeline
from trinity_compat.pipelines.table import SECTION
from trinity_compat.workflows import plugins, standin


def pipeline_of(verl: Mapping[str, Any], train: TaskStream) -> Pipeline | None:
    """What a configuration asks for, None where it names no operators. Raises RunError for a plugin or an
    operator that fails."""
    asked = value_at(verl, f"{SECTION}.operators")
    if not asked:
        return None
    standin.install()
    plugins.load(plugins.folders(os.environ.get(plugins.VARIABLE, "")))
    return Pipeline([(each["name"], each["args"]) for each in asked], train.place)
