"""The verdict on one metric, from its evidence: identical, differs, same or unclear, with the reason."""

from __future__ import annotations

import math

from trinity_compat.compare.curves import SideCurves
from trinity_compat.compare.evidence import Evidence

SAME, DIFFERS, UNCLEAR, IDENTICAL = "same", "differs", "unclear", "identical"
ALPHA = 0.05
# TensorBoard keeps float32: two points this close (relative) may be one number, written twice.
_FLOAT32 = 2e-7


def judge(
    a: SideCurves, b: SideCurves, evidence: Evidence, *, tested: int, band_q: float | None
) -> tuple[str, str]:
    """Return (verdict, reason).

    A metric that diverges on one side only ``differs``. One that diverges on both is judged by its finite
    points, but is never ``same`` where different points are lost. Curves that differ at the same level are
    ``unclear``, unless the user set a margin: a margin is about levels.

    Args:
        a: The curves of side A.
        b: The curves of side B.
        evidence: The tests of B − A.
        tested: The number of metrics among which q was computed.
        band_q: q of the band of B − A over windows of steps, None without a band.
    """
    if bool(a.broken) != bool(b.broken):
        return DIFFERS, ""
    verdict, why = _judge_finite(a, b, evidence, tested) if a.mean else (UNCLEAR, evidence.lacks)
    if a.broken != b.broken and verdict in (SAME, IDENTICAL):
        return UNCLEAR, "NaN or infinite points are left out, at different steps on each side"
    differ = band_q is not None and band_q <= ALPHA
    if differ and verdict == SAME and not evidence.margin.is_given:
        return UNCLEAR, "the levels are the same, but the curves differ"
    return verdict, why


def _judge_finite(a: SideCurves, b: SideCurves, evidence: Evidence, tested: int) -> tuple[str, str]:
    """Judge by the finite points.

    Within a margin that the user set, even a significant difference is ``same``. The default margin is only a
    guess, so there a significant difference takes precedence.
    """
    if equal(a.seeds, b.seeds):
        return IDENTICAL, ""
    if evidence.lacks:
        return UNCLEAR, evidence.lacks
    q = evidence.difference.q
    differs = evidence.exceeds_rounding and q is not None and q <= ALPHA
    within = evidence.p_same is not None and evidence.p_same <= ALPHA
    if within and (evidence.margin.is_given or not differs):
        return SAME, "B − A is significant, but within the given margin" if differs else ""
    if differs:
        return DIFFERS, ""
    return UNCLEAR, _why_unclear(evidence, tested)


def _why_unclear(evidence: Evidence, tested: int) -> str:
    p, q = evidence.difference.p, evidence.difference.q
    if not evidence.exceeds_rounding and p is not None and p <= ALPHA:
        return "B − A is within the rounding of its source"
    if p is not None and q is not None and p <= ALPHA < q:
        return (
            f"p = {p:.2g} by itself, but among {tested} metrics one may be this low by chance (q = {q:.2g})"
        )
    if evidence.doubt:
        return evidence.doubt
    if evidence.margin.is_of_spread:
        return f"its level is near 0, so the margin is {evidence.margin.origin}: set one with --margin"
    return "the noise is wider than the margin"


def equal(a: list[list[float]], b: list[list[float]]) -> bool:
    """Return whether the k-th runs of both sides are equal in float32 precision, for every k."""
    if len(a) != len(b):
        return False
    pairs = (pair for p, q in zip(a, b, strict=True) for pair in zip(p, q, strict=True))
    return a == b or all(x == y or math.isclose(x, y, rel_tol=_FLOAT32) for x, y in pairs)
