"""The nearest known spelling of a word, or of a dotted key."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6, most: int = 1) -> list[str]:
    """At most ``most`` of the known words that resemble ``word``, the nearest first.

    ``cutoff`` is difflib's ratio, from 0 to 1, below which a word doesn't count: 0.6 for a few short names,
    more where there are hundreds, of which one always resembles another.
    """
    return get_close_matches(word, list(known), n=most, cutoff=cutoff)


def question(near: list[str]) -> str | None:
    """``did you mean 'x'?`` for the nearest word; None where none is near."""
    return f"did you mean {near[0]!r}?" if near else None


def did_you_mean(key: str, known: Iterable[str]) -> str | None:
    """The known key that ``key`` most likely meant; None when nothing is near.

    The same last word in another section counts before a similar spelling: people forget the
    prefix (``ppo_mini_batch_size``) more often than they mistype it.
    """
    candidates = list(known)
    last = key.rpartition(".")[2]
    same_name = [name for name in candidates if name.rpartition(".")[2] == last]
    if same_name:
        # A bare word names no section: the first in the file's order, the actor's before the critic's.
        bare = last == key
        return same_name[0] if bare else max(same_name, key=lambda name: _likeness(name, key))
    return next(iter(nearest(key, _alike(last, candidates), cutoff=0.75)), None)


def _likeness(name: str, key: str) -> float:
    return SequenceMatcher(None, name, key).ratio()


def _alike(last: str, candidates: list[str]) -> list[str]:
    """Those whose last word shares letters enough with ``last``, or is ``last`` with a part more:
    comparing all in full is slow."""
    letters, parts = set(last), set(last.split("_"))

    def alike(other: str) -> bool:
        if abs(len(other) - len(last)) <= 4 and len(letters ^ set(other)) <= 4:
            return True
        return len(parts) > 1 and parts < set(other.split("_"))

    return [name for name in candidates if alike(name.rpartition(".")[2])]
