"""Routes of the page: files of the package, the stream, data, and actions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.checks.line_levels import LineLevel
from orchestrator.fleet.faults import as_error
from orchestrator.render.printable import printable
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError, UsageError
from orchestrator.state.postmortem import write_postmortem
from orchestrator.store.run_record import record_of
from orchestrator.watch.evidence import recorded_evidence
from orchestrator.watch.plain import as_json
from orchestrator.watch.run_view import RESOURCES, cause_view, only
from orchestrator.watch.server.actions import PageAction, PageActions
from orchestrator.watch.server.address import WebAddress
from orchestrator.watch.server.fleet import WatchedFleet
from orchestrator.watch.server.guard import RequestGuard
from orchestrator.watch.server.live import LiveStream
from orchestrator.watch.server.logs import LinesWanted, log_page, search_page
from orchestrator.watch.server.runs import ANSWER_POINTS, RunCurves, RunList
from orchestrator.watch.terminal.feed import LiveFeed

ASSETS = Path(__file__).parent.parent / "page"
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
         ".css": "text/css; charset=utf-8"}  # fmt: skip
THREADS = 4
"""Answers that are made at the same time."""
LONGEST_BODY = 4096
MOST_COMPARED = 10
STATUS = {UsageError: HTTPStatus.BAD_REQUEST, ConfigError: HTTPStatus.NOT_FOUND, ConflictError: HTTPStatus.CONFLICT}


@dataclass(frozen=True, kw_only=True)
class WebParts:
    """All that the routes answer from."""

    fleet: WatchedFleet
    feed: LiveFeed
    stream: LiveStream
    actions: PageActions
    curves: RunCurves
    list: RunList
    project: str


def web_app(parts: WebParts, address: WebAddress, token: str) -> Starlette:
    """The application. Its answers are made in a few threads: what reads a record waits for a disk."""
    routes = _Routes(parts)
    get = {
        "/api/about": routes.about,
        "/api/runs": routes.runs,
        "/api/runs/{run}/why": routes.why,
        "/api/curves": routes.curves,
        "/api/logs": routes.logs,
        "/api/search": routes.search,
        "/api/checkpoints": routes.checkpoints,
        "/api/findings": routes.findings,
    }
    return Starlette(
        routes=[
            Route("/", _asset("index.html")),
            *(Route(f"/assets/{name}", _asset(name)) for name in _asset_names()),
            Route("/api/live", routes.live),
            *(Route(path, _answered(answer)) for path, answer in get.items()),
            Route("/api/runs/{run}/{verb}", routes.act, methods=["POST"]),
            Route("/api/findings", routes.examine, methods=["POST"]),
        ],
        middleware=[
            Middleware(RequestGuard, address=address, token=token),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
        lifespan=_lifespan(parts),
    )


def _lifespan(parts: WebParts) -> Callable[[Starlette], Any]:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        try:
            yield
        finally:
            parts.stream.close()

    return lifespan


def _asset_names() -> list[str]:
    """Files of the page, those of `vendor` with their folder; not its licence and notes."""
    return sorted(str(file.relative_to(ASSETS)) for file in ASSETS.rglob("*") if file.suffix in KINDS)


def _asset(name: str) -> Callable[[Request], Response]:
    file = ASSETS / name

    def answer(_request: Request) -> Response:
        return FileResponse(file, media_type=KINDS[file.suffix], headers={"cache-control": "no-cache"})

    return answer


def _answered(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """The route of a function that gives data; its errors become answers, never tracebacks."""

    def route(request: Request) -> Response:
        try:
            return Response(as_json(answer(request)), media_type="application/json")
        except Exception as error:
            return _failure(as_error(error))

    return route


def _failure(error: OrchError) -> Response:
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), HTTPStatus.BAD_GATEWAY)
    text = as_json({"error": printable(str(error)), "hint": printable(error.hint)})
    return Response(text, status_code=status, media_type="application/json")


class _Routes:
    """One method per path. Those of GET change nothing."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts

    def about(self, _request: Request) -> dict[str, Any]:
        return {"project": self._parts.project}

    async def live(self, _request: Request) -> Response:
        stream = self._parts.stream
        if stream.is_full:
            return Response("too many pages are open\n", status_code=503, media_type="text/plain")
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(stream.events(), media_type="text/event-stream", headers=headers)

    def runs(self, _request: Request) -> dict[str, Any]:
        asked = self._parts.fleet.runs
        live = self._parts.feed.view().run
        return {**self._parts.list.data(asked.newest(), live), "age_s": asked.age_s, "problem": asked.problem}

    def why(self, request: Request) -> dict[str, Any]:
        return cause_view(write_postmortem(recorded_evidence(record_of(request.path_params["run"]))))

    def curves(self, request: Request) -> dict[str, Any]:
        wanted = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 0 < len(wanted) <= MOST_COMPARED:
            raise UsageError(f"{len(wanted)} runs: expected 1 to {MOST_COMPARED}")
        groups, names = (_words(request, key) for key in ("group", "name"))
        resources = not groups or RESOURCES in groups
        views = self._parts.curves.runs(map(record_of, wanted), resources=resources)
        return {"runs": [only(view, groups, names, ANSWER_POINTS // len(views)) for view in views]}

    def logs(self, request: Request) -> dict[str, Any]:
        given = request.query_params
        try:
            wanted = LinesWanted(
                node=given.get("node", ""),
                rank=int(given["rank"]) if given.get("rank") else None,
                level=LineLevel(given.get("level") or "info"),
                words=given.get("words", ""),
                until=given.get("until", ""),
                number=max(1, int(given.get("number") or 200)),
            )
        except ValueError:
            raise UsageError("rank and number are integers; level is info, warning or error") from None
        return log_page(record_of(given.get("run", "")), wanted)

    def search(self, request: Request) -> dict[str, Any]:
        if not (words := request.query_params.get("words", "").strip()):
            raise UsageError("a word to search for is missing")
        return search_page(words)

    def checkpoints(self, _request: Request) -> dict[str, Any]:
        return self._parts.fleet.checkpoints()

    def findings(self, _request: Request) -> dict[str, Any]:
        return {"findings": self._parts.actions.findings}

    async def act(self, request: Request) -> Response:
        return await _accepted(request, lambda path: self._parts.actions.begin(path["verb"], path["run"]))

    async def examine(self, request: Request) -> Response:
        return await _accepted(request, lambda _path: self._parts.actions.examine())


async def _accepted(request: Request, begin: Callable[[dict[str, str]], PageAction]) -> Response:
    """The answer to an action that has begun, or the error that keeps it from beginning."""
    try:
        await _require_object(request)
        number = begin(request.path_params).number
    except OrchError as error:
        return _failure(error)
    return Response(as_json({"action": number}), status_code=HTTPStatus.ACCEPTED, media_type="application/json")


def _words(request: Request, key: str) -> list[str]:
    return [word for word in request.query_params.get(key, "").split(",") if word]


async def _require_object(request: Request) -> None:
    """Read the body. UsageError: it is not a small JSON object, as forms of other sites cannot send it."""
    read = b""
    async for part in request.stream():
        read += part
        if len(read) > LONGEST_BODY:
            raise UsageError("the body is too long")
    try:
        values = json.loads(read or b"{}")
    except ValueError:
        values = None
    if not isinstance(values, dict) or not request.headers.get("content-type", "").startswith("application/json"):
        raise UsageError("expected a JSON object")
