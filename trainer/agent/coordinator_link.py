"""A node's way to the council: it is held here, or on the node of rank 0."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from trainer.agent.coordinator import GONE, Again, Council, Order, Over, Patience, Tell
from trainer.agent.handshake import Greeting, draw, read_asked, read_token, read_welcome
from trainer.agent.listener import GREETING_S, Came, Door, Left, Listening, News
from trainer.agent.messages import Ended, MisfitError, Ping, Ready, Report, as_message, read_order
from trainer.agent.options import Options
from trainer.agent.rank_exit import Ending
from trainer.agent.wire import SEND_S, Line

PING_S = 2.0
RETRY_S = 1.0
LINGER_S = 30.0
"""How long the end of a run is told to nodes that come back after it."""

Note = Callable[[str, str], None]
"""Takes a line for people, and what it is about: of a kind that comes often, one line is enough."""


def _print(_kind: str, text: str) -> None:
    print(text, file=sys.stderr)


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
    """The council is here. ConfigurationError: there is no token of the attempt."""

    def __init__(self, options: Options, note: Note = _print) -> None:
        self._council = Council(
            names=options.names,
            patience=Patience(restarts=options.restarts, silence_s=options.silence_s, absence_s=options.absence_s),
        )
        self._options = options
        self._own: list[Report] = []
        """What this node has said and the council has not heard yet."""
        self._told = set[int]()
        """Nodes that know how the run ended."""
        self._pinged = 0.0
        self._door = Door(_listening(options), note) if len(options.names) > 1 else None
        self._council.open(time.monotonic())

    def ready(self, epoch: int) -> None:
        self._own.append(Ready(epoch=epoch))

    def ended(self, ending: Ending) -> None:
        self._own.append(Ended(ending=ending))

    def progressed(self) -> None:
        self._council.progressed()

    def orders(self, timeout_s: float) -> Iterator[Order]:
        deadline = time.monotonic() + timeout_s
        while True:
            while self._own:
                yield from self._pass_on(self._reported(0, self._own.pop(0)))
            if (left := deadline - time.monotonic()) <= 0:
                break
            for news in self._hear(left):
                yield from self._pass_on(self._learn(news))
        now = time.monotonic()
        if now - self._pinged >= PING_S:
            self._pinged = now
            self._send(Ping())
        yield from self._pass_on(self._council.tick(now))

    def close(self) -> None:
        """Nodes that are away and may come back are told how it ended."""
        ending, deadline = self._council.over, time.monotonic() + min(LINGER_S, self._options.absence_s)
        if ending and ending.kind != "done":
            while len(self._told) < len(self._options.names) - 1 and time.monotonic() < deadline:
                for _ in self.orders(1.0):
                    pass
        if self._door:
            self._door.close()

    def _hear(self, timeout_s: float) -> list[News]:
        if self._door:
            return self._door.hear(timeout_s)
        time.sleep(timeout_s)
        return []

    def _learn(self, news: News) -> list[Order]:
        if isinstance(news, Came):
            if self._door and self._council.over:
                over = as_message(Over(ending=self._council.over))
                self._told.update([news.node_rank] if self._door.send_to(news.node_rank, over) else [])
            return []
        if isinstance(news, Left):
            return self._council.gone(news.node_rank, time.monotonic())
        return self._reported(news.node_rank, news.report)

    def _reported(self, rank: int, report: Report) -> list[Order]:
        now = time.monotonic()
        if isinstance(report, Ready):
            return self._council.ready(rank, report.epoch, now)
        if isinstance(report, Ended):
            return self._council.ended(rank, report.ending, now)
        return self._council.alive(rank, now)

    def _pass_on(self, orders: list[Order]) -> Iterator[Order]:
        for order in orders:
            if not isinstance(order, Tell):
                self._send(order)
            yield order

    def _send(self, said: Ping | Order) -> None:
        sent = self._door.send(as_message(said)) if self._door else []
        if isinstance(said, Over):
            self._told.update(sent)


class Guest:
    """The council is on the node of rank 0; the way there may break, and is looked for again. ConfigurationError: there
    is no token of the attempt."""

    def __init__(self, options: Options, note: Note = _print) -> None:
        self._options = options
        self._note = note
        self._token = read_token(options.folder)
        self._line: Line | None = None
        self._state: Report = Ready(epoch=0)
        """What a new connection begins with."""
        self._pinged = self._tried = 0.0
        self._why_not = ""
        """The newest reason why it could not be reached."""
        self._waits_since = time.monotonic()

    def ready(self, epoch: int) -> None:
        self._tell(Ready(epoch=epoch))

    def ended(self, ending: Ending) -> None:
        self._tell(Ended(ending=ending))

    def progressed(self) -> None:
        """Checkpoints are written where rank 0 is."""

    def orders(self, timeout_s: float) -> Iterator[Order]:
        deadline = time.monotonic() + timeout_s
        if self._line is None:
            self._connect()
        elif time.monotonic() - self._pinged >= PING_S:
            self._pinged = time.monotonic()
            self._line.send(as_message(Ping()))
        if (line := self._line) is None:
            time.sleep(max(0.0, deadline - time.monotonic()))
            yield from self._without(time.monotonic())
            return
        try:
            for text in line.receive(max(0.0, deadline - time.monotonic())):
                yield from self._read(text)
        except OSError as error:
            self._note("lost", f"the connection to {self._options.names[0]} has ended: {error}")
            yield from self._lost(GONE)
            return
        if (silent := time.monotonic() - line.heard) > self._options.silence_s:
            yield from self._lost(f"no word from {self._options.names[0]} for {silent:.0f} s")

    def close(self) -> None:
        if self._line:
            self._line.close()

    def _tell(self, state: Report) -> None:
        self._state = state
        if self._line:
            self._line.send(as_message(state))

    def _read(self, text: bytes) -> Iterator[Order]:
        try:
            order = read_order(text, self._options.names)
        except MisfitError as error:
            self._note("order", f"{self._options.names[0]} sent what is not understood: {error}")
            return
        if not isinstance(order, Ping):
            yield order

    def _connect(self) -> None:
        now = time.monotonic()
        if now - self._tried < RETRY_S:
            return
        self._tried = now
        try:
            self._line = _greeted(self._options, self._token)
        except (OSError, MisfitError) as error:
            self._why_not = str(error)
            return
        self._why_not = ""
        self._line.send(as_message(self._state))

    def _without(self, now: float) -> Iterator[Order]:
        if now - self._waits_since > self._options.absence_s:
            reason = f"it could not be reached for {now - self._waits_since:.0f} s"
            reason += f": {self._why_not}" if self._why_not else ""
            yield Over(ending=Ending(kind="infrastructure", node=self._options.names[0], reason=reason))

    def _lost(self, why: str) -> Iterator[Order]:
        """The others' ranks go on without this node's, or not at all: ours have nothing to wait for."""
        if self._line:
            self._line.close()
        self._line, self._waits_since = None, time.monotonic()
        cause = Ending(kind="infrastructure", node=self._options.names[0], reason=why)
        yield Again(epoch=0, cause=cause, restarts_left=-1, pause_s=0.0)


def _listening(options: Options) -> Listening:
    return Listening(
        address=options.address,
        port=options.port,
        interface=options.interface,
        run=options.run,
        names=options.names,
        token=read_token(options.folder),
    )


def _greeted(options: Options, token: bytes) -> Line:
    """A connection on which each knows the other. OSError: nobody answers in time. MisfitError: somebody else does, or
    the coordinator does not take this node."""
    line = Line(socket.create_connection((options.address, options.port), timeout=SEND_S))
    deadline = time.monotonic() + GREETING_S
    try:
        asked = read_asked(line.next(deadline))
        greeting = Greeting(run=options.run, node_rank=options.node_rank, asked=asked, drawn=draw())
        line.send(greeting.as_message(token))
        read_welcome(line.next(deadline), greeting, token)
    except BaseException:
        line.close()
        raise
    return line
