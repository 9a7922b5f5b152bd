"""Lets the run see, and add to, the metrics of each step.

Patch: ``verl.utils.tracking.Tracking`` while ``fit`` runs. Why: veRL v0's ``fit`` builds its logger
itself and offers no hook that sees a step's metrics. verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import verl.utils.tracking as target

from trinity_compat.common.nested import Tree
from trinity_compat.common.redaction import hidden

Log = Callable[[int, Tree], dict[str, object]]


@contextmanager
def logged_through(log: Log, suffix: str = "_trainer") -> Iterator[None]:
    """Let every ``Tracking.log(data, step)`` log what ``log(step, data)`` returns.

    The run's name gets ``suffix``, since the explorer logs a run of its own.
    """

    class Recorded(target.Tracking):
        def __init__(self, project_name: str, experiment_name: str, *args: object, **kwargs: object) -> None:
            kwargs["config"] = hidden("", kwargs.get("config"))  # the loggers keep it
            super().__init__(project_name, experiment_name + suffix, *args, **kwargs)

        def log(self, data: Tree, step: int, backend: object = None) -> None:
            super().log(data=log(step, data), step=step, backend=backend)

    with patch.object(target, "Tracking", Recorded):
        yield
