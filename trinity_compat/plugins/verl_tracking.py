"""veRL's Tracking with the loggers of plugins (docs/plugins.md). verl 0.9.1."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from verl.utils.tracking import Tracking

from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.plugin_packages import Plugin

_log = logging.getLogger(__name__)


class PluginTracking(Tracking):
    """Tracking in whose ``trainer.logger`` plugins' names may stand beside veRL's."""

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: Any = "console",
        config: Any = None,
    ) -> None:
        """Start all loggers; arguments as Tracking's. Raises UserError for a plugin's that does not start."""
        names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        verls = {"tracking", *Tracking.supported_backend}
        found = {name: plugin_packages.find("logger", name) for name in names if name not in verls}
        plugins = {name: plugin for name, plugin in found.items() if plugin}
        super().__init__(
            project_name, experiment_name, [name for name in names if name not in plugins], config
        )
        for name, plugin in plugins.items():
            self.logger[name] = _PluginLogger(plugin, project_name, experiment_name, config)

    def finish(self, exit_code: int = 0) -> None:
        """Flush and end every logger once."""
        if not getattr(self, "_finished", False):
            for each in getattr(self, "logger", {}).values():
                if isinstance(each, _PluginLogger):
                    each.finish()
        super().finish(exit_code)


class _PluginLogger:
    """A plugin's logger. One that fails is reported once and left out: no run stops for its figures."""

    def __init__(self, plugin: Plugin, project: str, experiment: str, config: Any) -> None:
        self._plugin = plugin
        made = plugin_packages.load(plugin)
        try:
            self._logger: Any = made(project, experiment, config)
        except Exception as error:
            raise UserError(
                f"{plugin.title} does not start: {type(error).__name__}: {error}",
                hint=f"leave {plugin.name} out of trainer.logger",
            ) from error

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log one step's figures."""
        self._called("log", dict(data), step)

    def finish(self) -> None:
        """End the run, if the logger has such a method."""
        if hasattr(self._logger, "finish"):
            self._called("finish")

    def _called(self, method: str, *given: object) -> None:
        if self._logger is None:
            return
        try:
            getattr(self._logger, method)(*given)
        except Exception as error:
            self._logger = None
            title = self._plugin.title
            _log.warning("%s failed and is left out from here on: %s: %s", title, type(error).__name__, error)
