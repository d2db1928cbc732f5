"""The servers of the page and of TensorBoard: their parts put together, and the loop that ends with Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.specs.inventory import NodeSpec
from orchestrator.watch.live import LiveState
from orchestrator.watch.server.actions import PageActions, perform_here
from orchestrator.watch.server.address import WebAddress
from orchestrator.watch.server.app import WebParts, web_app
from orchestrator.watch.server.board import BoardProxy
from orchestrator.watch.server.fleet import WatchedFleet
from orchestrator.watch.server.guard import RequestGuard
from orchestrator.watch.server.live import LiveStream
from orchestrator.watch.server.runs import RunCurves, RunList
from orchestrator.watch.terminal.feed import LiveFeed

LEAVING_S = 2
"""Time in which answers that were begun may end."""
MOST_CONNECTIONS = 128
LONGEST_HEAD = 16 * 1024
"""Bytes of the headers of a request."""
REQUEST_S = 10.0
"""Time for the headers of a request, from the begin of the connection or from the end of the last answer."""


def web_parts(
    specs: Sequence[NodeSpec], run: str | None, *, project: str, inventory: Path | None, some: bool = False
) -> WebParts:
    """All that the page shows; nothing is asked yet. `some`: as of `find_runs`."""
    fleet, actions = WatchedFleet(specs, project, run, some=some), PageActions(perform_here(inventory))
    feed = LiveFeed(fleet.watching, LiveState(spec.name for spec in specs))
    return WebParts(
        fleet=fleet,
        feed=feed,
        stream=LiveStream(feed, actions.data),
        actions=actions,
        curves=RunCurves(),
        list=RunList(),
        project=project,
    )


def serve(parts: WebParts, address: WebAddress, token: str, listening: socket.socket) -> None:
    """Watch the nodes and answer until Ctrl-C or SIGTERM."""
    gc.collect()
    gc.freeze()  # the modules stay: what is made from now on is looked at often, so that little of it waits
    gc.set_threshold(5_000)
    parts.feed.start()
    try:
        page_server(parts, address, token).run(sockets=[listening])
    finally:
        parts.feed.close()


def page_server(parts: WebParts, address: WebAddress, token: str) -> uvicorn.Server:
    """The server of the dashboard, which is not running yet."""
    return _PageServer(_config(web_app(parts, address, token), address, lifespan="on"), parts)


def board_server(socket_file: Path, address: WebAddress, token: str) -> uvicorn.Server:
    """The server in front of a TensorBoard that listens on this file, which is not running yet."""
    guarded = RequestGuard(BoardProxy(socket_file), address=address, token=token)
    return uvicorn.Server(_config(guarded, address, lifespan="off"))


def _config(app: ASGIApp, address: WebAddress, *, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    errors = logging.getLogger("uvicorn.error")
    errors.propagate = False  # a broken request is no message for the terminal
    errors.addHandler(logging.NullHandler())
    return uvicorn.Config(
        app, http=_PageConnection, ws="none", loop="asyncio", lifespan=lifespan,
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS, h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=LEAVING_S,
        ssl_certfile=str(address.tls.cert) if address.tls else None,
        ssl_keyfile=str(address.tls.key) if address.tls else None,
    )  # fmt: skip


class _PageConnection(H11Protocol):
    """Connection that is closed when no request comes: otherwise silent connections would make
    the page unavailable to others."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as of the base class
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting:
            self._waiting.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def _await_request(self) -> None:
        if self._waiting:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # otherwise a request is being answered
            self.transport.abort()


class _PageServer(uvicorn.Server):
    """Ends the streams before it waits for the ends of all answers."""

    def __init__(self, config: uvicorn.Config, parts: WebParts) -> None:
        super().__init__(config)
        self._parts = parts

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._parts.stream.close()
        super().handle_exit(sig, frame)
