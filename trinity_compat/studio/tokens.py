"""A response as coloured tokens: text, probability, and whether the policy wrote it.

The texts come from the model's ``tokenizer.json``, by the tokenizers package, where both are there; without
them the response is shown as plain text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trinity_compat.common.nested import value_at
from trinity_compat.common.paths import from_home

Decode = Callable[[list[int]], str]
_CACHE = Path("~/.cache/huggingface/hub")
_PROBABLE = (0.9, 0.5, 0.2, 0.05, 0.01)  # the steps of the colours
_ENTROPIES = (0.1, 0.5, 1.0, 2.0, 3.0)  # nats
_APART = (0.02, 0.05, 0.1, 0.2, 0.5)  # of log-probabilities
# Overlay → its class, and what its colours mean from the first to the last.
SHADES = {
    "probability": ("s", [f"≥ {step}" for step in _PROBABLE] + ["less"]),
    "entropy": ("e", [f"< {step:g}" for step in _ENTROPIES] + ["more"]),
    "ratio": ("d", [f"± < {step:.0%}" for step in _APART] + ["more"]),
}
_LARGEST = 50.0  # logarithm of a ratio
LONGEST = 6  # tokens that one character may take
# Tokens before a part from which on it is read: where a character ends in them, it does so for every part.
BEFORE = 64


@dataclass(frozen=True, slots=True)
class Token:
    """A token's text, its colours' classes by each overlay, and what is shown on hover."""

    text: str
    classes: str
    title: str


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Neighbouring tokens that the policy wrote, or that it did not (tool output, another turn)."""

    ours: bool
    tokens: tuple[Token, ...]

    @property
    def text(self) -> str:
        """The joined texts of the tokens."""
        return "".join(token.text for token in self.tokens)


def decoder(verl: Mapping[str, object]) -> Decode | None:
    """Ids → text by the run's tokenizer; None where it is not at hand."""
    model = value_at(verl, "actor_rollout_ref.model")
    if not isinstance(model, Mapping):
        return None
    name = str(model.get("tokenizer_path") or model.get("path") or "")
    return _decoder(name) if name else None


@lru_cache(maxsize=4)
def _decoder(model: str) -> Decode | None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    for path in _files(model):
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception:  # the package raises plain Exception for a file of another kind
            continue
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
    return None


def _files(model: str) -> list[Path]:
    folder = from_home(model)
    cached = _CACHE.expanduser() / f"models--{model.replace('/', '--')}" / "snapshots"
    try:
        found = [folder / "tokenizer.json", *sorted(cached.glob("*/tokenizer.json"))]
        return [path for path in found if path.is_file()]
    except OSError:  # in a folder that is closed to this user, or a name that no file can have
        return []


def spans(
    ids: npt.NDArray[np.int32],
    mask: npt.NDArray[np.uint8],
    scores: Sequence[npt.NDArray[np.float32]],
    decode: Decode,
    begin: int = 0,
    end: int = 1 << 28,
    clip: tuple[float, float] = (0.0, math.inf),
) -> list[TokenSpan]:
    """The tokens that begin from ``begin`` on and before ``end``, in order, cut where the mask changes.

    ``scores``: the engine's log-probabilities, the trainer's and its entropies; the last two may be empty.
    Tokens that only together make a character are one, as unlikely as all of them. So the parts of an answer,
    each read with ``BEFORE`` tokens before it and ``LONGEST`` after it, have each token once.
    """
    found: list[tuple[bool, list[Token]]] = []
    numbers, ours = ids[: end + LONGEST].tolist(), (mask[: end + LONGEST] != 0).tolist()
    at = 0
    while at < min(end, len(numbers)):
        stop = at + 1
        while (
            (text := decode(numbers[at:stop])).endswith("\ufffd")
            and stop < min(len(numbers), at + LONGEST)
            and ours[stop] == ours[at]
        ):
            stop += 1
        if at >= begin:
            if not found or found[-1][0] != ours[at]:
                found.append((ours[at], []))
            found[-1][1].append(_token(text, numbers[at:stop], [each[at:stop] for each in scores], clip))
        at = stop
    return [TokenSpan(written, tuple(each)) for written, each in found]


def _token(
    text: str, ids: Sequence[int], scores: Sequence[npt.NDArray[np.float32]], clip: tuple[float, float]
) -> Token:
    logprob = float(scores[0].sum())
    classes = f"s{sum(_probability(logprob) < step for step in _PROBABLE)}"
    title = f"p {_probability(logprob):.3g} · log {logprob:.3g} · id {' '.join(map(str, ids))}"
    if len(scores) < 3 or not len(scores[1]) == len(scores[2]) == len(ids):
        return Token(text, classes, title)
    theirs, entropy = float(scores[1].sum()), float(scores[2].max())
    away = theirs - logprob
    ratio = math.exp(min(away, _LARGEST)) if math.isfinite(away) else math.nan
    classes += f" e{sum(entropy >= step for step in _ENTROPIES)} d{sum(abs(away) >= step for step in _APART)}"
    classes += "" if clip[0] <= ratio <= clip[1] else " clip"
    told = f" · entropy {entropy:.3g} · trainer p {_probability(theirs):.3g}, {ratio:.3g} of the engine's"
    return Token(text, classes, title + told)


def _probability(logprob: float) -> float:
    return math.exp(min(0.0, logprob)) if math.isfinite(logprob) else 0.0


def clip_range(verl: Mapping[str, object]) -> tuple[float, float]:
    """Return between which ratios of new to old probabilities the policy's loss is not clipped."""
    actor = "actor_rollout_ref.actor.clip_ratio"
    below, above = (value_at(verl, f"{actor}_{end}", value_at(verl, actor)) for end in ("low", "high"))
    low, high = (each if isinstance(each, int | float) else 0.2 for each in (below, above))
    return 1 - low, 1 + high
