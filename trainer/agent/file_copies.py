"""Copies of result files on a connection of their own, beside the one for messages, which a large file would hold up.

A node asks for files of rank 0's node, or offers its own, and is asked for them. Threads of their own do this: messages
never wait for a disk.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread

from contract.result_files import ResultFile
from trainer.agent.file_stream import (
    LONGEST_PROBLEM,
    STALL_S,
    Received,
    read_line,
    receive_files,
    send_files,
    send_line,
)
from trainer.agent.messages import MisfitError, read_paths, whole
from trainer.agent.result_folder import ResultFolder


class FileServer:
    """Serves result files of rank 0's node, one stream for each node at a time, and receives those of other ranks."""

    def __init__(self, folder: ResultFolder, note: Callable[[str, str], None]) -> None:
        self._folder, self._note = folder, note
        self._streams: dict[int, socket.socket] = {}
        self.expected: dict[int, Sequence[ResultFile]] = {}
        """Files that a node was asked to send, by its rank."""
        self.moved = set[int]()
        """Ranks of the nodes to or from which bytes were copied since they were last removed from it."""

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
        moved = partial(self.moved.add, node_rank)
        try:
            with connected:
                connected.settimeout(STALL_S)
                with connected.makefile("rb", 0) as stream:
                    request = read_line(stream)
                if "offered" not in request:
                    send_files(connected, self._folder, read_paths(request, "wanted"), moved)
                elif files := self.expected.pop(node_rank, ()):
                    send_line(connected, {"wanted": [file.path for file in files]})
                    received = receive_files(connected, self._folder, files, moved)
                    send_line(connected, {"files": received.files, "problem": received.problem})
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
        try:
            Thread(target=self._run, daemon=True, name="files").start()
        except RuntimeError as error:  # no thread is left
            self.result = Received(problem=str(error))

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
        except Exception as error:  # whatever it is: the others wait for this node
            self.result = Received(seconds=time.monotonic() - began, problem=str(error)[:LONGEST_PROBLEM])

    def _receive(self) -> Received:
        assert self._connected  # noqa: S101  # called with a connection
        send_line(self._connected, {"wanted": [file.path for file in self._files]})
        return receive_files(self._connected, self._folder, self._files)

    def _send(self, began: float) -> Received:
        assert self._connected  # noqa: S101  # called with a connection
        send_line(self._connected, {"offered": True})
        with self._connected.makefile("rb", 0) as stream:
            send_files(self._connected, self._folder, read_paths(read_line(stream), "wanted"))
            answer = read_line(stream)
        files = whole(answer, "files", most=len(self._files))
        size = sum(file.size for file in self._files) if files == len(self._files) else 0
        problem = str(answer.get("problem", ""))[:LONGEST_PROBLEM]
        return Received(files=files, bytes=size, seconds=time.monotonic() - began, problem=problem)


def _shut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
