"""Send files to many nodes over the controller's link once: each node takes them from another one, while that receives.

The controller starts `relay_program` on every node, sends to the first over SSH, and names to each other one the node
from which it is to receive, over TCP. The controller alone decides: a node whose source breaks off, stalls or sends
wrong bytes gets another source, in the end the controller. What arrived stays, and a second call continues there. ADR
31 says why a chain.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from orchestrator.fleet import relay_messages as messages
from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.relay_messages import FileToSend, PullFrom, RelayReport, RelayWants, encode
from orchestrator.nodes import relay_program
from orchestrator.nodes.interface import Node, Progress
from orchestrator.specs.errors import (
    CommandFailedError,
    ConfigError,
    ConflictError,
    NodeUnreachableError,
    OrchError,
    PreflightError,
    RunFailedError,
)

CHUNK = 1024 * 1024
WITHOUT_END_S = 14 * 24 * 3600.0
"""Limit of a copy: the bytes that arrive show whether it still works."""
RELAYED_FROM = 8_000_000
"""Bytes from which nodes send on to each other: less is sent sooner than a chain is set up."""
SPARE_BYTES = 256 * CHUNK
"""Free space to leave on a node: a full disk would make the next checkpoint fail."""
FAR = 8
"""Times that a rate is below another one, from which it is not used."""
MOST_SOURCES = 3
"""Nodes from which a node tries to receive, before the controller sends to it."""
REPORTS_PER_S = 20
"""A node reports once a second, and where something happens."""

# A constant; $1: the program. A Python without the whole standard library counts as none.
_BEGIN = """
umask 077
python3 -c 'import hmac, json, queue, select, shutil, sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null &&
  exec python3 -c "$1"
echo '{"failed": {"kind": "unfit", "why": ""}}'
"""


@dataclass(frozen=True, kw_only=True)
class FolderToSend:
    """Files in their order, and how to read them."""

    what: str
    """Name for messages, such as `data`."""
    files: Sequence[FileToSend]
    read: Callable[[FileToSend, int], Iterator[bytes]]
    """Content of a file from an offset on."""
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    """Folders that have no file."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A node and the folder there that shall hold the files; it may begin with `~`."""

    node: Node
    folder: str
    skipped: int = 0
    """Files at the beginning that this node does not need."""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Files that a node has now: its disk has given them back."""

    folder: str
    came: int
    """Bytes that this call has brought to it."""
    fed: int
    """Bytes of these that the controller sent to it."""
    doubt: str = ""
    """Wrong bytes that the node has sent to another one."""


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """Deadlines of a copy. They count bytes: a node that only reports that it works has none."""

    starting_s: float = 45.0
    """Seconds until a node is ready."""
    gather_s: float = 10.0
    """Seconds until the first node receives although others are not ready: of all, the one that has most is to be the
    first."""
    quiet_s: float = 30.0
    """Seconds for `least_bytes` from a source that has them, or between two reports. Reading back has four times as
    long."""
    least_bytes: int = 1024 * 1024


class RelayState(Enum):
    """State of one node in a copy.

    STARTING ──ready──▶ WAITING ──source──▶ RECEIVING ──finished──▶ COMPLETE: sends to others
        │                │   ▲                  │ │
        │                │   └─broken, stalled──┘ │
        └────────────────┴────────────────────────┴──failed, silent, any error──▶ ENDED
    """

    STARTING = auto()
    WAITING = auto()
    RECEIVING = auto()
    COMPLETE = auto()
    ENDED = auto()


def send_folder(
    content: FolderToSend,
    targets: Sequence[Destination],
    notify: Notify,
    *,
    otherwise: Callable[[Destination], Delivered],
    limits: RelayLimits | None = None,
) -> tuple[Outcome[Destination, Delivered], ...]:
    """Copy the files to all; one outcome for each target, in order.

    `otherwise` copies to a node without Python 3.8 or newer. An error of one node ends its own part alone. ConfigError:
    a file cannot be read here.
    """
    relays = [_Relay(target, content) for target in targets]
    _Transfer(content, relays, notify, limits or RelayLimits()).run()
    unfit = [relay.target for relay in relays if relay.unfit]
    direct = dict(zip(map(id, unfit), fan_out(unfit, otherwise, timeout_s=WITHOUT_END_S), strict=True))
    return tuple(direct.get(id(relay.target)) or relay.outcome() for relay in relays)


@dataclass(eq=False)
class _Relay:
    """One node's part of a copy."""

    target: Destination
    content: FolderToSend
    state: RelayState = RelayState.STARTING
    source: _Relay | None = None
    """Relay from which it receives; None: the controller."""
    refused: list[_Relay] = field(default_factory=list)
    """Former sources."""
    slow: list[_Relay] = field(default_factory=list)
    """Those of them that were left as they were slow, as is what comes through them."""
    wrong: set[int] = field(default_factory=set)
    """Files of which it had got wrong bytes."""
    doubt: str = ""
    """Wrong bytes that it has sent: it is no source any more."""
    error: OrchError | None = None
    unreadable: OrchError | None = None
    """The controller cannot read a file."""
    unfit: bool = False
    closed: bool = False
    last: messages.RelayMoved = field(default_factory=lambda: messages.RelayMoved(held=0, received=0, verified=0))
    port: int = 0
    fed: int = 0
    folder: str = ""
    address: str = ""
    reported_at: float = field(default_factory=time.monotonic)
    moved: tuple[int, float] = field(default_factory=lambda: (0, time.monotonic()))
    """Bytes that had come and were verified, and when they had; or when nothing was due."""
    window: tuple[int, float] = field(default_factory=lambda: (0, time.monotonic()))
    """Bytes that had come from its source, and when: its rate is measured from there on."""
    rate: float = 0.0
    """Bytes a second of the last such time; of what the controller sends, by the controller's own count."""
    orders: SimpleQueue[bytes | RelayWants | None] = field(default_factory=SimpleQueue)

    @property
    def name(self) -> str:
        return self.target.node.name

    @property
    def is_over(self) -> bool:
        return self.state in (RelayState.COMPLETE, RelayState.ENDED)

    @property
    def came(self) -> int:
        """Bytes so far, to compare with those at another time while its source is the same."""
        return self.last.received if self.source else self.fed

    def outcome(self) -> Outcome[Destination, Delivered]:
        if self.state is not RelayState.COMPLETE:
            return Outcome(self.target, error=self.error or _unreachable(self))
        result = Delivered(folder=self.folder, came=self.last.received, fed=self.fed, doubt=self.doubt)
        return Outcome(self.target, result=result)

    def can_send_to(self, other: _Relay) -> bool:
        """Return whether everything reaches it in the end: from the controller, or from a complete node."""
        if not self.port or self.doubt or self in other.refused or self.target.skipped > other.target.skipped:
            return False
        first: _Relay | None = self
        while first and first.state is RelayState.RECEIVING and not other.wrong and first not in other.slow:
            first = first.source
        return first is None or (first.state is RelayState.COMPLETE and not first.closed)

    def receive_from(self, source: _Relay | None) -> None:
        self.state, self.source = RelayState.RECEIVING, source
        self.moved = (self.last.received + self.last.verified, time.monotonic())
        self.window = (self.came, time.monotonic())
        order = PullFrom(source=source.name, address=source.address, port=source.port) if source else PullFrom()
        self.orders.put(encode(order))

    def close(self, error: OrchError | None = None) -> None:
        """End its program. A complete node only is no source any more."""
        if not self.is_over:
            self.state, self.error = RelayState.ENDED, error
        self.closed = True
        self.orders.put(None)

    def follow(self, token: str, reports: SimpleQueue[tuple[_Relay, RelayReport | OrchError | None]]) -> None:
        """Start the program and pass on its reports until it ends."""
        error: OrchError | None = None
        try:
            self.address, began, number = self.target.node.address, time.monotonic(), count()
            argv = ["sh", "-c", _BEGIN, "sh", Path(relay_program.__file__).read_text("utf-8")]
            lines = self.target.node.stream(argv, stdin=self._stdin(token), timeout_s=WITHOUT_END_S)
            with closing(lines):  # type: ignore[type-var]  # a generator on every node
                for line in _lines(lines):
                    if next(number) > REPORTS_PER_S * (5 + time.monotonic() - began):
                        raise ValueError("too many reports")
                    reports.put((self, messages.read_relay_report(line, self.content.files, self.content.size)))
                    if self.closed:
                        return
        except ValueError:
            error = _invalid(self)
        except Exception as raised:
            error = as_error(raised, node=self.name)
        reports.put((self, error))

    def _stdin(self, token: str) -> Iterator[bytes]:
        """The task, then what is put into `orders`; where the node wants content, the content."""
        files = [(file.name, file.size, file.sha256, file.mode) for file in self.content.files]
        yield encode(
            messages.RelayTask(
                token=token, address=self.address, folder=self.target.folder, files=files, skipped=self.target.skipped,
                links=self.content.links, folders=self.content.folders,
            )
        )  # fmt: skip
        while (order := self.orders.get()) is not None:
            try:
                yield from [order] if isinstance(order, bytes) else self._wanted(order)
            except OSError as error:  # the transfer runs in another thread
                place = error.filename or self.content.what
                problem = f"{place} cannot be read: {error.strerror or error}"
                self.unreadable = ConfigError(problem, hint=f"ls -l {place}")
                return

    def _wanted(self, wants: RelayWants) -> Iterator[bytes]:
        """The content. OSError also if a file has become shorter, as all after it would be shifted."""
        offset = wants.offset
        for file in self.content.files[wants.file : wants.end]:
            for chunk in self.content.read(file, offset) if file.size else ():
                if self.closed:
                    return
                yield chunk[: file.size - offset]
                self.fed += len(chunk[: file.size - offset])
                offset += len(chunk[: file.size - offset])
            if offset < file.size:
                raise OSError(0, "it has become shorter while it was copied", file.name)
            offset = 0


@dataclass
class _Transfer:
    """Start relays, give each a source, and follow their reports until all are over."""

    content: FolderToSend
    relays: Sequence[_Relay]
    notify: Notify
    limits: RelayLimits
    reports: SimpleQueue[tuple[_Relay, RelayReport | OrchError | None]] = field(default_factory=SimpleQueue)
    began: float = field(default_factory=time.monotonic)
    has_tried: bool = False
    """True if a second node has got content from the controller, as all that came through the first one was slow."""

    def run(self) -> None:
        token = secrets.token_hex(32)
        threads = [Thread(target=relay.follow, args=(token, self.reports), daemon=True) for relay in self.relays]
        for thread in threads:
            thread.start()
        try:
            while not all(relay.is_over for relay in self.relays):
                self._follow()
                for unreadable in [relay.unreadable for relay in self.relays if relay.unreadable]:
                    raise unreadable
                self._give_sources()
        finally:
            for relay in self.relays:
                relay.close()
            until = time.monotonic() + 2  # a program ends with its input
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))

    def _follow(self) -> None:
        """Take the next report of any relay, and look at the time. An error is that of one node."""
        reporter, report = None, None
        with suppress(Empty):
            reporter, report = self.reports.get(timeout=min(1.0, self.limits.quiet_s / 4))
        for relay in self.relays:
            try:
                if relay is reporter and relay.state is not RelayState.ENDED:
                    relay.reported_at = time.monotonic()
                    self._take(relay, report)
                self._look_at_time(relay, time.monotonic())
                self._look_at_rate(relay, time.monotonic())
            except Exception as error:
                relay.close(as_error(error, node=relay.name))

    def _take(self, relay: _Relay, report: RelayReport | OrchError | None) -> None:
        starting, receiving = relay.state is RelayState.STARTING, relay.state is RelayState.RECEIVING
        match report:
            case OrchError() | None:
                relay.close(report if starting or not isinstance(report, NodeUnreachableError) else None)
            case messages.RelayReady() if starting:
                relay.port, relay.folder = report.port, report.folder
                relay.last = messages.RelayMoved(held=report.held, received=0, verified=0)
                if (missing := self.content.size - report.held) + SPARE_BYTES > report.free:
                    raise _no_room(relay, missing, report.free)
                relay.state = RelayState.WAITING
            case messages.RelayMoved() if not starting:
                relay.last = report
                self._show(relay)
            case RelayWants() if receiving and not relay.source and relay.fed <= messages.TIMES * self.content.size:
                relay.orders.put(report)
            case messages.RelayBroken() if not starting:
                if receiving and report.source == (relay.source.name if relay.source else ""):
                    self._take_broken(relay, report)
            case messages.RelayFinished():
                whole = self.content.size
                relay.state, relay.folder = RelayState.COMPLETE, relay.folder or relay.target.folder
                relay.last = messages.RelayMoved(held=whole, received=report.received, verified=whole)
                self._show(relay)
            case messages.RelayFailed():
                relay.unfit = starting and report.kind == "unfit"
                raise _failure(relay, report)
            case _:
                raise _invalid(relay)

    def _take_broken(self, relay: _Relay, report: messages.RelayBroken) -> None:
        source = relay.source
        if report.wrong is not None:
            name = self.content.files[report.wrong].name
            if not source:
                raise RunFailedError(
                    f"{name} is not what was meant to be sent: its SHA-256 is another one",
                    node=relay.name,
                    hint="did it change meanwhile? Run the same command again",
                )
            relay.wrong.add(report.wrong)
            if report.wrong not in source.wrong:  # otherwise it has passed on what it was sent
                source.doubt = f"it sent wrong bytes of {name} to {relay.name}: does its memory or network card fail?"
                self.notify(source.name, Progress(text=source.doubt))
        self._leave_source(relay, report.why)

    def _leave_source(self, relay: _Relay, why: str) -> None:
        if relay.source:
            self.notify(relay.name, Progress(text=f"receives no more from {relay.source.name}: {why[:200]}"))
            relay.refused.append(relay.source)
        relay.state, relay.source = RelayState.WAITING, None

    def _look_at_time(self, relay: _Relay, now: float) -> None:
        """Give up a node that is silent, and a source from which too little comes."""
        limits, source = self.limits, relay.source
        silent_s = limits.starting_s if relay.state is RelayState.STARTING else limits.quiet_s
        if not relay.is_over and now - relay.reported_at > silent_s:
            raise _unreachable(relay)
        if relay.state is not RelayState.RECEIVING:
            return None
        if source and (source.closed or source.state is RelayState.ENDED):
            return self._leave_source(relay, "it has ended")
        whole, progress = relay.last.held >= self.content.size, relay.last.received + relay.last.verified
        is_due = whole or not source or source.is_over or source.last.held - relay.last.held >= limits.least_bytes
        if not is_due or progress - relay.moved[0] >= limits.least_bytes * (64 if whole else 1):
            relay.moved = (progress, now)
        elif now - relay.moved[1] > limits.quiet_s * (4 if whole else 1):
            if whole or not source:
                doing = "read back" if whole else "taken"
                problem = f"{self.content.what} is {doing} too slowly there"
                raise CommandFailedError(problem, node=relay.name, hint=f"orch doctor --nodes {relay.name}")
            return self._leave_source(relay, "too little comes from it")
        return None

    def _look_at_rate(self, relay: _Relay, now: float) -> None:
        """Leave a source from which far less comes than from the controller to any node. Where the controller sends to
        one node alone, and that is slow, one other node tries the controller: it may be the node or the link."""
        came, since = relay.window
        receiving = relay.state is RelayState.RECEIVING
        if now - since < self.limits.quiet_s / 3 or not (receiving or relay.rate == 0.0):
            return
        relay.window, relay.rate = (relay.came, now), (relay.came - came) / (now - since)
        source = relay.source
        direct = [one for one in self.relays if not one.source and (one.fed or one.state is RelayState.RECEIVING)]
        if not receiving or not source or relay.last.held >= self.content.size:
            return
        is_slow = relay.rate * FAR < max((one.rate for one in direct), default=0.0)
        if not is_slow and not self.has_tried and len(direct) == 1:
            is_slow = self.has_tried = relay.rate < FAR * self.limits.least_bytes / self.limits.quiet_s
        if is_slow:
            relay.slow.append(source)
            self._leave_source(relay, "far less comes from it than the controller sends")

    def _give_sources(self) -> None:
        """Name a source to each node without one: of those that can send, the one that sends to the fewest."""
        starting = any(relay.state is RelayState.STARTING for relay in self.relays)
        if starting and time.monotonic() - self.began < self.limits.gather_s:
            return
        waiting = [relay for relay in self.relays if relay.state is RelayState.WAITING]
        # a node sends on only what it receives itself; then: the less the first lacks, the less the controller sends
        for relay in sorted(waiting, key=lambda one: (one.target.skipped, one.port == 0, -one.last.held)):
            able = [one for one in self.relays if len(relay.refused) < MOST_SOURCES and one.can_send_to(relay)]
            sending = [one.source for one in self.relays if one.state is RelayState.RECEIVING]
            relay.receive_from(min(able, key=lambda one: (sending.count(one), -one.last.held), default=None))

    def _show(self, relay: _Relay) -> None:
        skipped = sum(file.size for file in self.content.files[: relay.target.skipped])
        done, total = relay.last.held - skipped, self.content.size - skipped
        text = "received" if relay.is_over else "receiving"
        if done == total and not relay.is_over:
            text, done = "comparing SHA-256", min(relay.last.verified, total - 1)
        self.notify(relay.name, Progress(text=text, done=done, total=total))


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
        if len(rest) > messages.MOST_BYTES:
            raise ValueError("a line without an end")


_AGAIN = "then run the same command again: it continues where this one ended"


def _unreachable(relay: _Relay) -> OrchError:
    return NodeUnreachableError(
        f"it did not answer any more while {relay.content.what} was copied to it",
        node=relay.name,
        hint=f"orch doctor --nodes {relay.name}   # {_AGAIN}",
    )


def _invalid(relay: _Relay) -> OrchError:
    return CommandFailedError("its answer about a copy is not valid", node=relay.name)


def _no_room(relay: _Relay, missing: int, free: int) -> OrchError:
    return PreflightError(
        f"{relay.content.what} needs {missing / 1e6:.0f} MB and {SPARE_BYTES / 1e6:.0f} MB to spare, and "
        f"{free / 1e6:.0f} MB are free in {relay.folder}",
        node=relay.name,
        hint=f"orch shell {relay.name}   # make room: df -h; or leave the node out: --nodes '!{relay.name}'",
    )


def _failure(relay: _Relay, report: messages.RelayFailed) -> OrchError:
    why = report.why[:500]
    if report.kind == "full":
        return PreflightError(why, node=relay.name, hint=f"orch shell {relay.name}   # make room: df -h; {_AGAIN}")
    if report.kind == "busy":
        return ConflictError(why, node=relay.name, hint="wait for the other command, then run this one again")
    return CommandFailedError(
        f"copying {relay.content.what} failed: {why}", node=relay.name, hint=f"orch doctor --nodes {relay.name}"
    )
