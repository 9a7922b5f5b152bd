"""Result of the start check, as JSON between its process and the supervisor."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """Something that ``by`` ("veRL 0.9.1") raises at its start.

    ``key``: the veRL key at fault, or the section in which it stands, or "" where the message is all that is
    known.
    """

    key: str
    why: str
    by: str


@dataclass(slots=True)
class StartReport:
    """``unchecked``: what could not be judged here, each with its reason.

    ``stand_ins``: veRL key of a model → the stand-in whose configuration served in its place. ``engine``: the
    arguments for vLLM. ``versions``: package → the release that judged; empty where nothing did. ``native``:
    whether this machine has the device that the run is for. ``mark``: what the answer rests on, in short.
    ``changed``: symbols that an untested release of veRL or vLLM lacks or has changed.
    """

    refused: list[StartRefusal] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    stand_ins: dict[str, str] = field(default_factory=dict)
    engine: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    native: bool = True
    mark: str = ""
    changed: list[str] = field(default_factory=list)

    def dumps(self) -> str:
        """The report as JSON text."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, default=str) + "\n"

    @classmethod
    def loads(cls, text: str) -> StartReport:
        """Read what ``dumps`` wrote. Raises ValueError, KeyError or TypeError for another text."""
        data = json.loads(text)
        return cls(**{**data, "refused": [StartRefusal(**found) for found in data["refused"]]})

    @classmethod
    def load(cls, path: Path) -> StartReport:
        """Read a file that holds a report."""
        return cls.loads(path.read_text(encoding="utf-8"))
