"""Priorities of tasks: scores of Data-Juicer's statistics, and the order by them.

Source of the scores, ranges and weights: trinity-rft 0.6.0, trinity/service/data_juicer/server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STATS = "__dj__stats__"  # data_juicer.utils.constant.Fields.stats
PRIORITY = "priority"
WEIGHTS: Mapping[str, float] = {"difficulty": -0.7, "diversity": 0.8, "usage_frequency": -0.5, "quality": 1.0}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StatisticRange:
    """Range of a statistic, None where the rows determine it; ``less`` is better."""

    least: float = 0.0
    most: float | None = 1.0
    less: bool = False

    def of(self, value: float, seen: Sequence[float]) -> float:
        """``value`` between 0, the worst, and 1; 1 where all that was ``seen`` is the same."""
        least, most = (self.least, self.most) if self.most is not None else (min(seen), max(seen))
        part = (value - least) / (most - least) if most > least else 1.0
        return 1.0 - part if self.less else part


SCORES: Mapping[str, Mapping[str, StatisticRange]] = {
    "quality_score": {
        "alnum_ratio": StatisticRange(),
        "char_rep_ratio": StatisticRange(less=True),
        "flagged_words_ratio": StatisticRange(less=True),
        "special_char_ratio": StatisticRange(less=True),
        "stopwords_ratio": StatisticRange(),
        "word_rep_ratio": StatisticRange(less=True),
        "llm_quality_score": StatisticRange(),
    },
    "difficulty_score": {
        "perplexity": StatisticRange(most=None),
        "lang_score": StatisticRange(less=True),
        "llm_difficulty_score": StatisticRange(),
    },
}


def stats_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of a row: a structure, or its text where datasets keeps it as JSON."""
    found = row.get(STATS) or {}
    return dict(json.loads(found) if isinstance(found, str) else found)


def ranked(rows: Sequence[Row], weights: Mapping[str, float] | None = None, top_k: int = -1) -> list[Row]:
    """Sort rows by priority, the highest first, and return ``top_k`` of them (-1: all).

    Equal rows keep their order, and so do all rows where one has no value for the priority. ``weights``: of
    quality, difficulty and usage_frequency; None: upstream's.
    """
    made = _prioritised(_scored(rows), weights or WEIGHTS)
    if all(PRIORITY in row for row in made):
        made.sort(key=lambda row: -float(row[PRIORITY]))
    return made if top_k < 0 else made[:top_k]


def _scored(rows: Sequence[Row]) -> list[Row]:
    """Add the mean of each score's available statistics, beside the statistics and as columns."""
    measured = [stats_of(row) for row in rows]
    seen = {
        name: [float(stats[name]) for stats in measured if _is_number(stats.get(name))]
        for scales in SCORES.values()
        for name in scales
    }
    return [
        {**row, STATS: {**stats, **(made := _scores(stats, seen))}, **made} if STATS in row else dict(row)
        for row, stats in zip(rows, measured, strict=True)
    ]


def _scores(stats: Mapping[str, Any], seen: Mapping[str, Sequence[float]]) -> dict[str, float]:
    out = {}
    for score, scales in SCORES.items():
        parts = [
            scale.of(float(stats[name]), seen[name])
            for name, scale in scales.items()
            if _is_number(stats.get(name))
        ]
        out[score] = sum(parts) / len(parts) if parts else 0.0
    return out


def _prioritised(rows: list[Row], weights: Mapping[str, float]) -> list[Row]:
    return [
        {**row, PRIORITY: _priority(row[STATS], weights)} if PRIORITY not in row and STATS in row else row
        for row in rows
    ]


def _priority(stats: Mapping[str, Any], weights: Mapping[str, float]) -> float:
    """Upstream weighs these three; a ``diversity`` it takes, and reads nowhere."""
    values = {
        "usage_frequency": stats.get("consumed_cnt") or 0,
        "quality": stats["quality_score"],
        "difficulty": stats["difficulty_score"],
    }
    return sum(weights[name] * value for name, value in values.items() if name in weights)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
