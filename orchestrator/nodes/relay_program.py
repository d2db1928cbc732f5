"""Runs on a node's host by its own python3: receive files, write them, and send them to the next node meanwhile.

    relay FOLDER    receive the files that `config.json` in FOLDER describes; FOLDER is removed
    feed SOCKET     copy stdin to the socket of a relay on this node

The source is handed to `python3 -c`: standard library alone, Python 3.8 or newer. An input is a local socket in FOLDER,
for the controller, or a TCP connection whose both ends prove that they know the token, which is never sent. It begins
with a header: the nodes to send to, one after the other, and how many bytes of each file its sender leaves out. The
rest is content, in the order of the files. A copy that broke off is continued, also by another input. SHA-256 decides
whether a file is what was meant. Lines of JSON on stdout, one a second at least: a relay whose reader is gone ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import queue
import shutil
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

CHUNK = 1 << 20
PROOF = 32
SILENT_S = 10.0
"""Silence after which another input may replace the present one."""
STUCK_S = 15.0
"""Time in which a next node that takes no byte is given up."""
ALONE_S = 120.0
"""Silence after which a relay ends."""


class _Refused(Exception):
    """The end of this relay, for a reason that no other input changes: a word for programs, then one for people."""


class _Relay:
    """One node's files: how much of each is there, who sends, who is sent to."""

    def __init__(self, config: dict[str, Any], own: Path, target: Path) -> None:
        self.own, self.target = own, target
        self.files, self.skipped = config["files"], config["skipped"]  # each: path, bytes, SHA-256, mode
        self.links, self.folders, self.token = config["links"], config["folders"], config["token"].encode()
        self.partial = self.target.with_name(self.target.name + ".partial")
        self.partial.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.partial, os.O_RDONLY)
        self.root = Path(f"/proc/self/fd/{handle}")  # the same folder after it has got its final name
        self.lock(handle)
        self.at = [self.begun(number) for number in range(len(self.files))]
        self.hashes: dict[int, Any] = {}
        self.file, self.came, self.state = 0, 0, "waiting"
        self.inputs: queue.Queue[tuple[socket.socket, Any]] = queue.Queue()
        self.heard, self.connected = time.monotonic(), False
        self.forwarder: threading.Thread | None = None
        self.changed, self.speaking, self.admitting = threading.Condition(), threading.Lock(), threading.Lock()

    def lock(self, handle: int) -> None:
        for _ in range(100):  # an earlier relay ends a second after its reader
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.1)
        raise _Refused("busy", "another copy of the same files to this node is under way")

    def begun(self, number: int) -> int:
        """Bytes of a file that an earlier copy has left here."""
        name, size = self.files[number][:2]
        try:
            there: int = size if number < self.skipped else (self.root / name).stat().st_size
        except OSError:
            return 0
        if there > size:
            (self.root / name).unlink()
        return there if there <= size else 0

    def say(self, **words: object) -> None:
        with self.speaking:
            try:
                sys.stdout.write(json.dumps(words) + "\n")
                sys.stdout.flush()
            except OSError:
                shutil.rmtree(self.own, ignore_errors=True)
                os._exit(1)

    def beat(self) -> None:
        while True:
            time.sleep(1)
            idle = time.monotonic() - self.heard
            at = self.at[self.file] if self.file < len(self.at) else 0
            self.say(state=self.state, file=self.file, offset=at, came=self.came, idle=round(idle, 1))

    def listen(self, server: socket.socket, trusted: bool) -> None:
        while True:
            connection = server.accept()[0]
            if threading.active_count() > 64:
                connection.close()
            else:
                threading.Thread(target=self.admit, args=(connection, trusted), daemon=True).start()

    def admit(self, connection: socket.socket, trusted: bool) -> None:
        """Take a connection as the input, unless another one is sending."""
        try:
            connection.settimeout(5)
            if not trusted:
                nonce = os.urandom(PROOF)
                connection.sendall(nonce)
                asked, proof = exactly(connection, PROOF), exactly(connection, PROOF)
                if not hmac.compare_digest(proof, self.proof(b"send", nonce)):
                    raise ConnectionError("it does not know the token")
                connection.sendall(self.proof(b"receive", asked))
            end = time.monotonic() + 3
            while self.connected and time.monotonic() - self.heard < SILENT_S:
                if time.monotonic() > end:
                    raise ConnectionError("another input is sending")
                time.sleep(0.05)
            if not trusted:
                send_words(connection, self.at)
            self.inputs.put((connection, receive_words(connection)))
        except (OSError, ValueError):
            connection.close()

    def proof(self, role: bytes, nonce: bytes) -> bytes:
        return hmac.new(self.token, role + nonce, hashlib.sha256).digest()

    def receive(self) -> None:
        """Take inputs, one after the other, until everything is there."""
        while True:
            try:
                connection, header = self.inputs.get(timeout=1)
            except queue.Empty:
                if time.monotonic() - self.heard > ALONE_S:
                    raise _Refused("silent", f"nothing came for {ALONE_S:.0f} s") from None
                continue
            self.heard, self.connected, self.state = time.monotonic(), True, "receiving"
            if header["route"] and not self.forwarder:
                self.forwarder = threading.Thread(target=self.forward, args=(header["route"],), daemon=True)
                self.forwarder.start()
            try:
                return self.take(connection, header["have"])
            except OSError:  # another input may continue
                self.state = "waiting"
            finally:
                self.connected = False
                connection.close()

    def take(self, connection: socket.socket, base: list[int]) -> None:
        """The rest of all files from an input that leaves out the first `base` bytes of each."""
        connection.settimeout(SILENT_S)
        for number, (name, size, _, _) in enumerate(self.files):
            self.file = number
            doubled = self.at[number] - base[number]
            if doubled < 0:
                raise ConnectionError("there is a gap")
            while doubled > 0:
                doubled -= len(self.some(connection, min(CHUNK, doubled)))
            while self.at[number] < size:
                self.write(number, name, self.some(connection, min(CHUNK, size - self.at[number])))
        self.file = len(self.files)

    def some(self, connection: socket.socket, most: int) -> bytes:
        while True:
            try:
                chunk = connection.recv(most)
            except socket.timeout:  # noqa: UP041  # a TimeoutError from Python 3.10 on
                if self.inputs.empty() and time.monotonic() - self.heard < ALONE_S:
                    continue
                raise
            if not chunk:
                raise ConnectionError("the input ended")
            self.heard = time.monotonic()
            return chunk

    def write(self, number: int, name: str, chunk: bytes) -> None:
        """Append to a file."""
        try:
            if not self.at[number]:
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                self.hashes[number] = hashlib.sha256()
            with (self.root / name).open("ab") as out:
                out.write(chunk)
        except OSError as error:
            kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "disk"
            raise _Refused(kind, f"writing {name} failed: {error.strerror}") from None
        if number in self.hashes:
            self.hashes[number].update(chunk)
        with self.changed:
            self.at[number] += len(chunk)
            self.came += len(chunk)
            self.changed.notify_all()

    def forward(self, route: list[list[Any]]) -> None:
        """Send everything to the first node of the route that takes it, and to the others through it.

        One that cannot be reached comes last in the route: another node may reach it.
        """
        while route:
            name, address, port, is_last = route.pop(0)
            try:
                with socket.create_connection((address, port), timeout=5) as connection:
                    self.send(connection, route)
                    return
            except (OSError, ValueError) as error:
                is_last = is_last or not route
                self.say(lost=name, why=getattr(error, "strerror", None) or str(error), last=is_last)
                if not is_last:
                    route.append([name, address, port, True])

    def send(self, connection: socket.socket, route: list[list[Any]]) -> None:
        connection.settimeout(10)
        nonce, asked = exactly(connection, PROOF), os.urandom(PROOF)
        connection.sendall(asked + self.proof(b"send", nonce))
        if not hmac.compare_digest(exactly(connection, PROOF), self.proof(b"receive", asked)):
            raise ConnectionError("something else answers there")
        base = receive_words(connection)
        send_words(connection, {"route": route, "have": base})
        connection.settimeout(STUCK_S)
        for number, (name, size, _, _) in enumerate(self.files):
            offset = base[number]
            if offset < size and number < self.skipped:
                raise ConnectionError("it needs a file that this node does not receive")
            while offset < size:
                with self.changed:
                    while self.at[number] <= offset:
                        self.changed.wait()
                    ready = min(CHUNK, self.at[number] - offset)
                with (self.root / name).open("rb") as content:
                    content.seek(offset)
                    chunk = memoryview(content.read(ready))
                offset += len(chunk)
                while chunk:
                    chunk = chunk[connection.send(chunk) :]

    def finish(self) -> None:
        """Compare all files with their SHA-256, then give the folder its final name."""
        self.state, wrong = "checking", ""
        for number, (name, size, digest, mode) in enumerate(self.files[self.skipped :], self.skipped):
            file = self.root / name
            if not size:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            found = self.hashes[number] if number in self.hashes else sum_of(file)
            if found.hexdigest() != digest:
                file.unlink()
                wrong = wrong or name
            else:
                file.chmod(mode)
        if wrong:
            raise _Refused("changed", f"{wrong} is not what was meant to be sent: its SHA-256 is another one")
        for name in self.folders:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name, to in self.links.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            if not (self.root / name).is_symlink():
                (self.root / name).symlink_to(to)
        os.sync()
        if self.target.is_dir():
            shutil.rmtree(self.partial, ignore_errors=True)
        else:
            self.partial.rename(self.target)

    def run(self, address: str) -> None:
        local = socket.socket(socket.AF_UNIX)
        local.bind(str(self.own / "socket"))
        local.listen(16)
        threading.Thread(target=self.listen, args=(local, True), daemon=True).start()
        port, server = 0, socket.socket()
        try:
            server.bind((address, 0))
            server.listen(16)
            port = server.getsockname()[1]
            threading.Thread(target=self.listen, args=(server, False), daemon=True).start()
        except OSError:  # not an address of this machine: the controller alone can send
            server.close()
        free = shutil.disk_usage(self.partial).free
        self.say(state="ready", port=port, have=self.at, free=free, target=str(self.target))
        threading.Thread(target=self.beat, daemon=True).start()
        self.receive()
        self.finish()
        self.say(state="done", came=self.came)
        if self.forwarder:
            self.state = "sending on"
            self.forwarder.join()


def exactly(connection: socket.socket, size: int) -> bytes:
    """This many bytes. ConnectionError: the other side ended before."""
    got = b""
    while len(got) < size:
        piece = connection.recv(min(CHUNK, size - len(got)))
        if not piece:
            raise ConnectionError("it closed the connection")
        got += piece
    return got


def send_words(connection: socket.socket, words: object) -> None:
    text = json.dumps(words).encode()
    connection.sendall(struct.pack(">I", len(text)) + text)


def receive_words(connection: socket.socket) -> Any:
    return json.loads(exactly(connection, struct.unpack(">I", exactly(connection, 4))[0]))


def sum_of(file: Path) -> Any:
    content = hashlib.sha256()
    with file.open("rb") as source:
        for chunk in iter(lambda: source.read(CHUNK), b""):
            content.update(chunk)
    return content


def feed(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ALONE_S)
        connection.connect(place)
        for chunk in iter(lambda: os.read(0, CHUNK), b""):
            connection.sendall(chunk)


def relay(folder: Path) -> int:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        (folder / "config.json").unlink()
        target = Path(config["target"]).expanduser()
        if target.is_dir():
            sys.stdout.write(json.dumps({"state": "done", "target": str(target)}) + "\n")
        else:
            _Relay(config, folder, target).run(config["address"])
        return 0
    except _Refused as error:
        sys.stdout.write(json.dumps({"state": "failed", "kind": error.args[0], "why": error.args[1]}) + "\n")
    except OSError as error:
        sys.stdout.write(json.dumps({"state": "failed", "kind": "disk", "why": str(error)}) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
    return 1


if __name__ == "__main__":
    if sys.argv[1] == "feed":
        feed(sys.argv[2])
    else:
        os._exit(relay(Path(sys.argv[2])))  # threads that still wait are not waited for
