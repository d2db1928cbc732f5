"""Runs on a node's host by its own python3: receive files, read them back from the disk, and send them to other nodes.

The source is handed to `python3 -c`: standard library alone, Python 3.8 or newer. Its stdin brings the `RelayTask`, any
number of `PullFrom`, and content where it has asked for it; it ends with its stdin. Its stdout has the reports of
`orchestrator/fleet/relay_messages.py`, one a second at least. Another node connects over TCP: both ends prove that they
know the token, which is never sent, and the one that connects names the first file that it lacks, the offset, and where
the content ends. The answer is content alone, while it arrives here. What arrived stays, and the next copy continues.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import queue
import select
import shutil
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Callable  # noqa: UP035  # collections.abc has it from Python 3.9 on

CHUNK = 1 << 20
PROOF = 32
RANGE = struct.Struct(">QQQ")
"""A file, an offset in it, and the file before which the content ends."""
GREETING_S = 5.0
"""Seconds for a connection, and for each part of a proof."""
STUCK_S = 120.0
"""Time after which a connection to a node that takes no byte is closed."""
CONNECTIONS = 64

speaking = threading.Lock()


class _LeaveSource(Exception):
    """Another order, or a file that differs from its SHA-256 although one sender has sent all of it."""


class _Relay:
    """One node's files: how much of each is there, and which of them the disk has given back."""

    def __init__(self, task: dict[str, Any], target: Path) -> None:
        self.task, self.target = task, target
        self.files, self.skipped = task["files"], task["skipped"]  # each: path, bytes, SHA-256, mode
        self.partial = target.with_name(target.name + ".partial")
        self.partial.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.partial, os.O_RDONLY)
        self.root = Path(f"/proc/self/fd/{handle}")  # the same folder after it has got its final name
        for seconds in (1, 2, 3, 4, None):  # an earlier relay ends with its connection
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(seconds) if seconds else fail("busy", "another copy of the same files is under way")
        self.at = [self.begun(number) for number in range(len(self.files))]
        self.received = self.verified = 0
        self.sums: dict[tuple[int, str], Any] = {}
        """SHA-256 of the file that is being received, while all of it has come from one sender."""
        self.unverified: queue.Queue[int] = queue.Queue()
        self.changed = threading.Condition()

    def begun(self, number: int) -> int:
        """Bytes of a file that an earlier copy has left here."""
        name, size = self.files[number][:2]
        try:
            there: int = size if number < self.skipped else (self.root / name).stat().st_size
        except OSError:
            return 0
        return there if there <= size else 0

    def run(self) -> int:
        """Bytes that have come, once everything is in its place."""
        port, server = 0, socket.socket()
        try:
            server.bind((self.task["address"], 0))
            server.listen(16)
            port = server.getsockname()[1]
            start(self.listen, server)
        except OSError:  # not an address of this machine: no other node can connect
            server.close()
        free = shutil.disk_usage(self.partial).free
        say("ready", port=port, held=sum(self.at), free=free, folder=str(self.target))
        start(self.beat)
        start(self.verify)
        for number in range(self.skipped, len(self.files)):
            if self.files[number][1] == self.at[number] > 0:
                self.unverified.put(number)
        self.receive()
        self.finish()
        return self.received

    def beat(self) -> None:
        while True:
            time.sleep(1)
            say("moved", held=sum(self.at), received=self.received, verified=self.verified)

    # ── receive ──

    def receive(self) -> None:
        """Follow orders until every file is there, and the disk has given it back."""
        order: dict[str, Any] = {}
        while True:
            missing = self.missing()
            if not missing:
                self.unverified.join()
                if not self.missing():
                    return
                continue
            order = order or read_frame()
            try:
                self.take(order, missing)
            except _LeaveSource as left:
                other, wrong = left.args
                if not other:
                    say("broken", source=order["source"], why="it sends wrong bytes", wrong=wrong)
                order = other
            except OSError as error:
                say("broken", source=order["source"], why=error.strerror or str(error), wrong=None)
                order = {}

    def missing(self) -> tuple[int, int, int] | None:
        """The first range of files that are not complete; only its first file may have been begun."""
        first = next((n for n in range(self.skipped, len(self.files)) if self.at[n] < self.files[n][1]), None)
        if first is None:
            return None
        end = first + 1
        while end < len(self.files) and not self.at[end]:
            end += 1
        return first, self.at[first], end

    def take(self, order: dict[str, Any], missing: tuple[int, int, int]) -> None:
        if not order["port"]:
            say("wants", file=missing[0], offset=missing[1], end=missing[2])
            return self.fill(missing, read_input, "")
        with socket.create_connection((order["address"], order["port"]), timeout=GREETING_S) as connection:

            def read(most: int) -> bytes:
                if 0 in select.select([connection.fileno(), 0], [], [])[0]:
                    raise _LeaveSource(read_frame(), None)
                return connection.recv(most)

            request, asked, nonce = RANGE.pack(*missing), os.urandom(PROOF), exactly(read, PROOF)
            connection.sendall(asked + self.proof(b"pull", nonce + request) + request)
            if not hmac.compare_digest(exactly(read, PROOF), self.proof(b"send", asked)):
                raise ConnectionError("something else answers there")
            return self.fill(missing, read, order["source"])

    def fill(self, missing: tuple[int, int, int], read: Callable[[int], bytes], sender: str) -> None:
        """Write what `read` gives."""
        wrong: int | None = None
        for number in range(missing[0], missing[2]):
            size, digest = self.files[number][1:3]
            while self.at[number] < size:
                self.write(number, exactly(read, 1, min(CHUNK, size - self.at[number])), sender)
            content = self.sums.pop((number, sender), None)
            if content and content.hexdigest() != digest:
                self.forget(number)
                wrong = number
                if sender:
                    break
            elif size:
                self.unverified.put(number)
        if wrong is not None:  # stdin was read to the end of the content
            raise _LeaveSource({}, wrong)

    def write(self, number: int, chunk: bytes, sender: str) -> None:
        """Append to a file."""
        name, begins = self.files[number][0], not self.at[number]
        try:
            if begins:
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                self.sums = {(number, sender): hashlib.sha256()}
            with (self.root / name).open("wb" if begins else "ab") as out:
                out.write(chunk)
        except OSError as error:
            kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "disk"
            fail(kind, f"writing {name} failed: {error.strerror}")
        if (number, sender) in self.sums:
            self.sums[number, sender].update(chunk)
        with self.changed:
            self.at[number] += len(chunk)
            self.received += len(chunk)
            self.changed.notify_all()

    def forget(self, number: int) -> None:
        with self.changed:
            self.at[number] = 0

    def verify(self) -> None:
        """Read complete files back. A wrong one is received again: an earlier copy or two senders may have made it."""
        wrong: set[int] = set()
        while True:
            batch = [self.unverified.get()]
            while not self.unverified.empty():
                batch.append(self.unverified.get())
            if len(batch) > 1:
                os.sync()
            for number in batch:
                name, size, digest = self.files[number][:3]
                if stored(self.root / name) == digest:
                    self.verified += size
                elif number in wrong:
                    fail("disk", f"the disk gives back other bytes of {name} than were written: see `dmesg` there")
                else:
                    wrong.add(number)
                    self.forget(number)
                self.unverified.task_done()

    def finish(self) -> None:
        """Make folders and links, then give the folder its final name."""
        for name, size, _, mode in self.files[self.skipped :]:
            file = self.root / name
            if not size:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"")
            file.chmod(mode)
        for name in self.task["folders"]:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name, to in self.task["links"].items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            if not (self.root / name).is_symlink():
                (self.root / name).symlink_to(to)
        os.sync()
        if self.target.is_dir():
            shutil.rmtree(self.partial, ignore_errors=True)
        else:
            self.partial.rename(self.target)

    # ── send ──

    def proof(self, role: bytes, what: bytes) -> bytes:
        return hmac.new(self.task["token"].encode(), role + what, hashlib.sha256).digest()

    def listen(self, server: socket.socket) -> None:
        while True:
            connection = server.accept()[0]
            if threading.active_count() > CONNECTIONS:
                connection.close()
            else:
                threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(GREETING_S)
                nonce = os.urandom(PROOF)
                connection.sendall(nonce)
                asked, proof, request = (exactly(connection.recv, size) for size in (PROOF, PROOF, RANGE.size))
                if hmac.compare_digest(proof, self.proof(b"pull", nonce + request)):
                    connection.sendall(self.proof(b"send", asked))
                    connection.settimeout(STUCK_S)
                    self.send(connection, *RANGE.unpack(request))
            except OSError:
                return  # the other node reports that it broke off

    def send(self, connection: socket.socket, file: int, offset: int, end: int) -> None:
        for number in range(max(file, self.skipped), min(end, len(self.files))):
            name, size = self.files[number][:2]
            while offset < size:
                with self.changed:
                    self.changed.wait_for(lambda: self.at[number] > offset)  # noqa: B023  # it is called here alone
                    ready = min(CHUNK, self.at[number] - offset)
                with (self.root / name).open("rb") as content:
                    content.seek(offset)
                    chunk = content.read(ready)
                connection.sendall(chunk)
                offset += len(chunk)
            offset = 0


def stored(file: Path) -> str:
    """SHA-256 of what the disk gives back: pages in memory are written, then dropped."""
    content = hashlib.sha256()
    with file.open("rb") as source:
        os.fsync(source.fileno())
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for chunk in iter(lambda: source.read(CHUNK), b""):
            content.update(chunk)
    return content.hexdigest()


def exactly(read: Callable[[int], bytes], size: int, most: int = 0) -> bytes:
    """Read this many bytes, or up to `most`. ConnectionError: there are fewer."""
    got = b""
    while len(got) < size:
        piece = read(min(CHUNK, (most or size) - len(got)))
        if not piece:
            raise ConnectionError("it closed the connection")
        got += piece
    return got


def read_input(most: int) -> bytes:
    """Read at most this many bytes of stdin, whose end is that of the relay."""
    return os.read(0, most) or os._exit(0)


def read_frame(read: Callable[[int], bytes] = read_input) -> dict[str, Any]:
    """A message of the controller: four bytes with its length, then a JSON object. ConnectionError: it is cut off;
    ValueError: it is none."""
    try:
        message = json.loads(exactly(read, struct.unpack(">I", exactly(read, 4))[0]))
    except RecursionError as error:
        raise ValueError("not a message: " + str(error)) from None
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def say(what: str, **values: object) -> None:
    line = (json.dumps({what: values}) + "\n").encode()
    with speaking:
        try:
            while line:
                line = line[os.write(1, line) :]
        except OSError:  # the controller is gone
            os._exit(1)


def fail(kind: str, why: str) -> None:
    """End the relay, from whichever thread."""
    say("failed", kind=kind, why=why)
    os._exit(1)


def guarded(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except Exception as error:
        fail("disk", str(error) if isinstance(error, OSError) else repr(error))


def start(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=guarded, args=(work, *arguments), daemon=True).start()


def main() -> None:
    task = read_frame()
    target = Path(task["folder"]).expanduser()
    say("finished", received=0 if target.is_dir() else _Relay(task, target).run())
    while True:  # and send to others, until stdin ends
        read_frame()


if __name__ == "__main__":
    guarded(main)
