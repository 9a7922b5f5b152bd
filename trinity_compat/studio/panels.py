"""Panels: layouts of charts that readers of one folder share, in a small file of that folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.common.path_ownership import not_own
from trinity_compat.studio import job_files

FILE = "studio-panels.json"
_MOST_BYTES = 256 << 10
_MOST_PANELS, _MOST_METRICS = 50, 48
_LONGEST_NAME, _LONGEST_METRIC = 60, 200
VIEW = frozenset(("x", "smooth", "log", "seeds"))


@dataclass(frozen=True, slots=True)
class Panel:
    """A name, its metrics in order, and how they are drawn: a query of the fields ``VIEW``."""

    name: str
    metrics: tuple[str, ...]
    view: str = ""

    @property
    def query(self) -> list[tuple[str, str]]:
        """Its part of an address."""
        return [("metric", name) for name in self.metrics] + parse_qsl(self.view)


class Panels:
    """The panels of the folder ``root``, read again at every look: they are few."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._path = self._root / FILE
        self._lock = threading.Lock()

    def read(self) -> tuple[list[Panel], str]:
        """Return the panels, and '' or why the file is ignored."""
        try:
            with job_files.opened(self._path) as file:
                data = file.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError(f"it is larger than {_MOST_BYTES >> 10} KiB")
            return _panels(json.loads(data)), ""
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            return [], f"{FILE} is ignored: it {error.strerror}."
        except RecursionError:
            return [], f"{FILE} is ignored: it is nested too deeply."
        except ValueError as error:
            return [], f"{FILE} is ignored: {error}."

    def save(self, name: str, metrics: Sequence[str], view: str = "") -> None:
        """Save a panel under a name, in place of the one of that name. Raises UserError."""
        try:
            panel = _panel({"name": name, "metrics": list(metrics), "view": view})
        except ValueError as error:
            raise UserError(f"The panel is not saved: {error}.") from error
        with self._lock:
            kept = [one for one in self._readable() if one.name != panel.name]
            if len(kept) >= _MOST_PANELS:
                raise UserError(f"The panel is not saved: this folder has {_MOST_PANELS}; remove one first.")
            self._write([*kept, panel])

    def remove(self, name: str) -> None:
        """Remove the panel of that name, if there is one. Raises UserError."""
        with self._lock:
            self._write([one for one in self._readable() if one.name != name])

    def _readable(self) -> list[Panel]:
        """Raise UserError for a file that is ignored, which a write would replace."""
        found, problem = self.read()
        if problem:
            raise UserError(f"{problem} Move it away, then save again.")
        return found

    def _write(self, panels: Sequence[Panel]) -> None:
        if problem := not_own(self._root):
            raise UserError(f"Panels of this folder cannot be saved: {problem}")
        text = json.dumps({"version": 1, "panels": [asdict(one) for one in panels]}, indent=1)
        try:
            write_text(self._path, f"{text}\n", mode=0o600)
        except OSError as error:
            raise UserError(f"{FILE} cannot be written: {error.strerror}") from error


def _panels(data: object) -> list[Panel]:
    """Raise ValueError where the file's content is not what ``save`` writes."""
    found = data.get("panels") if isinstance(data, dict) and data.get("version") == 1 else None
    if not isinstance(found, list):
        raise ValueError('it is not {"version": 1, "panels": […]}')
    if len(found) > _MOST_PANELS:
        raise ValueError(f"it has {len(found)} panels, more than {_MOST_PANELS}")
    return [_panel(one) for one in found]


def _panel(data: object) -> Panel:
    name, metrics = (data.get("name"), data.get("metrics")) if isinstance(data, dict) else (None, None)
    if not isinstance(name, str) or not 0 < len(name.strip()) <= _LONGEST_NAME:
        raise ValueError(f"a panel has a name of 1 to {_LONGEST_NAME} characters")
    if not isinstance(metrics, list):
        raise ValueError("a panel has a list of metrics")
    if not 0 < len(metrics) <= _MOST_METRICS:
        raise ValueError(f"a panel has 1 to {_MOST_METRICS} metrics, not {len(metrics)}")
    if not all(isinstance(one, str) and 0 < len(one) <= _LONGEST_METRIC for one in metrics):
        raise ValueError(f"a metric is a name of 1 to {_LONGEST_METRIC} characters")
    view = data.get("view", "") if isinstance(data, dict) else ""
    if not isinstance(view, str) or len(view) > _LONGEST_METRIC or dict(parse_qsl(view)).keys() - VIEW:
        raise ValueError(f"a panel's view has {', '.join(sorted(VIEW))} and nothing else")
    return Panel(name.strip(), tuple(metrics), view)
