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

from trinity_compat.buffer.model import Experience
from trinity_compat.common.nested import value_at
from trinity_compat.common.paths import from_home

Decode = Callable[[list[int]], str]
_CACHE = Path("~/.cache/huggingface/hub")
_PROBABLE = (0.9, 0.5, 0.2, 0.05, 0.01)  # the steps of the colours
LONGEST = 6  # tokens that one character may take
# Tokens before a part from which on it is read: where a character ends in them, it does so for every part.
BEFORE = 64


@dataclass(frozen=True, slots=True)
class Token:
    """``shade``: 0 (certain) … 5 (hardly ever chosen). ``title`` is shown on hover."""

    text: str
    shade: int
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


def pieces(answer: Experience, decode: Decode, begin: int = 0, end: int | None = None) -> list[TokenSpan]:
    """The response's tokens that begin from ``begin`` on and before ``end``, as ``spans``."""
    end = len(answer.response_ids) if end is None else end
    start = max(0, begin - BEFORE)
    part = slice(start, end + LONGEST)
    arrays = (answer.response_ids[part], answer.response_mask[part], answer.logprobs[part])
    return spans(*arrays, decode, begin - start, end - start)


def spans(
    ids: npt.NDArray[np.int32],
    mask: npt.NDArray[np.uint8],
    logprobs: npt.NDArray[np.float32],
    decode: Decode,
    begin: int,
    end: int,
) -> list[TokenSpan]:
    """The tokens that begin from ``begin`` on and before ``end``, in order, cut where the mask changes.

    Tokens that only together make a character are one, as unlikely as all of them. So the parts of an answer,
    each read with ``BEFORE`` tokens before it and ``LONGEST`` after it, have each token once.
    """
    found: list[tuple[bool, list[Token]]] = []
    numbers, ours, sizes = ids.tolist(), (mask != 0).tolist(), logprobs.tolist()
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
            found[-1][1].append(_token(text, numbers[at:stop], sum(sizes[at:stop])))
        at = stop
    return [TokenSpan(written, tuple(each)) for written, each in found]


def _token(text: str, ids: Sequence[int], logprob: float) -> Token:
    likely = math.exp(min(0.0, logprob)) if math.isfinite(logprob) else 0.0
    shade = sum(likely < step for step in _PROBABLE)
    return Token(text, shade, f"p {likely:.3g} · log {logprob:.3g} · id {' '.join(map(str, ids))}")
