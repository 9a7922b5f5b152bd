"""The simulation that chose compare's intervals: coverage over seeds, false alarms within one run.

    python benchmarks/compare/choose_intervals.py [--count 20000]

Tables as Markdown: in how many of a hundred comparisons without a difference the 95 % interval of each method
holds 0 (seeds), and in how many it does not (one run a side). docs/decisions/compare-intervals.md has some
rows, and what follows. Seeded; three minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy import special

from trinity_compat.compare.inference.within import effective_points, within_runs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "compare"))
from simulated import SEEDS, SPREADS, ar1

SLOW = 1000  # comparisons for methods that resample each of them
RESAMPLES = 500

# -- several seeds a side: each takes (count, seeds) twice, and says of each comparison whether 0 is inside


def squared_errors(side: np.ndarray) -> np.ndarray:
    return side.var(axis=-1, ddof=1) / side.shape[-1]


def gap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return b.mean(axis=-1) - a.mean(axis=-1)


def welch(a, b, g):
    of_a, of_b = squared_errors(a), squared_errors(b)
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (a.shape[1] - 1) + of_b**2 / (b.shape[1] - 1))
    return np.abs(gap(a, b)) <= np.sqrt(of_a + of_b) * special.stdtrit(freedom, 0.975)


def pooled(a, b, g):
    m, n = a.shape[1], b.shape[1]
    variance = ((m - 1) * a.var(axis=1, ddof=1) + (n - 1) * b.var(axis=1, ddof=1)) / (m + n - 2)
    return np.abs(gap(a, b)) <= np.sqrt(variance * (1 / m + 1 / n)) * special.stdtrit(m + n - 2, 0.975)


def percentile_bootstrap(a, b, g):
    return np.array([_percentile(p, q, g) for p, q in zip(a[:SLOW], b[:SLOW], strict=True)])


def _percentile(a, b, g):
    low, high = np.quantile(gap(*_drawn(a, b, g)), (0.025, 0.975))
    return low <= 0 <= high


def studentised_bootstrap(a, b, g):
    return np.array([_studentised(p, q, g) for p, q in zip(a[:SLOW], b[:SLOW], strict=True)])


def _studentised(a, b, g):
    p, q = _drawn(a - a.mean(), b - b.mean(), g)
    errors = np.sqrt(squared_errors(p) + squared_errors(q))
    ratios = np.abs(gap(p, q)[errors > 1e-12]) / errors[errors > 1e-12]
    error = np.sqrt(squared_errors(a) + squared_errors(b))
    return abs(gap(a, b)) <= np.quantile(ratios, 0.95) * error


def _drawn(a, b, g):
    return (side[g.integers(0, len(side), (RESAMPLES, len(side)))] for side in (a, b))


def permutation(a, b, g):
    """Inverted: 0 is inside where the studentised permutation test does not refuse it."""
    a, b = a[:SLOW], b[:SLOW]
    pool, first = np.concatenate([a, b], axis=1), a.shape[1]
    splits = list(itertools.combinations(range(pool.shape[1]), first))
    chosen = [splits[i] for i in g.permutation(len(splits))[:RESAMPLES]]
    least = np.abs(gap(a, b)) / np.sqrt(squared_errors(a) + squared_errors(b)) - 1e-9
    hits = np.zeros(len(a))
    for split in chosen:
        one, other = pool[:, split], np.delete(pool, split, axis=1)
        hits += np.abs(gap(one, other)) >= least * np.sqrt(squared_errors(one) + squared_errors(other))
    return hits / len(chosen) > 0.05


OVER_SEEDS = {
    "percentile bootstrap": percentile_bootstrap,
    "pooled t": pooled,
    "permutation": permutation,
    "studentised bootstrap": studentised_bootstrap,
    "**Welch**": welch,
}

# -- one run a side: each takes the differences (count, points) and says whether 0 is outside


def half_width(error: np.ndarray, freedom: np.ndarray | float) -> np.ndarray:
    return error * special.stdtrit(freedom, 0.975)


def outside(gaps: np.ndarray, half: np.ndarray) -> np.ndarray:
    return np.abs(gaps.mean(axis=1)) > half


def block_bootstrap(gaps):
    """Moving blocks of √n points (what compare did before)."""
    g, found = np.random.default_rng(0), []
    for one in gaps[:SLOW]:
        size = max(2, round(np.sqrt(len(one))))
        means = np.convolve(one, np.ones(size) / size, "valid")
        count = -(-len(one) // size)
        draws = means[g.integers(0, len(means), (RESAMPLES, count))].mean(axis=1)
        low, high = np.quantile(draws, (0.025, 0.975))
        found.append(low > 0 or high < 0)
    return np.array(found)


def newey_west(gaps):
    """Bartlett's kernel with Andrews' bandwidth for an AR(1), normal quantile."""
    found = []
    for one in gaps:
        n, centred = len(one), one - one.mean()
        rho = min(max(centred[1:] @ centred[:-1] / (centred @ centred), 0.0), 0.97)
        width = int(min(1.1447 * (4 * rho**2 * n / (1 - rho**2) ** 2) ** (1 / 3), n - 1))
        lags = [centred[k:] @ centred[: n - k] / n for k in range(width + 1)]
        variance = lags[0] + 2 * sum((1 - k / (width + 1)) * lags[k] for k in range(1, width + 1))
        found.append(abs(one.mean()) > 1.96 * np.sqrt(max(variance, 0) / n))
    return np.array(found)


def cosines(gaps):
    """Equal-weighted cosine transforms, eight of them (Lazarus et al. 2018)."""
    n = gaps.shape[1]
    waves = np.sqrt(2) * np.cos(np.pi * np.arange(1, 9)[:, None] * (np.arange(n) + 0.5) / n)
    variance = ((gaps @ waves.T) ** 2 / n).mean(axis=1)
    return outside(gaps, half_width(np.sqrt(variance / n), 8))


def eight_blocks(gaps):
    return outside(gaps, _blocks(gaps))


def _blocks(gaps):
    means = np.stack([part.mean(axis=1) for part in np.array_split(gaps, 8, axis=1)], axis=1)
    return half_width(means.std(axis=1, ddof=1) / np.sqrt(8), 7)


def ar1_alone(gaps):
    return np.array([_ar1(one) for one in gaps])


def _ar1(one):
    worth = effective_points(one)
    return worth > 1.5 and abs(one.mean()) > half_width(np.sqrt(one.var() / (worth - 1)), worth - 1)


def chosen(gaps):
    zeros = np.zeros(gaps.shape[1])
    return np.array([within_runs(zeros, one).p <= 0.05 for one in gaps])


WITHIN = {
    "moving blocks of √n": block_bootstrap,
    "Newey-West": newey_west,
    "eight cosines": cosines,
    "eight blocks": eight_blocks,
    "AR(1)": ar1_alone,
    "**chosen**": chosen,
}


def noises(points: int, g: np.random.Generator, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Differences without a difference, by name."""
    t = np.arange(points) / points
    for correlation in (0.0, 0.5, 0.8, 0.95):
        yield f"AR(1) {correlation:g}", ar1(g, count, points, correlation)
    for name in list(SPREADS)[1:]:
        yield f"AR(1) 0.8, {name}", ar1(g, count, points, 0.8) * SPREADS[name](t)
    for correlation in (0.8, 0.95):
        drift = ar1(g, count, points, correlation)
        yield f"AR(1) {correlation:g} + white 1:1", drift + g.normal(size=drift.shape)
    yield "AR(1) 0.99", ar1(g, count, points, 0.99)
    yield "random walk", g.normal(size=(count, points)).cumsum(axis=1)


def table(head: list[str], rows: Iterator[tuple[str, list[float]]]) -> None:
    print(f"\n| {' | '.join(head)} |\n|---{'|---:' * (len(head) - 1)}|")
    for name, values in rows:
        print(f"| {name} | {' | '.join(f'{100 * value:.1f}' for value in values)} |", flush=True)


def seeds_rows(count: int, methods: dict[str, Callable]) -> Iterator[tuple[str, list[float]]]:
    g = np.random.default_rng(1)
    sizes = ((3, 3), (4, 4), (5, 5), (8, 8), (3, 8), (8, 3))
    for shape, (m, n), ratio in itertools.product(SEEDS, sizes, (1, 2, 4)):
        a, b = SEEDS[shape](g, (count, m)), ratio * SEEDS[shape](g, (count, n))
        yield f"{shape}; {m}, {n}; {ratio}", [method(a, b, g).mean() for method in methods.values()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="comparisons a row (slow methods: fewer)")
    count = parser.parse_args().count
    table(["seeds; numbers; spread of B", *OVER_SEEDS], seeds_rows(count, OVER_SEEDS))
    for points in (50, 200, 2000):
        g = np.random.default_rng(points)
        found = noises(points, g, max(count // (10 if points < 1000 else 20), 100))
        rows = ((name, [method(gaps).mean() for method in WITHIN.values()]) for name, gaps in found)
        table([f"{points} points", *WITHIN], rows)


if __name__ == "__main__":
    main()
