"""Who may ask, and what a page may do: an ASGI layer around every answer of the studio.

- Host: only names of this machine's loopback, so that no web site reaches the studio by DNS rebinding. Where
  the studio listens elsewhere, a token is asked of everybody instead (a rebound name has no cookie of ours).
- Whatever changes something is a POST from the studio's own pages: same origin, and the process's secret.
- Content-Security-Policy: scripts and styles from the studio's own files, never inline; no frames.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_YEAR_S = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Door:
    """Where the studio listens. ``token``: None on the loopback. ``csrf``: this process's secret."""

    host: str
    port: int
    token: str | None = None
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @classmethod
    def at(cls, host: str, port: int) -> Door:
        """A door with a fresh token unless ``host`` is this machine's loopback."""
        return cls(host, port, None if host in LOOPBACK else secrets.token_urlsafe(24))

    @property
    def url(self) -> str:
        """Without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def cookie(self) -> str:
        """Cookies don't know ports, and two studios may run on one machine."""
        return f"trinity_compat_studio_{self.port}"

    def knows(self, host: str) -> bool:
        """Whether a request's Host header names this studio."""
        names = {f"[{name}]" if ":" in name else name for name in LOOPBACK}
        return self.token is not None or host in {f"{name}:{self.port}" for name in names}


class Guard:
    """Refuses what should not come in, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        if not self._door.knows(request.headers.get("host", "")):
            return PlainTextResponse("This name is not the studio's: open the address that it printed.", 421)
        if self._door.token is not None and not _same(
            request.cookies.get(self._door.cookie), self._door.token
        ):
            return self._asked_for_token(request, self._door.token)
        if request.method not in ("GET", "HEAD") and not _same_origin(request.headers):
            return PlainTextResponse("Refused: the request comes from another site.", 403)
        return None

    def _asked_for_token(self, request: Request, token: str) -> Response:
        if not _same(request.query_params.get("token"), token):
            return PlainTextResponse("Open the address with the token that the studio printed.", 401)
        rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]
        place = request.url.path + (f"?{urlencode(rest)}" if rest else "")
        answer = RedirectResponse("/" + place.lstrip("/"), 303)
        answer.set_cookie(self._door.cookie, token, max_age=_YEAR_S, httponly=True, samesite="strict")
        return answer


def _same(given: str | None, secret: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), secret.encode())


def _same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "same-origin")
    return site in ("same-origin", "none") and origin in (None, f"http://{headers.get('host', '')}")


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded


async def is_ours(request: Request, door: Door) -> bool:
    """Whether a form was made by this process: it carries the secret that only our pages hold."""
    given = (await request.form()).get("csrf")
    return isinstance(given, str) and _same(given, door.csrf)
