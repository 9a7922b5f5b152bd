"""From evidence to a verdict: identical, differs, same or unclear, and why."""

from __future__ import annotations

import math

from trinity_compat.compare.curves import SideCurves
from trinity_compat.compare.evidence import Evidence

SAME, DIFFERS, UNCLEAR, IDENTICAL = "same", "differs", "unclear", "identical"
ALPHA = 0.05
# TensorBoard keeps float32: two points this close (relative) may be one number, written twice.
_FLOAT32 = 2e-7


def judge(
    a: SideCurves, b: SideCurves, evidence: Evidence, *, tested: int, parting_q: float | None
) -> tuple[str, str]:
    """(verdict, why). ``tested``: the metrics among which q counts; ``parting_q``: of the curves' band.

    What diverges on one side only differs, whatever its finite points say; on both sides these decide, but
    call nothing the same where other points are lost. Nor are curves the same that part, at the same level;
    a margin that the user gave is about levels.
    """
    if bool(a.broken) != bool(b.broken):
        return DIFFERS, ""
    verdict, why = _judge_finite(a, b, evidence, tested) if a.mean else (UNCLEAR, evidence.lacks)
    if a.broken != b.broken and verdict in (SAME, IDENTICAL):
        return UNCLEAR, "points that are not finite are left out, and not the same ones on both sides"
    parted = parting_q is not None and parting_q <= ALPHA
    if parted and verdict == SAME and not evidence.margin.is_given:
        return UNCLEAR, "the levels are the same, but the curves part"
    return verdict, why


def _judge_finite(a: SideCurves, b: SideCurves, evidence: Evidence, tested: int) -> tuple[str, str]:
    """A margin that the user gave is their word for what doesn't matter: inside it even a sure difference is
    the same. The default one is nobody's word, and a sure difference goes first."""
    if equal(a.seeds, b.seeds):
        return IDENTICAL, ""
    if evidence.lacks:
        return UNCLEAR, evidence.lacks
    q = evidence.difference.q
    differs = evidence.told and q is not None and q <= ALPHA
    within = evidence.p_same is not None and evidence.p_same <= ALPHA
    if within and (evidence.margin.is_given or not differs):
        return SAME, "B − A is not 0, but within the margin given" if differs else ""
    if differs:
        return DIFFERS, ""
    return UNCLEAR, _why_unclear(evidence, tested)


def _why_unclear(evidence: Evidence, tested: int) -> str:
    p, q = evidence.difference.p, evidence.difference.q
    if not evidence.told and p is not None and p <= ALPHA:
        return "B − A is no more than the rounding of its source"
    if p is not None and q is not None and p <= ALPHA < q:
        return f"p = {p:.2g} alone, but of {tested} metrics one may fall so low by chance (q = {q:.2g})"
    if evidence.doubt:
        return evidence.doubt
    if evidence.margin.is_of_spread:
        return f"its level is near 0, so that the margin is {evidence.margin.origin}: give --margin"
    return "the noise is wider than the margin"


def equal(a: list[list[float]], b: list[list[float]]) -> bool:
    """Every run of one side equals the run of the other at its place, as far as a float32 can tell."""
    if len(a) != len(b):
        return False
    return a == b or all(_close(p, q) for p, q in zip(a, b, strict=True))


def _close(p: list[float], q: list[float]) -> bool:
    return all(x == y or math.isclose(x, y, rel_tol=_FLOAT32) for x, y in zip(p, q, strict=True))
