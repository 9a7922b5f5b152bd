"""``data_juicer`` in an experience pipeline: the answers as rows of a table, and Data-Juicer's operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trinity_compat.trinity.pipelines.juicer.client import Client
from trinity_compat.trinity.pipelines.juicer.work import stats_of

_ROW = "row"  # of the table: an experience's place in the batch
_COLUMNS = ("prompt_text", "response_text", "reward", "prompt_length", "truncate_status")


class DataJuicer:
    """Operators of Data-Juicer on the experiences of a batch.

    They read ``prompt_text``, ``response_text``, ``reward`` and other fields of a row by name (``text_key:
    response_text``). Their measurements go to the ``info`` of rows that pass, as does a changed reward; other
    changes are ignored, since the tokens have been sampled.
    """

    def __init__(
        self,
        service_config: Mapping[str, Any],
        operators: Sequence[Mapping[str, Any]] | None = None,
        config_path: str | None = None,
        np: int = 4,
    ) -> None:
        """Open a session of the service. Raises RunError if it does not start or rejects the operators."""
        configuration = {
            "operators": operators,
            "config_path": config_path,
            "np": np,
            "pipeline_type": "experience",
        }
        self._client = Client(service_config, configuration)

    def process(self, exps: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the experiences that the operators keep, and metrics. Raises RunError."""
        if not exps:
            return [], {"filtered_count": 0}
        import pyarrow as pa

        rows = [_row(place, each) for place, each in enumerate(exps)]
        for name in ("metrics", "info"):
            _unmix([row[name] for row in rows if row[name]])
        table = pa.Table.from_pylist(rows)
        kept = []
        for row in self._client.experiences(table).to_pylist():
            each = exps[row[_ROW]]
            each.reward = row["reward"]
            each.info = {**(each.info or {}), **stats_of(row)}
            kept.append(each)
        return kept, {"filtered_count": len(exps) - len(kept)}

    def close(self) -> None:
        """End the session, and the service that was started for it."""
        self._client.close()


def _row(place: int, each: Any) -> dict[str, Any]:
    """Return the row of an experience; ``info`` and ``metrics`` without types that a table lacks."""
    return {
        _ROW: place,
        "eid": {name: str(getattr(each.eid, name)) for name in ("batch", "task", "run", "step")},
        "tokens": [int(token) for token in each.tokens],
        "logprobs": [] if each.logprobs is None else [float(value) for value in each.logprobs],
        "action_mask": [] if each.action_mask is None else [bool(own) for own in each.action_mask],
        **{name: getattr(each, name, None) for name in _COLUMNS},
        "metrics": _plain(each.metrics),
        "info": _plain(each.info),
    }


def _plain(values: Mapping[str, Any] | None) -> dict[str, float | str] | None:
    """Return the numbers, as floats, and texts; None instead of an empty structure, which a table lacks."""
    found = {
        name: value if isinstance(value, str) else float(value)
        for name, value in (values or {}).items()
        if isinstance(value, str | int | float)
    }
    return found or None


def _unmix(sections: Sequence[dict[str, float | str]]) -> None:
    """Convert values to text in all rows if they are text in some: a column has one type."""
    texts = {name for each in sections for name, value in each.items() if isinstance(value, str)}
    for each in sections:
        each.update({name: str(each[name]) for name in texts & each.keys()})
