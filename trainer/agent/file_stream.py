"""Result files on a connection of their own, beside the one for messages, which a large file would hold up.

A node asks for files of rank 0's node, or offers its own, and is asked for them. For each, the sender writes a header
as a line of JSON, the content and a line with its SHA-256. Both sides check every name, size and content. Threads of
their own do this: messages never wait for a disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from contract.result_files import SIZE_LIMIT, ResultFile
from trainer.agent.messages import MisfitError, read_paths, values_of, whole
from trainer.agent.result_folder import CHUNK, RefusedFileError, ResultFolder

STALL_S = 30.0
"""Time without a byte after which a stream ends."""
LONGEST_LINE = 64 * 1024
LONGEST_PROBLEM = 300


@dataclass(frozen=True, kw_only=True)
class Received:
    """Result of a copy."""

    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    """First file that was not copied, and why; empty: all were."""


def send_files(connected: socket.socket, folder: ResultFolder, paths: Sequence[str]) -> None:
    """Send these files. One that cannot be read is named with the reason. OSError: the connection has ended."""
    connected.settimeout(STALL_S)
    for path in paths:
        try:
            with folder.reading(path) as descriptor:
                _send_file(connected, path, descriptor)
        except RefusedFileError as error:
            _send_line(connected, {"path": path, "problem": str(error)})


def _send_file(connected: socket.socket, path: str, descriptor: int) -> None:
    before, digest = os.fstat(descriptor), hashlib.sha256()
    _send_line(connected, {"path": path, "size": before.st_size})
    left = before.st_size
    while left:
        piece = os.read(descriptor, min(CHUNK, left))
        if not piece:
            raise ConnectionError("a file became shorter while it was read")
        digest.update(piece)
        connected.sendall(piece)
        left -= len(piece)
    after = os.fstat(descriptor)
    is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    _send_line(connected, {"sha256": digest.hexdigest() if is_same else ""})


def receive_files(connected: socket.socket, folder: ResultFolder, files: Sequence[ResultFile]) -> Received:
    """Write these files into the folder of the run, in the order in which they were asked for."""
    began, arrived, size, problems = time.monotonic(), 0, 0, list[str]()
    connected.settimeout(STALL_S)
    try:
        with folder.room(sum(file.size for file in files)) as room, connected.makefile("rb", CHUNK) as stream:
            for file in files:
                try:
                    _receive_file(stream, folder, file, room)
                    arrived, size = arrived + 1, size + file.size
                except RefusedFileError as error:
                    problems.append(f"{file.path}: {error}")
    except (OSError, RefusedFileError, MisfitError) as error:
        problems.append(str(error) or type(error).__name__)
    first = problems[0][:LONGEST_PROBLEM] if problems else ""
    return Received(files=arrived, bytes=size, seconds=time.monotonic() - began, problem=first)


def _receive_file(stream: io.IOBase, folder: ResultFolder, file: ResultFile, room: Path) -> None:
    """Write one file. RefusedFileError: it is not copied, and the stream continues. MisfitError, OSError: the stream
    ends."""
    header = _read_line(stream)
    if header.get("path") != file.path:
        raise MisfitError("a file that was not asked for")
    if problem := header.get("problem"):
        raise RefusedFileError(str(problem)[:LONGEST_PROBLEM])
    size = whole(header, "size", most=SIZE_LIMIT)
    if size != file.size:
        raise MisfitError(f"{file.path} has {size} bytes instead of {file.size}")
    with folder.writing(file, room) as incoming:
        while incoming.size < size:
            piece = stream.read(min(CHUNK, size - incoming.size))
            if not piece:
                raise ConnectionError("the stream ended within a file")
            incoming.write(piece)
        if _read_line(stream).get("sha256") != incoming.sha256:
            raise RefusedFileError("its content changed on the way, or while it was read")


def _send_line(connected: socket.socket, values: Mapping[str, Any]) -> None:
    connected.sendall(json.dumps(values).encode() + b"\n")


def _read_line(stream: io.IOBase) -> dict[str, Any]:
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("the stream ended")
    return values_of(line)


class FileServer:
    """Serves result files of rank 0's node, one stream for each node at a time, and receives those of other ranks."""

    def __init__(self, folder: ResultFolder, note: Callable[[str, str], None]) -> None:
        self._folder, self._note = folder, note
        self._streams: dict[int, socket.socket] = {}
        self.expected: dict[int, Sequence[ResultFile]] = {}
        """By rank of a node: files that it was asked to send."""

    def take(self, node_rank: int, connected: socket.socket) -> None:
        """Serve an authenticated node on this connection. A second stream of the same node ends its first."""
        self.drop(node_rank)
        self._streams[node_rank] = connected
        Thread(target=self._serve, args=(node_rank, connected), daemon=True, name="files").start()

    def drop(self, node_rank: int) -> None:
        if connected := self._streams.pop(node_rank, None):
            _shut(connected)

    def close(self) -> None:
        for node_rank in list(self._streams):
            self.drop(node_rank)

    def _serve(self, node_rank: int, connected: socket.socket) -> None:
        try:
            with connected:
                connected.settimeout(STALL_S)
                with connected.makefile("rb", 0) as stream:
                    request = _read_line(stream)
                if "offered" not in request:
                    send_files(connected, self._folder, read_paths(request, "wanted"))
                elif files := self.expected.pop(node_rank, ()):
                    _send_line(connected, {"wanted": [file.path for file in files]})
                    received = receive_files(connected, self._folder, files)
                    _send_line(connected, {"files": received.files, "problem": received.problem})
        except (OSError, MisfitError) as error:
            self._note(f"files {node_rank}", f"a stream of files has ended: {error}")


class FileCopy:
    """A copy between this node and rank 0's, in a thread of its own."""

    def __init__(
        self, connect: Callable[[], socket.socket], folder: ResultFolder, files: Sequence[ResultFile], *, upload: bool
    ) -> None:
        """`connect` opens an authenticated connection. `upload`: from this node to rank 0's."""
        self.result: Received | None = None
        """None while it runs."""
        self._connect, self._folder, self._files, self._upload = connect, folder, files, upload
        self._connected: socket.socket | None = None
        self._is_cancelled = False
        Thread(target=self._run, daemon=True, name="files").start()

    def cancel(self) -> None:
        """End the copy; an unfinished file is removed."""
        self._is_cancelled = True
        if self._connected:
            _shut(self._connected)

    def _run(self) -> None:
        began = time.monotonic()
        try:
            with self._connect() as self._connected:
                if self._is_cancelled:
                    _shut(self._connected)
                self._connected.settimeout(STALL_S)
                self.result = self._send(began) if self._upload else self._receive()
        except (OSError, MisfitError) as error:
            self.result = Received(seconds=time.monotonic() - began, problem=str(error)[:LONGEST_PROBLEM])

    def _receive(self) -> Received:
        assert self._connected  # noqa: S101  # called with a connection
        _send_line(self._connected, {"wanted": [file.path for file in self._files]})
        return receive_files(self._connected, self._folder, self._files)

    def _send(self, began: float) -> Received:
        assert self._connected  # noqa: S101  # called with a connection
        _send_line(self._connected, {"offered": True})
        with self._connected.makefile("rb", 0) as stream:
            send_files(self._connected, self._folder, read_paths(_read_line(stream), "wanted"))
            answer = _read_line(stream)
        files = whole(answer, "files", most=len(self._files))
        size = sum(file.size for file in self._files) if files == len(self._files) else 0
        problem = str(answer.get("problem", ""))[:LONGEST_PROBLEM]
        return Received(files=files, bytes=size, seconds=time.monotonic() - began, problem=problem)


def _shut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
