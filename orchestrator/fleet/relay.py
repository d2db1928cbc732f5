"""Send files to many nodes over the controller's link once: each node sends on what it receives, while it receives it.

The controller starts `relay_program` on every node, and sends to the first over SSH; the nodes send to each other over
TCP. A node that does not reach the next one sends to the one after it; nodes that no other node reaches are sent to by
the controller. What arrived stays, and a second call continues there. ADR 31 says why a chain.
"""

from __future__ import annotations

import json
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.fleet.faults import as_error
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
"""Limit of a copy: the relay's lines show whether it still works."""
STARTING_S = 45.0
LINE_LIMIT = 16 * 1024 * 1024
"""Bytes of a line of a relay: it has a number for each file."""
RELAYED_FROM = 8_000_000
"""Bytes from which nodes send on to each other: less is sent sooner than a chain is set up."""
QUIET_S = 30.0
"""Time without a line of a relay after which its node counts as unreachable."""
UNFED_S = 2.5
"""Time without input after which a relay that no other one can feed is fed by the controller."""
FEEDS = 4
SPARE_BYTES = 256 * CHUNK
"""Free space to leave on a node: a full disk would make the next checkpoint fail."""

_NO_PYTHON = 9
# A constant; the configuration on stdin. A Python without the whole standard library counts as none.
_BEGIN = """
python3 -c 'import hmac, json, queue, shutil, sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || exit 9
umask 077
folder=$(mktemp -d) && cat > "$folder/config.json" && echo "$folder"
"""


@dataclass(frozen=True)
class FileToSend:
    """A file by its path in the folder."""

    name: str
    size: int
    sha256: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class FolderToSend:
    """Files in their order, and how to read them."""

    what: str
    """For messages, such as `data`."""
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
    """Files that a node has now."""

    folder: str
    came: int
    """Bytes that this call has brought to it."""
    fed: int
    """Bytes of these that the controller sent to it."""


def send_folder(
    content: FolderToSend,
    targets: Sequence[Destination],
    notify: Notify,
    *,
    otherwise: Callable[[Destination], Delivered],
) -> tuple[Outcome[Destination, Delivered], ...]:
    """Copy the files to all; one outcome for each target, in order.

    `otherwise` copies to a node without Python 3.8 or newer. An error of one node leaves the others alone. ConfigError:
    a file cannot be read here.
    """
    relays = _transfer(content, targets, notify)
    wrong = [number for number, relay in enumerate(relays) if isinstance(relay.error, RunFailedError)]
    # what an earlier copy had left there was damaged, and is removed now
    again = _transfer(content, [targets[number] for number in wrong], notify)
    for number, relay in zip(wrong, again, strict=True):
        relays[number] = relay
    alone = [relay.target for relay in relays if relay.without_python]
    direct = dict(zip(map(id, alone), fan_out(alone, otherwise, timeout_s=WITHOUT_END_S), strict=True))
    return tuple(direct.get(id(relay.target)) or relay.outcome() for relay in relays)


def _transfer(content: FolderToSend, targets: Sequence[Destination], notify: Notify) -> list[_Relay]:
    relays = [_Relay(target, content) for target in targets]
    try:
        _Transfer(content, relays, notify).run()
    finally:
        for relay in relays:
            relay.closed = True
    return relays


class _Relay:
    """The program on one node, and what it has said last."""

    def __init__(self, target: Destination, content: FolderToSend) -> None:
        self.target, self.node, self.name = target, target.node, target.node.name
        self.content = content
        self.needed = sum(file.size for file in content.files[target.skipped :])
        self.state = "starting"
        """`starting`, then as the program says, then `ended`."""
        self.without_python = self.closed = self.lost = self.done = False
        self.error: OrchError | None = None
        self.unreadable: OrchError | None = None
        """The controller cannot read a file."""
        self.said_at = time.monotonic()
        self.idle_s, self.port, self.came, self.fed = 0.0, 0, 0, 0
        self.place, self.folder = "", target.folder
        self.begun: list[int] = []
        self.at = (0, 0)
        self.feeds, self.is_fed = 0, False

    @property
    def ended(self) -> bool:
        return self.state == "ended"

    @property
    def waits(self) -> bool:
        """Whether files are missing, and no other sends them."""
        return not self.is_fed and not self.done and self.state in ("ready", "waiting", "receiving")

    @property
    def have(self) -> list[int]:
        """Bytes of each file that are there."""
        number, offset = self.at
        sizes = [file.size for file in self.content.files[:number]]
        return [*sizes, *([offset] if number < len(self.begun) else []), *self.begun[number + 1 :]]

    @property
    def present(self) -> int:
        return sum(self.begun) - sum(file.size for file in self.content.files[: self.target.skipped]) + self.came

    def outcome(self) -> Outcome[Destination, Delivered]:
        if self.done:
            return Outcome(self.target, result=Delivered(folder=self.folder, came=self.came, fed=self.fed))
        return Outcome(self.target, error=self.error or _unreachable(self))

    def follow(self, token: str, said: Callable[[_Relay, dict[str, Any]], None]) -> None:
        """Start the program and pass on its lines until it ends."""
        try:
            self._start(token)
            source = Path(relay_program.__file__).read_text("utf-8")
            lines = self.node.stream(["python3", "-c", source, "relay", self.place], timeout_s=WITHOUT_END_S)
            with closing(lines):  # type: ignore[type-var]  # a generator on every node
                for line in _lines(lines):
                    said(self, _read_line(line, self.content.files, self.name))
                    if self.closed:
                        return
        except Exception as error:
            said(self, {"state": "ended", "error": as_error(error, node=self.name)})
        else:
            said(self, {"state": "ended"})

    def _start(self, token: str) -> None:
        files = [[file.name, file.size, file.sha256, file.mode] for file in self.content.files]
        config = {
            "token": token,
            "address": self.node.address,
            "target": self.target.folder,
            "files": files,
            "skipped": self.target.skipped,
            "links": dict(self.content.links),
            "folders": list(self.content.folders),
        }
        made = self.node.run(["sh", "-c", _BEGIN], stdin=json.dumps(config).encode(), timeout_s=STARTING_S)
        self.without_python = made.exit_code == _NO_PYTHON
        self.place = made.check("preparing the copy", hint=f"is /tmp full? orch doctor --nodes {self.name}").strip()

    def feed(self, route: Sequence[_Relay]) -> None:
        """Send from the controller what the node lacks; it sends to the nodes of the route."""
        have = self.have
        header = json.dumps(
            {"route": [[one.name, one.node.address, one.port, False] for one in route], "have": have}
        ).encode()

        def chunks() -> Iterator[bytes]:
            yield struct.pack(">I", len(header)) + header
            for file, offset in zip(self.content.files, have, strict=True):
                for chunk in _exactly(self.content.read(file, offset), file, offset) if offset < file.size else ():
                    if self.closed or self.ended:
                        return
                    self.fed += len(chunk)
                    yield chunk

        def run() -> None:
            try:
                source = Path(relay_program.__file__).read_text("utf-8")
                argv = ["python3", "-c", source, "feed", f"{self.place}/socket"]
                self.node.run(argv, stdin=_kept(chunks(), self), timeout_s=WITHOUT_END_S)
            except OrchError:
                return  # the relay itself ends, or is silent
            finally:
                self.is_fed = False

        self.is_fed, self.feeds = True, self.feeds + 1
        Thread(target=run, daemon=True).start()


@dataclass
class _Transfer:
    """Start relays, feed them, and listen to them until all have ended."""

    content: FolderToSend
    relays: Sequence[_Relay]
    notify: Notify
    said: SimpleQueue[tuple[_Relay, dict[str, Any]]] = field(default_factory=SimpleQueue)
    chain: list[_Relay] = field(default_factory=list)

    def run(self) -> None:
        token = secrets.token_hex(32)
        for relay in self.relays:
            Thread(target=relay.follow, args=(token, lambda *it: self.said.put(it)), daemon=True).start()
        while any(relay.state == "starting" for relay in self.relays):
            self._hear()
        ready = [relay for relay in self.relays if relay.state == "ready"]
        # a node sends on only what it receives itself; then: the less the first lacks, the less the controller sends
        ready.sort(key=lambda relay: (relay.target.skipped, relay.port == 0, -relay.present))
        self.chain = ready
        if ready:
            ready[0].feed([relay for relay in ready[1:] if relay.port])
        while not all(relay.ended for relay in self.relays):
            self._hear()
            for unreadable in [relay.unreadable for relay in self.relays if relay.unreadable]:
                raise unreadable
            for number, relay in enumerate(self.chain):
                if relay.waits and self._is_left_alone(number):
                    self._feed(number)

    def _hear(self) -> None:
        """Take the next line of any relay; note those that are silent."""
        try:
            relay, words = self.said.get(timeout=1)
            if not relay.ended:
                self._note(relay, words)
        except Empty:
            pass
        for relay in self.relays:
            limit_s = STARTING_S if relay.state == "starting" else QUIET_S
            if not relay.ended and time.monotonic() - relay.said_at > limit_s:
                relay.state, relay.closed = "ended", True

    def _note(self, relay: _Relay, words: Mapping[str, Any]) -> None:
        relay.said_at = time.monotonic()
        if name := words.get("lost"):
            for other in self.relays:
                other.lost = other.lost or (other.name == name and bool(words.get("last")))
            self.notify(relay.name, Progress(text=f"cannot send to {name}: {words.get('why')}"))
            return
        relay.state = str(words["state"])
        relay.came, relay.folder = int(words.get("came", relay.came)), words.get("target", relay.folder)
        relay.idle_s = float(words.get("idle", 0.0))
        if relay.state == "ready" and "have" in words:
            relay.begun, relay.port = words["have"], words["port"]
            relay.at = (0, relay.begun[0] if relay.begun else 0)
            relay.lost = not relay.port
            if relay.needed - relay.present + SPARE_BYTES > words["free"]:
                relay.error, relay.state = _no_room(relay, words["free"]), "ended"
                relay.closed = True
        elif "file" in words:
            relay.at = (words["file"], words["offset"])
        if relay.state == "failed":
            relay.error = relay.error or _failure(relay, words)
        elif relay.state == "done":
            relay.done = True
        elif relay.state == "ended":
            found = words.get("error")
            relay.error = relay.error or (None if isinstance(found, NodeUnreachableError) and relay.place else found)
        if relay.state in ("receiving", "done", "checking"):
            text = {"receiving": "receiving", "checking": "comparing SHA-256"}.get(relay.state, "received")
            self.notify(relay.name, Progress(text=text, done=relay.present, total=relay.needed))

    def _is_left_alone(self, number: int) -> bool:
        relay = self.chain[number]
        earlier = [one for one in self.chain[:number] if not one.ended]
        return relay.idle_s > UNFED_S and (relay.lost or not earlier)

    def _feed(self, number: int) -> None:
        relay = self.chain[number]
        if relay.feeds >= FEEDS:
            relay.closed, relay.state = True, "ended"
            relay.error = CommandFailedError(f"{FEEDS} tries to send {self.content.what} broke off", node=relay.name)
            return
        first = not any(one for one in self.chain[:number] if not one.ended)
        relay.lost, relay.idle_s = False, 0.0
        relay.feed([one for one in self.chain[number + 1 :] if one.port and not one.ended and first])


def _kept(chunks: Iterator[bytes], relay: _Relay) -> Iterator[bytes]:
    """Keep an error of the controller's files: another thread reads them."""
    try:
        yield from chunks
    except OSError as error:
        place = error.filename or relay.content.what
        relay.unreadable = ConfigError(f"{place} cannot be read: {error.strerror or error}", hint=f"ls -l {place}")


def _exactly(chunks: Iterator[bytes], file: FileToSend, offset: int) -> Iterator[bytes]:
    """Content of a file; OSError if it has become shorter, as the files after it would be shifted."""
    left = file.size - offset
    for chunk in chunks:
        yield chunk[:left]
        left -= min(left, len(chunk))
    if left:
        raise OSError(0, "it has become shorter while it was copied", file.name)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
        if len(rest) > LINE_LIMIT:
            raise CommandFailedError("its answer about a copy has no end")


_NUMBERS = ("port", "came", "free", "file", "offset")
_TEXTS = ("state", "kind", "why", "lost", "target")


def _read_line(line: bytes, files: Sequence[FileToSend], node: str) -> dict[str, Any]:
    """A line of a node's relay: its values are of the right kind, and within their bounds."""
    try:
        words = json.loads(line)
        sizes = [file.size for file in files]
        held = words.get("have", sizes)
        valid = (
            all(isinstance(words.get(name, ""), str) for name in _TEXTS)
            and all(isinstance(words.get(name, 0), int) and words.get(name, 0) >= 0 for name in _NUMBERS)
            and isinstance(words.get("idle", 0.0), int | float)
            and words.get("port", 0) <= 65535
            and words.get("file", 0) <= len(files)
            and all(isinstance(there, int) and 0 <= there <= size for there, size in zip(held, sizes, strict=True))
            and ("state" in words or "lost" in words)
        )
        if not valid:
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise CommandFailedError("its answer about a copy is not valid", node=node) from None
    return dict(words)


_AGAIN = "then run the same command again: it continues where this one ended"


def _unreachable(relay: _Relay) -> OrchError:
    return NodeUnreachableError(
        f"it did not answer any more while {relay.content.what} was copied to it",
        node=relay.name,
        hint=f"orch doctor --nodes {relay.name}   # {_AGAIN}",
    )


def _no_room(relay: _Relay, free: int) -> OrchError:
    missing = relay.needed - relay.present
    return PreflightError(
        f"{relay.content.what} needs {missing / 1e6:.0f} MB and {SPARE_BYTES / 1e6:.0f} MB to spare, and "
        f"{free / 1e6:.0f} MB are free in {relay.folder}",
        node=relay.name,
        hint=f"orch shell {relay.name}   # make room: df -h; or leave the node out: --nodes '!{relay.name}'",
    )


def _failure(relay: _Relay, words: Mapping[str, Any]) -> OrchError:
    kind, why = str(words.get("kind")), str(words.get("why"))
    if kind == "full":
        return PreflightError(why, node=relay.name, hint=f"orch shell {relay.name}   # make room: df -h; {_AGAIN}")
    if kind == "busy":
        return ConflictError(why, node=relay.name, hint="wait for the other command, then run this one again")
    if kind == "changed":
        return RunFailedError(why, node=relay.name, hint="did it change meanwhile? Run the same command again")
    return CommandFailedError(
        f"copying {relay.content.what} failed: {why}", node=relay.name, hint=f"orch doctor --nodes {relay.name}"
    )
