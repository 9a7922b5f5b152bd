"""Who may ask, and what a page may do: an ASGI layer around every answer of the studio.

- Token: every other user of a machine reaches its loopback too. A browser has to show the token once, in
  the address that the studio printed; then a cookie stands for it. Without it there are only style sheets,
  scripts and icons, which hold nothing of the user's.
- Host: where the studio listens on this machine's loopback, only names of that, so that no web site reaches
  it by DNS rebinding. Elsewhere any name may be its own (a rebound one has no cookie of ours).
- Whatever changes something is a POST from the studio's own pages: same origin, and the process's secret.
- Content-Security-Policy: scripts and styles from the studio's own files, never inline; no frames.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
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
_WEEK_S = 7 * 24 * 3600
Refusal = Callable[[Request, int, str], Response]
PUBLIC = ("/static/", "/shared/")


@dataclass(frozen=True, slots=True)
class Listener:
    """Where the studio listens. ``token``: of who may come in. ``csrf``: this process's secret."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def url(self) -> str:
        """Without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def address(self) -> str:
        """With the token."""
        return f"{self.url}?token={quote(self.token, safe='')}"

    @property
    def cookie(self) -> str:
        """Cookies don't know ports, and two studios may run on one machine."""
        return f"trinity_compat_studio_{self.port}"

    @property
    def ticket(self) -> str:
        """The cookie's value: the token itself stays in no browser."""
        return hmac.new(self.token.encode(), self.cookie.encode(), hashlib.sha256).hexdigest()

    def knows(self, host: str) -> bool:
        """Whether a request's Host header can name this studio. The port may be a tunnel's."""
        name, colon, port = host.rpartition(":")
        bare = name if colon and port.isdecimal() else host
        return self.host not in LOOPBACK or bare.removeprefix("[").removesuffix("]") in LOOPBACK


class RequestGuard:
    """Refuses what should not come in, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, door: Listener, refusal: Refusal) -> None:
        self._app = app
        self._door = door
        self._page = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        if not self._door.knows(request.headers.get("host", "")):
            return self._page(request, 421, "This name is not the studio's.")
        if request.scope["path"].startswith(PUBLIC):
            return None
        given = request.query_params.get("token")
        if request.method == "GET" and _same(given, self._door.token):
            return self._let_in(request)
        if not _same(request.cookies.get(self._door.cookie), self._door.ticket):
            return self._page(request, 401, "This token is not the studio's." if given else "")
        if request.method not in ("GET", "HEAD") and not _same_origin(request.headers):
            return self._page(request, 403, "The form comes from another site.")
        return None

    def _let_in(self, request: Request) -> Response:
        """The same address without the token, which stays in no history and no Referer."""
        rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
        path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
        place = "/" + path.decode("ascii", "replace").lstrip("/\\")
        answer = RedirectResponse(f"{place}?{rest}" if rest else place, 303)
        answer.set_cookie(
            self._door.cookie, self._door.ticket, max_age=_WEEK_S, httponly=True, samesite="strict"
        )
        return answer


def _same(given: str | None, secret: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(errors="replace"), secret.encode())


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


async def is_ours(request: Request, door: Listener) -> bool:
    """Whether a form was made by this process: it carries the secret that only our pages hold."""
    given = (await request.form()).get("csrf")
    return isinstance(given, str) and _same(given, door.csrf)
