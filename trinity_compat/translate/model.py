"""What a translation yields: a Trinity configuration and one finding per key of the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trinity_compat.errors import Where
from trinity_compat.secret import hidden, shown


class Status(StrEnum):
    """What became of a key, mildest first. The order and spelling serve --fail-on and JSON."""

    MAPPED = "mapped"
    DERIVED = "derived"
    PASSED_THROUGH = "passed_through"
    NO_EFFECT = "no_effect"
    APPROXIMATED = "approximated"
    UNSUPPORTED_UPSTREAM = "unsupported_upstream"  # ours runs it
    UNSUPPORTED = "unsupported"
    FORK_KEY = "fork_key"  # only the fork of veRL that the script starts from knows it
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """Position in the order, 0 for the mildest."""
        return list(Status).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one key. ``code`` is stable (TC…) and has a page in docs/."""

    code: str
    status: Status
    key: str
    value: object
    where: Where | None  # None: a default of the launch's veRL release
    target: str | None = None  # dotted path in the Trinity configuration
    target_value: object = None
    reason: str = ""

    def __post_init__(self) -> None:
        """A finding is there to be shown: what looks like a secret is not in it."""
        for name, key in (("value", self.key), ("target_value", self.target or self.key)):
            object.__setattr__(self, name, hidden(key, getattr(self, name)))
        object.__setattr__(self, "reason", shown(self.reason))


@dataclass(frozen=True, slots=True)
class Caution:
    """Something known to hurt that concerns the launch, not one key (TW… codes)."""

    code: str
    message: str
    where: Where | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """A Trinity configuration (plain containers), the reason for each path, and the findings.

    ``provenance`` maps a dotted path of ``config`` to its comment:
    ``data.train_batch_size=1024 ÷ actor.ppo_mini_batch_size=256 (run.sh:12,18)``.
    """

    config: Mapping[str, object]
    provenance: Mapping[str, str]
    findings: tuple[Finding, ...]
    warnings: tuple[Caution, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)  # r, gpu split, verl version, …
