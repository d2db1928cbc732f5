"""Runs in the image beside TensorBoard: carry connections to it over stdin and stdout, and end with them.

The source is handed to `python -c`, standard library alone. Argument: JSON with `links` (name: folder, for the runs
that this machine holds) and `port` (0: any free one). Frames in both directions: kind, connection, length, content.
TensorBoard listens on loopback; in a container without a network nothing else reaches that. At the end of stdin, or
after a minute without a frame (the other end sends one every few seconds), TensorBoard is ended, and this program.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HEAD = struct.Struct(">BII")
OPEN, DATA, CLOSE, FILE, ALIVE, READY, FAILED = range(7)
"""Begin of a connection, its bytes, its end; a piece of a file; a sign of life; TensorBoard answers; it does not."""
CHUNK = 32 * 1024
SILENT_S = 60.0
STARTING_S = 120.0
MOST_BYTES = 512 * 1024 * 1024
"""Bytes of all copied files: they are in memory."""


class _Board:
    """TensorBoard, and the connections to it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.logs = Path(tempfile.mkdtemp(prefix="orch-board-"))
        for name, folder in config["links"].items():
            (self.logs / name).parent.mkdir(parents=True, exist_ok=True)
            (self.logs / name).symlink_to(folder)
        self.port = config["port"] or _free_port()
        self.connections: dict[int, socket.socket] = {}
        self.writing, self.heard, self.copied = threading.Lock(), time.monotonic(), 0
        words = ("--logdir", str(self.logs), "--host", "127.0.0.1", "--port", str(self.port))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *words, "--load_fast=false", "--reload_interval=5"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(self.logs),
        )  # fmt: skip
        self.said = b""

    def send(self, kind: int, number: int = 0, content: bytes = b"") -> None:
        with self.writing:
            sys.stdout.buffer.write(HEAD.pack(kind, number, len(content)) + content)
            sys.stdout.buffer.flush()

    def listen(self) -> None:
        """Keep the end of what TensorBoard writes; say why it ended."""
        assert self.process.stdout  # noqa: S101  # a pipe was asked for
        for line in self.process.stdout:
            self.said = (self.said + line)[-4000:]
        self.send(FAILED, 0, self.said or b"it ended without a line")
        self.end()

    def announce(self) -> None:
        """Say when it answers."""
        deadline = time.monotonic() + STARTING_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 2).close()
                return self.send(READY)
            except OSError:
                time.sleep(0.2)
        return self.send(FAILED, 0, self.said or b"it does not answer")

    def watch(self) -> None:
        while time.monotonic() - self.heard < SILENT_S:
            time.sleep(1)
        self.end()

    def end(self) -> None:
        self.process.kill()
        shutil.rmtree(self.logs, ignore_errors=True)
        os._exit(0)

    def serve(self) -> None:
        for work in (self.listen, self.announce, self.watch):
            threading.Thread(target=work, daemon=True).start()
        frames = sys.stdin.buffer
        while len(head := frames.read(HEAD.size)) == HEAD.size:
            kind, number, length = HEAD.unpack(head)
            content = frames.read(length)
            self.heard = time.monotonic()
            if kind == OPEN:
                threading.Thread(target=self.connect, args=(number,), daemon=True).start()
                self.wait_for(number)
            elif kind == DATA and (connection := self.connections.get(number)):
                try:
                    connection.sendall(content)
                except OSError:
                    connection.close()
            elif kind == CLOSE and (connection := self.connections.pop(number, None)):
                _shut(connection)
            elif kind == FILE:
                self.append(content)
        self.end()

    def wait_for(self, number: int) -> None:
        """The bytes of a connection come after its begin: wait until it is there, or is refused."""
        for _ in range(100):
            if number in self.connections:
                return
            time.sleep(0.02)

    def connect(self, number: int) -> None:
        try:
            connection = socket.create_connection(("127.0.0.1", self.port), 10)
        except OSError:
            return self.send(CLOSE, number)
        connection.settimeout(None)
        self.connections[number] = connection
        with contextlib.suppress(OSError):
            while content := connection.recv(CHUNK):
                self.send(DATA, number, content)
        self.connections.pop(number, None)
        connection.close()
        return self.send(CLOSE, number)

    def append(self, content: bytes) -> None:
        """Write a piece of a file: JSON with its name, a newline, its bytes."""
        head, _, piece = content.partition(b"\n")
        name = json.loads(head)["name"]
        self.copied += len(piece)
        if self.copied <= MOST_BYTES:
            file = self.logs / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as writing:
                writing.write(piece)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    _Board(json.loads(sys.argv[1])).serve()
