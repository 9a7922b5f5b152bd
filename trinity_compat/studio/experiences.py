"""The pages of a job's experiences: the list, a group side by side, the selection as a file."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from urllib.parse import quote, urlencode

import sqlalchemy as sa
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from trinity_compat.buffer import groups, queries
from trinity_compat.buffer.media import NAME, references
from trinity_compat.buffer.model import Experience
from trinity_compat.buffer.queries import of_ids, query
from trinity_compat.buffer.typed_json import readable
from trinity_compat.common.optional_packages import need
from trinity_compat.common.redaction import hidden
from trinity_compat.studio import export, group_index
from trinity_compat.studio.index import PAGE, SORTS, ExperienceQuery, Index, Row, task_of
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import bounds_of, group_of, job_of, page, place_of, reading

_AT_ONCE_S = 0.12  # of indexing while a page waits
_BOUNDS = ("step", "reward", "version", "length")
_MOST_HITS = 10_000  # that are counted
_kept: dict[str, Index] = {}
_opening: dict[str, threading.Lock] = {}  # another job's page does not wait for one that is slow to open
_lock = threading.Lock()


def index_of(job: Job) -> tuple[Index, int, int]:
    """The job's index, (last id indexed, last id there); the rest is indexed beside. Raises UserError."""
    place = str(job.dir.root)
    with _lock:
        opening = _opening.setdefault(place, threading.Lock())
    with opening:
        found = _kept.get(place)
        if found is None or not found.path.exists():
            found = _kept[place] = Index(job)
    done, last = found.fill(_AT_ONCE_S)
    if done < last:
        found.fill_beside()
    return found, done, last


@reading
def experiences(request: Request) -> Response:
    """One page of the selection that the query names."""
    job = job_of(request)
    index, done, last = index_of(job)
    wanted = wanted_of(request.query_params)
    rows = index.page(wanted)
    shown, more = rows[:PAGE], len(rows) > PAGE
    filtered = wanted.text or wanted.task or wanted.least or wanted.most
    most = _MOST_HITS if filtered else last
    hits = index.count(replace(wanted, after=None), most=most)
    texts = _texts(job, [_number(row["id"]) for row in shown])
    column = "id" if wanted.text else SORTS[wanted.sort]
    with index.connected() as db:
        scale = group_index.scale(db, wanted.kind)
        known = index.kinds() or ["train"]
        kinds = group_index.titles(known, group_index.validations(db, known))
    values = {
        "job": job,
        "rows": [row | texts.get(_number(row["id"]), _PRUNED) for row in shown],
        "wanted": wanted,
        "hits": hits,
        "more_hits": hits == most < last,
        "scale": scale,
        "kinds": kinds,
        "sorts": list(SORTS),
        "next": _address(request.query_params, f"{shown[-1][column]},{shown[-1]['id']}") if more else "",
        "first": _address(request.query_params, "") if wanted.after else "",
        "query": urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "after"]),
        "given": {name: request.query_params.get(name, "") for name in _FIELDS},
        "indexing": (done, last) if done < last else None,
    }
    return page(request, "experiences.html", values)


_FIELDS = ("text", "task", *(f"{name}_{end}" for name in _BOUNDS for end in ("min", "max")))
_PRUNED: Row = {"state": "gone", "prompt": "", "response": ""}


def wanted_of(given: QueryParams) -> ExperienceQuery:
    """The selection that an address names. Raises HTTPException 400 for a value that is not valid."""
    least, most = bounds_of(given, _BOUNDS)
    text, sort = given.get("text", "").strip(), given.get("sort") or "newest"
    if sort not in SORTS:
        raise HTTPException(400, f"sort is one of {', '.join(SORTS)}.")
    return ExperienceQuery(
        given.get("kind") or "train",
        text,
        given.get("task", "").strip(),
        least,
        most,
        sort,
        "up" in given,
        place_of(given),
    )


def _address(given: QueryParams, after: str) -> str:
    pairs = [pair for pair in given.multi_items() if pair[0] != "after"]
    return "?" + urlencode([*pairs, ("after", after)] if after else pairs)


def _number(value: object) -> int:
    return int(str(value))


def _texts(job: Job, ids: Sequence[int]) -> dict[int, Row]:
    """Return id → its group's current state and the beginnings of its texts."""
    if not ids:
        return {}
    chosen = of_ids(queries.BEGINNINGS)
    found = job.database().run(lambda conn: conn.execute(chosen, {"ids": ids}).all(), write=False)
    ends = {row[0]: f"…{text[-220:]}" if len(text := row[2] or "") > 220 else text for row in found}
    return {row[0]: {"state": row[1], "prompt": ends[row[0]], "response": row[3] or ""} for row in found}


def read_about(conn: sa.Connection, number: int) -> Row | None:
    """Return a group's row without its answers; None if the group does not exist."""
    bind = {"group_id": number}
    row = conn.execute(query(queries.ABOUT_GROUP), bind).one_or_none()
    if row is None:
        return None
    task = readable(row[0])
    names = ("kind", "state", "step", "task_no", "key", "uses", "size")
    about = dict(zip(names, row[1:], strict=True))
    about |= {"task": hidden("", task), "name": task_of(row[0], about["task_no"])}
    about["trained"] = [use[0] for use in conn.execute(query(queries.USES_OF_GROUP), bind)]
    return about


def read_answers(conn: sa.Connection, number: int, most: int) -> Iterator[tuple[int, Experience]]:
    """Yield (id, answer) of a group's first answers in order."""
    for row in conn.execute(query(queries.FIRST_OF_GROUP), {"group_id": number, "most": most}):
        yield row[1], groups.experience(row, readable)


def selection(request: Request) -> Response:
    """The whole selection as JSON lines, or as a parquet file."""
    job = job_of(request)
    index, _, _ = index_of(job)
    wanted = wanted_of(request.query_params)
    form = request.query_params.get("format", "jsonl")
    if form not in ("jsonl", "parquet"):
        raise HTTPException(400, "format is jsonl or parquet.")
    name = f"{job.name.replace('/', '-')}-experiences.{form}"
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    if form == "jsonl":
        lines = export.json_lines(export.chosen(job, index, wanted))
        return StreamingResponse(_begun(lines), media_type="application/jsonl", headers=headers)
    need("pyarrow")
    body = export.parquet(export.chosen(job, index, wanted))
    return StreamingResponse(_begun(body), media_type="application/vnd.apache.parquet", headers=headers)


def _begun(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Return the parts. An error of the first is raised here, where a page can still say it."""
    return chain((next(parts, b""),), parts)


# What browsers show and nothing else: an SVG could hold a script. By how the files begin.
_IMAGE_TYPES = {b"\x89PNG\r\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_DIGEST = re.compile(r"[0-9a-f]{16,128}", re.ASCII)
_A_DAY = "private, max-age=86400, immutable"  # a digest never names another image


def images_of(task: object) -> list[str]:
    """Digests of a stored task's images, each once, in their order."""
    return list(dict.fromkeys(one[NAME] for one in references(task) if one.get("kind") == "image"))


@reading
def image(request: Request) -> Response:
    """One image of the group that the query names."""
    job = job_of(request)
    digest = request.query_params.get("digest", "")
    if not _DIGEST.fullmatch(digest):
        raise HTTPException(400, "digest must be 16 to 128 hexadecimal digits.")
    bind = {"group_id": group_of(request), "digest": digest}

    def read(conn: sa.Connection) -> bytes | None:
        found = conn.execute(query(queries.ONE_OF_GROUPS_MEDIA), bind).scalar_one_or_none()
        return None if found is None else bytes(found)

    data = job.database().run(read, write=False)
    if data is None:
        raise HTTPException(404, "The group has no such image, or it was pruned.")
    kind = _image_type(data)
    if kind is None:
        raise HTTPException(415, "The image is not a PNG, JPEG, GIF or WebP file.")
    return Response(data, media_type=kind, headers={"cache-control": _A_DAY})


def _image_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _IMAGE_TYPES.items() if data.startswith(begin)), None)
