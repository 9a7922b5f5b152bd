"""veRL's loggers with the run's own metrics in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

from trinity_compat.common.nested import Tree
from trinity_compat.common.redaction import hidden
from trinity_compat.plugins.verl_tracking import PluginTracking

Log = Callable[[int, Tree], dict[str, object]]


@contextmanager
def logged_through(log: Log, module: ModuleType, logged: Callable[[], None]) -> Iterator[None]:
    """Let every ``Tracking.log(data, step)`` log what ``log(step, data)`` returns, then call ``logged``.

    ``module``: where veRL looks up ``Tracking``. The run's name gets a suffix, since the explorer logs a run
    of its own.
    """

    class Recorded(PluginTracking):
        def __init__(self, project_name: str, experiment_name: str, *args: object, **kwargs: object) -> None:
            kwargs["config"] = hidden("", kwargs.get("config"))  # the loggers keep it
            super().__init__(project_name, experiment_name + "_trainer", *args, **kwargs)

        def log(self, data: Tree, step: int, backend: object = None) -> None:
            super().log(data=log(step, data), step=step, backend=backend)
            logged()

    with patch.object(module, "Tracking", Recorded):
        yield
