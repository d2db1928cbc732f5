"""The stream of the page: one snapshot of nodes and run at a time, made once for all browsers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

from orchestrator.render.printable import printable
from orchestrator.watch.fleet_view import now_view
from orchestrator.watch.plain import as_json
from orchestrator.watch.terminal.feed import LiveFeed

LOOK_S = 0.5
"""Seconds between two looks whether there is something to send; a node that has become silent is sent at once."""
MOST_STREAMS = 32
RETRY_MS = 2000
"""Pause of a browser before it connects again."""


class LiveStream:
    """Snapshots as server-sent events. All methods are called in the server's event loop."""

    def __init__(
        self,
        feed: LiveFeed,
        actions: Callable[[], list[dict[str, Any]]],
        *,
        interval_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._feed, self._actions = feed, actions
        self._interval_s, self._clock = interval_s, clock
        self._made, self._number, self._text = float("-inf"), 0, b""
        self._sign: object = None
        self._open = 0
        self._closed = False

    @property
    def is_full(self) -> bool:
        """True if as many pages are open as the server has streams for."""
        return self._open >= MOST_STREAMS

    def close(self) -> None:
        """End all streams: the server is to end."""
        self._closed = True

    def current(self) -> tuple[int, bytes]:
        """The newest snapshot as JSON, and its number."""
        actions = self._actions()
        sign = (self._feed.silent(), self._feed.error, [(one["number"], one["lines"], one["code"]) for one in actions])
        if sign != self._sign or self._clock() - self._made >= self._interval_s:
            self._sign, self._made = sign, self._clock()
            error = self._feed.error
            data = now_view(self._feed.view(), self._feed.tail)
            data["actions"] = actions
            data["problem"] = error and {"message": printable(error.message), "hint": printable(error.hint)}
            self._text, self._number = as_json(data), self._number + 1
        return self._number, self._text

    async def events(self) -> AsyncIterator[bytes]:
        """Each snapshot, from the current one on, until the browser leaves or the server ends."""
        self._open += 1
        sent = 0
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            for _ in count():
                if self._closed:
                    return
                number, text = self.current()
                if number != sent:
                    sent = number
                    yield b"event: snapshot\nid: %d\ndata: %b\n\n" % (number, text)
                await asyncio.sleep(LOOK_S)
        finally:
            self._open -= 1
