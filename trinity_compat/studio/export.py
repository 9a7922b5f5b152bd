"""A selection of experiences as a file, read and written page by page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trinity_compat.buffer import codec, groups
from trinity_compat.buffer.queries import CHOSEN_EXPERIENCES, of_ids
from trinity_compat.buffer.typed_json import readable
from trinity_compat.studio.index import SORTS, ExperienceQuery, Index, Row
from trinity_compat.studio.jobs import Job

_PAGE = 50  # answers, of up to a few megabytes each
_CHUNK = 1 << 18  # bytes


def chosen(job: Job, index: Index, wanted: ExperienceQuery) -> Iterator[list[Row]]:
    """The selection in its order, page by page: the index's columns, texts, tokens, log-probs, mask."""
    column = "id" if wanted.text else SORTS[wanted.sort]
    wanted = replace(wanted, after=None)
    while rows := index.page(wanted, limit=_PAGE)[:_PAGE]:
        whole = _whole(job, [int(str(row["id"])) for row in rows])
        yield [{**row, **whole.get(int(str(row["id"])), {})} for row in rows]
        last, number = str(rows[-1][column]), str(rows[-1]["id"])
        wanted = replace(wanted, after=(float(last), int(number)))


def _whole(job: Job, ids: list[int]) -> dict[int, Row]:
    """Return id → texts, tokens and figures, without pruned experiences."""
    rows = job.database().run(
        lambda conn: conn.execute(of_ids(CHOSEN_EXPERIENCES), {"ids": ids}).all(), write=False
    )
    arrays = ("prompt_ids", "response_ids", "response_mask", "logprobs")
    found: dict[int, Row] = {}
    for row in rows:
        it = groups.experience(row, readable)
        found[row[1]] = {
            "prompt_text": it.prompt_text,
            "response_text": it.response_text,
            **{name: getattr(it, name).tolist() for name in arrays},
            "metrics": codec.to_json(it.metrics),
            "info": codec.to_json(it.info),
        }
    return found


def json_lines(pages: Iterator[list[Row]]) -> Iterator[bytes]:
    """One JSON object a line; ``metrics`` and ``info`` are objects."""
    for rows in pages:
        for row in rows:
            opened = {name: json.loads(str(row[name])) for name in ("metrics", "info") if name in row}
            yield json.dumps(row | opened, ensure_ascii=False, default=str).encode() + b"\n"


def parquet(pages: Iterator[list[Row]]) -> Iterator[bytes]:
    """A parquet file; ``metrics`` and ``info`` are JSON texts. Written to a temporary file first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as file:
        writer = None
        for rows in pages:
            table = pa.Table.from_pylist(rows, schema=_schema())
            writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table)
        if writer is None:
            pq.write_table(_schema().empty_table(), file)
        else:
            writer.close()
        file.seek(0)
        while chunk := file.read(_CHUNK):
            yield chunk


def _schema() -> Any:
    import pyarrow as pa

    ints = dict.fromkeys(("id", "group_id", "run", "step", "version", "length", "turns"), pa.int64())
    texts = dict.fromkeys(("kind", "task", "prompt_text", "response_text", "metrics", "info"), pa.string())
    lists = dict.fromkeys(("prompt_ids", "response_ids"), pa.list_(pa.int32()))
    return pa.schema(
        [
            *ints.items(),
            ("reward", pa.float64()),
            *texts.items(),
            *lists.items(),
            ("response_mask", pa.list_(pa.uint8())),
            ("logprobs", pa.list_(pa.float32())),
        ]
    )
