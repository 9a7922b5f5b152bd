"""Style sheets, scripts and icons: compressed, and cached under an address that names their content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from trinity_compat.web import ASSETS

STATIC = Path(__file__).parent / "static"
_FOREVER = "public, max-age=31536000, immutable"


@cache
def assets_digest() -> str:
    """Return ``v`` of the files' addresses: a digest of all of them."""
    digest = hashlib.sha256()
    for folder in (STATIC, ASSETS):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class _Files(StaticFiles):
    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        answer = super().file_response(full_path, stat_result, scope, status_code)
        named = scope["query_string"] == f"v={assets_digest()}".encode()
        answer.headers["cache-control"] = _FOREVER if named else "no-cache"
        return answer


def mounts() -> Iterator[Mount]:
    """Yield the routes of the studio's own files and of those that all our HTML shares."""
    for path, folder in (("/static", STATIC), ("/shared", ASSETS)):
        yield Mount(path, GZipMiddleware(_Files(directory=folder), minimum_size=500))
