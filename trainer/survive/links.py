"""A node's way to the council: it is held here, or on the node of rank 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from trainer.survive import wire
from trainer.survive.council import GONE, Again, Council, Go, Order, Over, Patience, Tell
from trainer.survive.ending import Ending, from_values
from trainer.survive.options import Options
from trainer.survive.wire import Line, Message

PING_S = 2.0
RETRY_S = 1.0
LINGER_S = 30.0
"""How long the end of a run is told to nodes that come back after it."""


class Link(Protocol):
    def ready(self, epoch: int) -> None:
        """Nothing runs here, and the next epoch may come."""

    def ended(self, ending: Ending) -> None: ...

    def progressed(self) -> None:
        """A checkpoint was written."""

    def orders(self, timeout_s: float) -> Iterator[Order]:
        """What has come within this time."""

    def close(self) -> None: ...


class Host:
    """The council is here."""

    def __init__(self, options: Options) -> None:
        self._council = Council(
            names=options.names,
            patience=Patience(restarts=options.restarts, silence_s=options.silence_s, absence_s=options.absence_s),
        )
        self._options = options
        self._inbox: SimpleQueue[tuple[int, Line | None, Message | None]] = SimpleQueue()
        self._lines: dict[int, Line] = {}
        self._told = set[int]()
        """Nodes that know how the run ended."""
        self._pinged = 0.0
        several = len(options.names) > 1
        self._door = wire.serve(options.address, options.port, self._welcome) if several else None
        self._council.open(time.monotonic())

    def ready(self, epoch: int) -> None:
        self._inbox.put((0, None, {"ready": epoch}))

    def ended(self, ending: Ending) -> None:
        self._inbox.put((0, None, {"ended": ending.as_values()}))

    def progressed(self) -> None:
        self._council.progressed()

    def orders(self, timeout_s: float) -> Iterator[Order]:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                rank, line, message = self._inbox.get(timeout=left)
            except Empty:
                break
            yield from self._pass_on(self._hear(rank, line, message))
        now = time.monotonic()
        if now - self._pinged >= PING_S:
            self._pinged = now
            self._to_all({"ping": self._council.epoch})
        yield from self._pass_on(self._council.tick(now))

    def close(self) -> None:
        """Nodes that are away and may come back are told how it ended."""
        ending, deadline = self._council.over, time.monotonic() + min(LINGER_S, self._options.absence_s)
        if ending and ending.kind != "done":
            while len(self._told) < len(self._options.names) - 1 and time.monotonic() < deadline:
                for _ in self.orders(1.0):
                    pass
        for line in self._lines.values():
            line.close()
        if self._door:
            self._door.close()

    def _welcome(self, line: Line) -> None:
        """A connection begins with whose it is; one that does not is closed."""
        try:
            hello = line.next(wire.HELLO_S) or {}
            rank = int(hello["node_rank"])
            if hello["run"] != self._options.run or not 0 < rank < len(self._options.names):
                raise ValueError(f"no node of this run: {hello}")
        except (OSError, ValueError, KeyError, TypeError):
            line.close()
            return
        self._inbox.put((rank, line, {"hello": True}))
        line.listen(lambda message: self._inbox.put((rank, line, message)))

    def _hear(self, rank: int, line: Line | None, message: Message | None) -> list[Order]:
        now, council = time.monotonic(), self._council
        if message and "hello" in message and line:
            self._lines[rank] = line
            if council.over and line.send(_as_message(Over(ending=council.over))):
                self._told.add(rank)
            return []
        if rank and self._lines.get(rank) is not line:
            return []  # of a connection that another has replaced
        if message is None:
            del self._lines[rank]
            return council.gone(rank, now)
        try:
            if "ready" in message:
                return council.ready(rank, int(message["ready"]), now)
            if "ended" in message:
                return council.ended(rank, from_values(message["ended"]), now)
        except (TypeError, ValueError, AttributeError):
            return []
        return council.alive(rank, now)

    def _pass_on(self, orders: list[Order]) -> Iterator[Order]:
        for order in orders:
            self._to_all(_as_message(order))
            yield order

    def _to_all(self, message: Message) -> None:
        for rank, line in list(self._lines.items()):
            if not line.send(message):
                self._inbox.put((rank, line, None))
            elif message.get("order") == "over":
                self._told.add(rank)


class Guest:
    """The council is on the node of rank 0; the way there may break, and is looked for again."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._inbox: SimpleQueue[tuple[Line, Message | None]] = SimpleQueue()
        self._line: Line | None = None
        self._state: Message = {"ready": 0}
        """What a new connection begins with."""
        self._heard = self._pinged = self._tried = 0.0
        self._waits_since = time.monotonic()

    def ready(self, epoch: int) -> None:
        self._tell({"ready": epoch})

    def ended(self, ending: Ending) -> None:
        self._tell({"ended": ending.as_values()})

    def progressed(self) -> None:
        """Checkpoints are written where rank 0 is."""

    def orders(self, timeout_s: float) -> Iterator[Order]:
        now = time.monotonic()
        if self._line is None:
            self._connect(now)
        elif now - self._pinged >= PING_S:
            self._pinged = now
            self._line.send({"ping": 0})
        if self._line and now - self._heard > self._options.silence_s:
            yield from self._lost(f"no word from {self._options.names[0]} for {now - self._heard:.0f} s")
        if self._line is None and now - self._waits_since > self._options.absence_s:
            reason = f"it could not be reached for {now - self._waits_since:.0f} s"
            yield Over(ending=Ending(kind="infrastructure", node=self._options.names[0], reason=reason))
        try:
            line, message = self._inbox.get(timeout=timeout_s)
        except Empty:
            return
        if line is not self._line:
            return
        self._heard = time.monotonic()
        if message is None:
            yield from self._lost(GONE)
        elif order := _as_order(message):
            yield order

    def close(self) -> None:
        if self._line:
            self._line.close()

    def _tell(self, state: Message) -> None:
        self._state = state
        if self._line:
            self._line.send(state)

    def _connect(self, now: float) -> None:
        if now - self._tried < RETRY_S:
            return
        self._tried = now
        try:
            line = wire.call(self._options.address, self._options.port)
        except OSError:
            return
        self._heard = time.monotonic()
        self._line = line
        line.send({"run": self._options.run, "node_rank": self._options.node_rank})
        line.send(self._state)
        line.listen(lambda message: self._inbox.put((line, message)))

    def _lost(self, why: str) -> Iterator[Order]:
        """The others' ranks go on without this node's, or not at all: ours have nothing to wait for."""
        if self._line:
            self._line.close()
        self._line, self._waits_since = None, time.monotonic()
        cause = Ending(kind="infrastructure", node=self._options.names[0], reason=why)
        yield Again(epoch=0, cause=cause, restarts_left=-1, pause_s=0.0)


_ORDERS: dict[str, type[Any]] = {"go": Go, "over": Over, "again": Again, "tell": Tell}


def _as_message(order: Order) -> Message:
    name = next(name for name, kind in _ORDERS.items() if isinstance(order, kind))
    return {"order": name, **asdict(order)}


def _as_order(message: Message) -> Order | None:
    """None for a ping, and for what is no order."""
    values = dict(message)
    kind = _ORDERS.get(values.pop("order", ""))
    try:
        for key in ("ending", "cause"):
            if key in values:
                values[key] = from_values(values[key])
        return kind(**values) if kind else None
    except (TypeError, ValueError, AttributeError):
        return None
