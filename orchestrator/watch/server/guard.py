"""Every request before it is answered: host, origin, token, and the headers of every answer (ADR 60).

Other users of this computer, other machines, and pages of other sites in the same browser can send requests; none of
them knows the token, and none can send the cookie.
"""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.watch.server.address import WebAddress

POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)  # fmt: skip
"""Scripts and styles from files of this server alone; no text can become markup."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
LONGEST_QUERY = 4096
AGAIN = """<!doctype html><html lang="en"><title>orch</title><meta http-equiv="refresh" content="0;url=/">
<p><a href="/">Open the page</a></p></html>
"""
"""Loads the page once more, from itself: with a link of another site browsers send no cookie, nor with the redirect
that answers it."""
SHUT = """This page needs the token of `orch dashboard`.

Open the whole address that the command has printed: copy it, and paste it into the browser. If the command was
started again, its token is another one.
"""


class RequestGuard:
    """ASGI middleware that refuses what is not from the page itself."""

    def __init__(self, app: ASGIApp, *, address: WebAddress, token: str) -> None:
        self._app, self._address, self._token = app, address, token
        self._session = secrets.token_urlsafe(32)
        """Value of the cookie: the token itself stays out of the browser's store."""
        self._cookie = f"orch-{secrets.token_hex(4)}"  # browsers do not tell cookies of two ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._first_visit(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, changing = Headers(scope=scope), scope["method"] == "POST"
        host, origin = headers.get("host", ""), headers.get("origin")
        if len(headers.getlist("host")) != 1 or not self._address.answers_to(host):
            return _refused(f"403: no server of this name: {host[:200]!a}\n")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _refused("405: GET or POST\n", 405)
        if (changing and origin is None) or (origin is not None and origin != f"{self._address.scheme}://{host}"):
            return _refused("403: a request of another origin\n")
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") and (changing or scope["path"] != "/"):
            return _refused("403: a request of another site\n")
        if len(scope["query_string"]) > LONGEST_QUERY:
            return _refused("414: the address is too long\n", 414)
        if self._is_known(headers) or (scope["path"] == "/" and not changing and self._has_token(scope)):
            return None
        if _is_link(scope) and not changing and not scope["query_string"]:
            return HTMLResponse(AGAIN)  # the next request is from here, and is refused where no cookie comes with it
        return _refused(SHUT)

    def _first_visit(self, scope: Scope) -> Response | None:
        """The same page without the token in its address, and the cookie that replaces it."""
        if scope["path"] != "/" or b"token=" not in scope["query_string"]:
            return None
        answer = HTMLResponse(AGAIN) if _is_link(scope) else RedirectResponse("/", status_code=303)
        if self._has_token(scope):
            answer.set_cookie(
                self._cookie, self._session, httponly=True, samesite="strict", secure=bool(self._address.tls)
            )
        return answer

    def _has_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        return secrets.compare_digest(given[0].encode(), self._token.encode())

    def _is_known(self, headers: Headers) -> bool:
        # Not by http.cookies, which drops all after one that it does not take: servers of other ports set some, too.
        given = cookie_parser("; ".join(headers.getlist("cookie"))).get(self._cookie, "")
        return secrets.compare_digest(given.encode(), self._session.encode())


def _is_link(scope: Scope) -> bool:
    """Return whether a person has followed a link of another site to the page."""
    headers = Headers(scope=scope)
    foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    return foreign and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"


def _refused(text: str, status: int = 403) -> Response:
    return PlainTextResponse(text, status_code=status)
