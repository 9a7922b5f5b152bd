"""The images of a task, out of the job's store."""

from __future__ import annotations

import re

import sqlalchemy as sa
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.buffer.media import NAME, references
from trinity_compat.buffer.queries import query
from trinity_compat.studio.pages import group_of, job_of, reading

# What browsers show and nothing else: an SVG could hold a script. By how the files begin.
_TYPES = {b"\x89PNG\r\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_DIGEST = re.compile(r"[0-9a-f]{16,128}", re.ASCII)
_ONE = """SELECT m.data FROM media m JOIN group_media h ON h.digest = m.digest
WHERE h.group_id = :group_id AND m.digest = :digest"""
_A_DAY = "private, max-age=86400, immutable"  # a digest never names another image


def named_in(task: object) -> list[str]:
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
        found = conn.execute(query(_ONE), bind).scalar_one_or_none()
        return None if found is None else bytes(found)

    data = job.database().run(read, write=False)
    if data is None:
        raise HTTPException(404, "The group has no such image, or it was pruned.")
    kind = _type_of(data)
    if kind is None:
        raise HTTPException(415, "The image is not a PNG, JPEG, GIF or WebP file.")
    return Response(data, media_type=kind, headers={"cache-control": _A_DAY})


def _type_of(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _TYPES.items() if data.startswith(begin)), None)
