"""Access control of the studio: an ASGI layer that checks each request and adds headers to each response.

- Token: every user of a machine reaches its loopback interface. A browser sends the token once, in the
  address that the studio printed, and receives a cookie. Without it, only style sheets, scripts and icons are
  served.
- Host: a studio on the loopback interface accepts loopback names only, which excludes DNS rebinding. On other
  interfaces and behind a proxy (a base path) every name is accepted: a rebound name has no cookie.
- Every change is a POST from the studio's own pages: same origin, with the process's secret.
- Content-Security-Policy: scripts and styles from the studio's own files, never inline; no frames.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trinity_compat.common.browser_requests import LOOPBACK_NAMES, is_loopback_name, is_same_origin
from trinity_compat.studio.connections import Connections

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
_ANSWERED = ("/translate", "/configure", "/advise")  # pages whose forms send a text and write nothing


@dataclass(frozen=True, slots=True)
class Listener:
    """The studio's address and secrets. ``token`` grants access; ``csrf`` marks this process's forms."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    read_only: bool = False  # nothing is changed by a page
    base: str = ""  # the path at which a proxy shows the studio: "" or "/…"
    connections: Connections = field(default_factory=Connections, repr=False, compare=False)

    @property
    def url(self) -> str:
        """The URL without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.base}/"

    @property
    def address(self) -> str:
        """The URL with the token."""
        return f"{self.url}?token={quote(self.token, safe='')}"

    @property
    def cookie(self) -> str:
        """The cookie's name, with the port: cookies ignore ports, and a machine may run two studios."""
        return f"trinity_compat_studio_{self.port}"

    @property
    def ticket(self) -> str:
        """The cookie's value, a digest, so that no browser stores the token."""
        return hmac.new(self.token.encode(), self.cookie.encode(), hashlib.sha256).hexdigest()

    def accepts_host(self, host: str) -> bool:
        """Return whether a request's Host header can name this studio.

        Its port may be a tunnel's. A proxy's name is not known.
        """
        return is_loopback_name(host) or self.host not in LOOPBACK_NAMES or bool(self.base)


class RequestGuard:
    """Middleware that refuses unauthorized requests and adds security headers to every response."""

    def __init__(self, app: ASGIApp, listener: Listener, refusal: Refusal) -> None:
        self._app = app
        self._listener = listener
        self._page = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        base, path = self._listener.base, scope["path"]
        if base and (path == base or path.startswith(f"{base}/")):  # some proxies take it away, others do not
            scope = {**scope, "path": path.removeprefix(base) or "/", "raw_path": None}
        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        if not self._listener.accepts_host(request.headers.get("host", "")):
            return self._page(request, 421, "The studio does not answer under this host name.")
        if request.scope["path"].startswith(PUBLIC):
            return None
        given = request.query_params.get("token")
        if request.method == "GET" and is_secret(given, self._listener.token):
            return self._grant_access(request)
        if not is_secret(request.cookies.get(self._listener.cookie), self._listener.ticket):
            return self._page(request, 401, "This is not the studio's current token." if given else "")
        self._listener.connections.admit(request.scope.get("client"))
        if request.method not in ("GET", "HEAD") and not is_same_origin(request.headers.get):
            return self._page(request, 403, "The request came from another site.")
        if self._listener.read_only and request.method not in ("GET", "HEAD") and not _is_answered(request):
            return self._page(request, 403, "The studio was started with --read-only: it changes nothing.")
        return None

    def _grant_access(self, request: Request) -> Response:
        """Redirect to the same address without the token, and set the cookie."""
        rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
        path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
        place = f"{self._listener.base}/" + path.decode("ascii", "replace").lstrip("/\\")
        answer = RedirectResponse(f"{place}?{rest}" if rest else place, 303)
        answer.set_cookie(
            self._listener.cookie,
            self._listener.ticket,
            max_age=_WEEK_S,
            path=self._listener.base or "/",
            httponly=True,
            samesite="strict",
        )
        return answer


def is_secret(given: object, secret: str) -> bool:
    """Return whether a text from outside is the secret, in a time that tells nothing about it."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def _is_answered(request: Request) -> bool:
    path: str = request.scope["path"]
    return any(path == page or path.startswith(f"{page}/") for page in _ANSWERED)


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded
