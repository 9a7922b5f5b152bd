"""Drift between rollout and trainer: what answers of the newest weights show, and what older ones add.

Both sides score the same tokens. Under the same weights they differ by kernels, precision and layout: the
mismatch. Answers of older weights differ by that and by the steps since: what exceeds the mismatch is
staleness.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import codec, queries
from trinity_compat.buffer.report import rows
from trinity_compat.report.coverage import trained_steps
from trinity_compat.report.model import Section

# Means over the tokens of a step, as veRL's trainers log them: log π_rollout − log π_trainer, and the
# absolute difference of the probabilities.
KL, DIFFERENCE = "rollout_corr/kl", "training/rollout_probs_diff_mean"
# Of a step whose answers have several lags, those of each (trainer/batch.py: drift_by_lag).
_PART = re.compile(r"rollout_drift/lag_(-?\d+)/kl")
_Step = tuple[Mapping[str, Any], Mapping[str, float]]  # of the ledger, and what the trainer logged


def drift(conn: sa.Connection) -> Section:
    """Return the section on drift, open unless some answers are of the newest weights alone."""
    logged = rows(conn, queries.READ_METRICS, {"role": "trainer", "after_step": 0})
    metrics = {int(step): codec.numbers(text) for step, text in logged}
    found = by_lag(trained_steps(conn), metrics)
    known = [each for each in found if each["kl"] is not None]
    split = [each for each in known if each["staleness"] is not None]
    unknown = []
    if not known:
        unknown.append("the trainer logged no log-probabilities of its own for the rollout's tokens")
    elif not split:
        unknown.append("the mismatch: no step has answers of the newest weights alone")
    if any(each["lag"] == "several" for each in found):
        unknown.append("the parts of steps whose answers differ in staleness")
    first = [
        f"mismatch {each['kl']:.3g} nats a token (KL at staleness 0)" for each in split if each["lag"] == 0
    ]
    first += [f"{each['staleness']:.3g} more at staleness {each['lag']}" for each in split if each["lag"]]
    return Section(
        "Drift", "proven" if split else "open", ", ".join(first) or "not known", {"by_lag": found}, unknown
    )


def by_lag(
    steps: Sequence[Mapping[str, Any]], metrics: Mapping[int, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return the drift of each lag; ``staleness`` is what its KL has beyond that of lag 0."""
    found: dict[int | str, list[_Step]] = {}
    for step in sorted(steps, key=lambda step: (step["least_lag"] != step["most_lag"], step["lag"])):
        logged = metrics.get(step["step"], {})
        parts = {int(match[1]): name for name in logged if (match := _PART.fullmatch(name))}
        if step["least_lag"] == step["most_lag"]:
            found.setdefault(step["least_lag"], []).append((step, logged))
        elif not parts:
            found.setdefault("several", []).append((step, logged))
        else:
            for number, name in parts.items():
                part = {"tokens": int(logged[f"rollout_drift/lag_{number}/tokens"])}
                found.setdefault(number, []).append((part, {KL: logged[name]}))
    mismatch = _mean(found.get(0, ()), KL)
    made = []
    for lag, of in sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])):
        kl = _mean(of, KL)
        row = {"lag": lag, "steps": len(of), "tokens": sum(step["tokens"] for step, _ in of), "kl": kl}
        row["staleness"] = None if kl is None or mismatch is None else kl - mismatch
        made.append(row | {"probability_difference": _mean(of, DIFFERENCE)})
    return made


def _mean(of: Sequence[_Step], name: str) -> float | None:
    """Return a metric's mean over tokens."""
    known = [(step["tokens"], m[name]) for step, m in of if math.isfinite(m.get(name, math.nan))]
    weight = sum(tokens for tokens, _ in known)
    return sum(tokens * value for tokens, value in known) / weight if weight else None
