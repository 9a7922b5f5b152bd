"""Detection of keys that a stock veRL run ignored: reward keys, and others that a run here honours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trinity_compat.common.nested import value_at
from trinity_compat.common.redaction import hidden
from trinity_compat.compare.model import RunMetrics, Side
from trinity_compat.translate.stock_verl import ignored_in, is_moved, lost_in

_OURS = "job"  # the kind of a run that reads them
_SINCE = "stock veRL does not read the reward keys from before 0.8 since 0.9.0"
_BASELINE = "trinity-compat profile NAME --as-overrides --for SCRIPT prints the keys that it does read"


@dataclass(frozen=True, slots=True)
class LostKeys:
    """The keys, with their values, that runs of side A or B lost.

    ``known`` is True if the runs' own configuration shows it. Otherwise the other side's launch has the keys,
    and these runs record no configuration.
    """

    side: str
    runs: tuple[str, ...]
    keys: Mapping[str, object]
    known: bool

    def __str__(self) -> str:
        """Return the report's line on the keys."""
        keys = ", ".join(f"{key}={value}" for key, value in self.keys.items())
        if self.known:
            without = (
                f"{self.side} is a run of stock veRL ({', '.join(self.runs)}) and was trained without {keys}"
            )
        else:
            without = f"If {self.side} is a run of stock veRL 0.9, it was trained without {keys}"
        return f"{without}, so the sides have different rewards: {_SINCE}. {_BASELINE}."

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"side": self.side, "runs": [*self.runs], "keys": dict(self.keys), "known": self.known}


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """A key that runs of stock veRL on side A or B were given and ignored, and the other side's job honoured.

    ``stock`` says what stock veRL does instead.
    """

    side: str
    runs: tuple[str, ...]
    key: str
    value: object
    stock: str

    def __str__(self) -> str:
        """Return the report's line on the key."""
        ours = "B" if self.side == "A" else "A"
        return (
            f"{self.side} is a run of stock veRL ({', '.join(self.runs)}), which {self.stock}:"
            f" {self.key}={self.value} has no effect there, and {ours} honours it."
        )

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "side": self.side,
            "runs": [*self.runs],
            "key": self.key,
            "value": self.value,
            "stock": self.stock,
        }


def ignored_by_stock(a: Side, b: Side) -> list[IgnoredKey]:
    """Return the keys that stock runs of one side ignored and jobs of the other honoured."""
    return [*_ignored_of("A", a, b), *_ignored_of("B", b, a)]


def _ignored_of(letter: str, side: Side, other: Side) -> Iterator[IgnoredKey]:
    if not any(run.kind == _OURS for run in other.runs):
        return
    found: dict[tuple[str, str], list[str]] = {}
    values: dict[str, object] = {}
    for run in side.runs:
        verl = (run.meta.get("verl") or {}) if run.kind != _OURS else {}
        for key, says in ignored_in(verl).items():
            found.setdefault((key, says), []).append(run.name)
            values.setdefault(key, hidden(key, value_at(verl, key)))
    for (key, says), runs in found.items():
        yield IgnoredKey(letter, tuple(runs), key, values[key], says)


def lost_by_stock(a: Side, b: Side) -> list[LostKeys]:
    """Return at most one entry per side, a known one if possible."""
    return [*_of_side("A", a, b), *_of_side("B", b, a)]


def _of_side(letter: str, side: Side, other: Side) -> Iterator[LostKeys]:
    runs = [run for run in side.runs if run.kind != _OURS]
    known = [(run, lost) for run in runs if (lost := lost_in(run.meta.get("verl") or {}))]
    if known:
        keys = {key: value for _, lost in known for key, value in lost.items()}
        yield LostKeys(letter, tuple(run.name for run, _ in known), _shown(keys), True)
        return
    unrecorded = tuple(run.name for run in runs if "verl" not in run.meta)
    if unrecorded and (keys := _read_by(other.runs)):
        yield LostKeys(letter, unrecorded, _shown(keys), False)


def _shown(keys: Mapping[str, object]) -> dict[str, object]:
    return {key: hidden(key, value) for key, value in keys.items()}


def _read_by(runs: Iterable[RunMetrics]) -> dict[str, object]:
    """Return the reward keys from before 0.8 that our runs' launches set, from their audits."""
    return {
        finding["key"]: finding.get("value")
        for run in runs
        for launch in (run.meta.get("audit") or {}).get("launches") or []
        for finding in launch.get("findings", [])
        if finding.get("source") and finding.get("value") is not None and is_moved(finding["key"])
    }
