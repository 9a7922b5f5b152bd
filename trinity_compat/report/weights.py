"""Weights: of each version its digest at the trainer and at each engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.report import Row, rows
from trinity_compat.report.model import Section, counted

_VERSION = ("version", "history", "digest", "bytes", "method")
_PROOFS = {
    "equals what arrived": "held by each layer: the adapter's values are those that arrived",
    "same in all engines": "held after loading: digests agree between engines, restarts and later loads",
    "recorded": "held after loading: digests of quantized weights are recorded, not compared with a load",
    "": "held after loading: not recorded",
}


def weights(conn: sa.Connection) -> Section:
    """Return the section on weights; broken where a worker got or holds other ones than it should."""
    loaded = rows(conn, queries.LOADED)
    versions = [_version(row, loaded) for row in rows(conn, queries.VERSIONS)]
    differ = [each for each in versions if each["differ"]]
    loads = sum(each["loads"] for each in versions)
    published = f"{counted(len(versions), 'version')} published"
    if differ:
        summary = f"{published}; {differ[0]['differ'][0]} has another version {differ[0]['version']}"
    elif loads:
        summary = (
            f"{published}; {counted(loads, 'load')} into workers of engines, each with the trainer's digest"
        )
    else:
        summary = published
    lacking = sum(not each["loads"] for each in versions)
    why = "not loaded, or by an engine without a record"
    proofs = sorted({_PROOFS.get(str(row[5]), str(row[5])) for row in loaded})
    return Section(
        "Weights",
        "broken" if differ else "proven" if loads else "open",
        summary,
        {
            "proof": ["received: digest of each tensor's bytes", *proofs] if loads else [],
            "versions": versions,
        },
        [f"{counted(lacking, 'version')} at the engines: {why}"] if lacking else [],
    )


def _version(row: Row, loaded: Sequence[Row]) -> dict[str, Any]:
    """Return a version with the newest load of each worker since it was published."""
    found = dict(zip(_VERSION, row, strict=True))
    mine = [each for each in loaded if each[0] == found["version"] and each[1] >= found["history"]]
    newest = {each[2]: each for each in mine}
    held: dict[str, set[str]] = {}
    for *_, digest, proof in newest.values():
        held.setdefault(digest[:16] if proof != "recorded" else digest, set()).add(digest)
    others = {digest for digests in held.values() if len(digests) > 1 for digest in digests}
    differ = [
        worker
        for worker, each in newest.items()
        if (each[3] and found["digest"] not in ("", each[3])) or (each[4] and each[4] in others)
    ]
    return found | {
        "loads": len(newest),
        "received": sorted({each[3] for each in newest.values()}),
        "held": sorted({each[4] for each in newest.values() if each[4]}),
        "differ": differ,
    }
