"""The nearest known spelling of a key."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


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
    near = get_close_matches(key, _alike(last, candidates), n=1, cutoff=0.75)
    return near[0] if near else None


def _likeness(name: str, key: str) -> float:
    return SequenceMatcher(None, name, key).ratio()


def _alike(last: str, candidates: list[str]) -> list[str]:
    """Those whose last word shares letters enough with ``last``: comparing all in full is slow."""
    letters = set(last)
    return [
        name
        for name in candidates
        if abs(len(name.rpartition(".")[2]) - len(last)) <= 4
        and len(letters ^ set(name.rpartition(".")[2])) <= 4
    ]
