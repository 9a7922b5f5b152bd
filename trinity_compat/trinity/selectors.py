"""Trinity-rft's data selectors: the rows of a taskset that its next draws take.

Source: trinity-rft 0.6.0 and 0.4.1, ``buffer/selector/selector.py`` and ``difficulty_estimator.py``. Each is
a pure function of the number of rows drawn before; ``difficulty_based`` of their feedback, too.
``tests/upstream/test_selectors.py`` holds them against the real classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from trinity_compat.common.errors import RunError, UserError

Floats = npt.NDArray[np.float64]
_CAP_KEPT = 0.9  # of the model's own place between the two features, at each feedback


class Selector(Protocol):
    """Selects the rows of one taskset, which has ``size`` in all."""

    size: int

    def rows(self, first: int, count: int) -> Sequence[int]:
        """Return the rows of the next ``count`` draws, after ``first`` draws.

        Raises RunError if the taskset has fewer.
        """


class SequentialOrder:
    """Epoch after epoch in the order that ``order_of`` gives for each (from 0)."""

    def __init__(self, size: int, order_of: Callable[[int], Any]) -> None:
        self.size, self._order_of = size, lru_cache(maxsize=2)(order_of)

    def rows(self, first: int, count: int) -> Sequence[int]:
        """Return the next rows, like ``Selector.rows``."""
        places = (divmod(place, self.size) for place in range(first, first + count))
        return [int(self._order_of(epoch)[place]) for epoch, place in places]


class RandomOrder:
    """Each draw without a row twice, whatever was drawn before."""

    def __init__(self, size: int, seed: int, place: str) -> None:
        self.size, self._seed, self._place = size, seed, place

    def rows(self, first: int, count: int) -> Sequence[int]:
        """Return the next rows, like ``Selector.rows``."""
        _check(count, self.size, self._place)
        drawn: list[int] = (
            np.random.default_rng(self._seed + first).choice(self.size, count, replace=False).tolist()
        )
        return drawn


class Estimator:
    """The pass rate of each of N tasks: a Beta distribution, ``alphas`` and ``betas`` float64 [N].

    ``features``, float64 [N, 2], are the pass rates of a weak model and of a strong one: where between them
    the pass rates that came back lie says how those of the other tasks will be. What is known is forgotten by
    ``lamb`` at each feedback; ``m`` answers stand behind a pass rate, ``rho`` of whose weight is the
    interpolation's.
    """

    def __init__(self, features: Floats, *, m: float, lamb: float, rho: float, adaptive_rho: bool) -> None:
        self._features, self._m, self._lamb, self._rho = features, m, lamb, rho
        self._adaptive = adaptive_rho
        self.alphas, self.betas = np.ones(len(features)), np.ones(len(features))
        self._cap: float | None = None

    def update(self, rows: Sequence[int], rates: Sequence[float]) -> None:
        """Add the mean rewards of ``rows``."""
        seen, passed = list(rows), np.array(rates, dtype=np.float64)
        weak, strong = self._features[seen].mean(axis=0)
        cap = float((passed.mean() - weak) / (strong - weak + 1e-6))
        self._cap = cap if self._cap is None else _CAP_KEPT * self._cap + (1 - _CAP_KEPT) * cap
        low, high = self._features.T
        guessed = np.clip((high - low) * self._cap + low, 0, 1)
        if self._adaptive and float(np.abs(guessed[seen] - passed).mean()) >= 0.25:
            self._rho *= 0.5
        guessed[seen] = passed
        of_seen = np.zeros(len(guessed))
        of_seen[seen] = 1.0
        self.alphas = self._grown(self.alphas, of_seen * guessed, guessed)
        self.betas = self._grown(self.betas, of_seen * (1 - guessed), 1 - guessed)

    def _grown(self, counts: Floats, seen: Floats, guessed: Floats) -> Floats:
        kept = (1 - self._lamb) * counts + self._lamb
        grown: Floats = kept + (1 - self._rho) * (seen * self._m) + self._rho * guessed * self._m
        return grown

    def rates(self, sampled_by: np.random.Generator | None = None) -> Floats:
        """Return the expected pass rates, or sampled ones, float64 [N]."""
        if sampled_by:
            return sampled_by.beta(self.alphas, self.betas)
        means: Floats = self.alphas / (self.alphas + self.betas)
        return means


class ByDifficulty:
    """Prefers the rows whose expected pass rate is nearest to ``target_reward``.

    With ``tau`` 0 it draws those alone, else they are more likely than others.
    """

    def __init__(self, features: Floats, seed: int, arguments: Mapping[str, Any], place: str) -> None:
        self.size = len(features)
        self._features, self._seed, self._place, self._arguments = features, seed, place, arguments
        self.forget()

    def forget(self) -> None:
        """Reset to the state without any feedback."""
        known = {name: self._arguments[name] for name in ("m", "lamb", "rho", "adaptive_rho")}
        self.estimator = Estimator(self._features, **known)

    def learn(self, rows: Sequence[int], rates: Sequence[float]) -> None:
        """Add the feedback of one draw: the mean rewards of ``rows``."""
        self.estimator.update(rows, rates)

    def rows(self, first: int, count: int) -> Sequence[int]:
        """Return the next rows, like ``Selector.rows``."""
        _check(count, self.size, self._place)
        seed, tau = self._seed + first, float(self._arguments["tau"])
        sampled_by = np.random.default_rng(seed) if self._arguments["do_sample"] else None
        rates = self.estimator.rates(sampled_by)
        scores = torch.from_numpy(-np.abs(self._arguments["target_reward"] - rates))
        if tau == 0:
            return [int(each) for each in torch.topk(scores, count).indices]
        logits = scores / tau
        likely = torch.softmax(logits - logits.max(), dim=0)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(likely, count, replacement=False, generator=generator)
        return [int(each) for each in drawn]


def _check(count: int, size: int, place: str) -> None:
    if count > size:
        raise RunError(
            f"{place}: a step draws {count} of its {size} rows, each once",
            hint="lower buffer.batch_size, or give it more rows",
        )


def selector_of(
    selector: Mapping[str, Any], size: int, columns: Mapping[str, Sequence[Any]], place: str
) -> Selector:
    """Make a selector of ``selector``, the section that translate/selectors.py writes.

    ``columns``: the rows' values of its ``feature_keys``. Raises UserError for columns that it cannot
    compare.
    """
    kind, seed = selector["type"], int(selector["seed"])
    if kind == "random":
        return RandomOrder(size, seed, place)
    if kind == "shuffle":
        return SequentialOrder(size, lambda epoch: np.random.default_rng(seed + epoch).permutation(size))
    if kind == "sequential":
        return SequentialOrder(size, lambda _: range(size))
    features = _features(selector, columns)
    if kind == "difficulty_based":
        return ByDifficulty(features, seed, selector["kwargs"], place)
    easiest = sorted(range(size), key=lambda row: (*features[row].tolist(), row), reverse=True)
    return SequentialOrder(size, lambda _: easiest)


def columns_of(selector: Mapping[str, Any], rows: Any, path: object) -> dict[str, list[Any]]:
    """Return the columns of ``rows``, a Dataset of Hugging Face's, that a selector reads.

    Raises UserError for columns that it cannot read.
    """
    check_columns(selector, rows.column_names, path)
    return {key: list(rows[key]) for key in selector.get("feature_keys", ())}


def check_columns(selector: Mapping[str, Any], has: Sequence[str], path: object) -> None:
    """Raise UserError for a column that a selector reads and ``path`` lacks."""
    for key in selector.get("feature_keys", ()):
        if key not in has:
            raise UserError(
                f"{selector['place']}.feature_keys={key}: {path} has no such column",
                hint=f"it has {', '.join(sorted(has))}",
            )


def _features(selector: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> Floats:
    """float64 [rows, keys]."""
    keys = selector["feature_keys"]
    for key in keys:
        odd = next((row for row, value in enumerate(columns[key]) if not _is_number(value)), None)
        if odd is not None:
            raise UserError(
                f"{selector['place']}.feature_keys={key}: row {odd} has {columns[key][odd]!r} there",
                hint="name a column in which every row has a number",
            )
    return np.array([columns[key] for key in keys], dtype=np.float64).T


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))
