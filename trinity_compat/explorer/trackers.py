"""The launch's loggers, veRL's and plugins', for an explorer, under the run's name with a suffix.

The trainer logs a separate run (``_trainer``). The console is left out: an explorer's log has a line per step
anyway. TensorBoard is written whenever $TENSORBOARD_DIR is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trinity_compat.common.redaction import hidden


class Trackers:
    """All loggers of ``trainer.logger``."""

    def __init__(self, verl: Mapping[str, Any], suffix: str) -> None:
        self._tracking: Any = None
        trainer = verl["trainer"]
        if backends := backends_of(trainer.get("logger")):
            from trinity_compat.plugins.verl_tracking import PluginTracking

            name = f"{trainer['experiment_name']}_{suffix}"
            self._tracking = PluginTracking(trainer["project_name"], name, backends, config=hidden("", verl))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one step's metrics."""
        if self._tracking:
            self._tracking.log(data=dict(metrics), step=step)

    def close(self) -> None:
        """Flush, and end the runs."""
        if self._tracking:
            self._tracking.finish()


def backends_of(logger: Any) -> list[str]:
    """Return ``trainer.logger`` without the console, with TensorBoard where the job has a folder for it."""
    names = [logger] if isinstance(logger, str) else list(logger or ())
    wanted = dict.fromkeys(name for name in names if name != "console")
    if os.environ.get("TENSORBOARD_DIR"):
        wanted["tensorboard"] = None
    return list(wanted)
