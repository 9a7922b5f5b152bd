"""What a run is made of: a Trinity YAML as written, and the launch behind it if there was one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_compat.secret import shown
from trinity_compat.trinity_config.read import load


@dataclass(frozen=True, slots=True)
class Source:
    """``record`` goes to config/launch.json, ``audit`` (JSON text) to config/audit.json."""

    config: Mapping[str, Any]
    yaml_text: str
    record: Mapping[str, Any]
    audit: str | None = None
    notes: tuple[str, ...] = ()


def from_yaml(path: Path) -> Source:
    """Read and check a Trinity YAML. Raises UserError with file and line."""
    config = load(path)
    text = "".join(map(shown, path.read_text().splitlines(keepends=True)))
    return Source(config, text, {"yaml": str(path.absolute())})
