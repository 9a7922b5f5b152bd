"""Suggestions: the nearest known spelling of a word or dotted key."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

# Names in Transformers' and TRL's arguments of what veRL has under another one.
_ELSEWHERE = {"learning_rate": "lr", "num_train_epochs": "total_epochs", "max_grad_norm": "grad_clip"}
_SPELLING, _SPELLING_OF_A_PART = 0.8, 0.6  # of the last words of two keys, and of their parts


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6, most: int = 1) -> list[str]:
    """Return at most ``most`` known words that resemble ``word``, the nearest first.

    ``cutoff`` is difflib's least ratio, from 0 to 1: 0.6 for a few short names, more for hundreds of names,
    which always contain similar ones.
    """
    return get_close_matches(word, list(known), n=most, cutoff=cutoff)


def question(near: list[str]) -> str | None:
    """Return ``did you mean 'x'?`` for the nearest word, None without one."""
    return f"did you mean {near[0]!r}?" if near else None


def did_you_mean(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that ``key`` most likely meant, None without a near one.

    The same last word in another section precedes a similar spelling: a forgotten prefix
    (``ppo_mini_batch_size``) is more frequent than a typing error.
    """
    candidates = list(known)
    section, dot, last = key.rpartition(".")
    if last in _ELSEWHERE and not any(name.endswith(last) for name in candidates):
        return did_you_mean(f"{section}{dot}{_ELSEWHERE[last]}", candidates)
    same_name = [name for name in candidates if name.rpartition(".")[2] == last]
    below = [name for name in same_name if name.endswith(f".{key}")]
    if below:
        return below[0]  # a forgotten prefix; the first in the file's order
    if same_name:
        # A bare word names no section: the first in the file's order, the actor's before the critic's.
        bare = last == key
        return same_name[0] if bare else max(same_name, key=lambda name: _likeness(name, key))
    near = nearest(key, _alike(last, candidates), cutoff=0.75)
    # a common prefix does not make n_vote a spelling of top_p
    return next((name for name in near if _is_spelling(last, name.rpartition(".")[2])), None)


def _is_spelling(last: str, other: str) -> bool:
    mine, theirs = last.split("_"), other.split("_")
    if set(mine) < set(theirs) or _likeness(other, last) >= _SPELLING:
        return True
    return len(mine) == len(theirs) and all(
        _likeness(one, another) >= _SPELLING_OF_A_PART for one, another in zip(mine, theirs, strict=True)
    )


def _likeness(name: str, key: str) -> float:
    return SequenceMatcher(None, name, key).ratio()


def _alike(last: str, candidates: list[str]) -> list[str]:
    """Preselect keys whose last word shares enough letters with ``last`` or extends it by a part.

    Comparing all keys in full is slow.
    """
    letters, parts = set(last), set(last.split("_"))

    def alike(other: str) -> bool:
        if abs(len(other) - len(last)) <= 4 and len(letters ^ set(other)) <= 4:
            return True
        return len(parts) > 1 and parts < set(other.split("_"))

    return [name for name in candidates if alike(name.rpartition(".")[2])]
