"""A stream of result files: for each a header as a line of JSON, the content, and a line with its SHA-256.

The receiver names the files, and checks every name, size and content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.result_files import SIZE_LIMIT, ResultFile
from trainer.agent.messages import MisfitError, values_of, whole
from trainer.agent.result_folder import RefusedFileError, ResultFolder

STALL_S = 30.0
"""Time without a byte after which a stream ends."""
CHUNK = 128 * 1024
"""Bytes that are sent at once, and within `STALL_S`."""
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


def _unobserved() -> None:
    pass


def send_files(
    connected: socket.socket, folder: ResultFolder, paths: Sequence[str], moved: Callable[[], None] = _unobserved
) -> None:
    """Send these files. One that cannot be read is named with the reason. OSError: the connection has ended.

    `moved` is called after each piece.
    """
    connected.settimeout(STALL_S)
    for path in paths:
        try:
            with folder.reading(path) as descriptor:
                _send_file(connected, path, descriptor, moved)
        except RefusedFileError as error:
            send_line(connected, {"path": path, "problem": str(error)})


def _send_file(connected: socket.socket, path: str, descriptor: int, moved: Callable[[], None]) -> None:
    before, digest = os.fstat(descriptor), hashlib.sha256()
    send_line(connected, {"path": path, "size": before.st_size})
    left = before.st_size
    while left:
        piece = os.read(descriptor, min(CHUNK, left))
        if not piece:
            raise ConnectionError("a file became shorter while it was read")
        digest.update(piece)
        connected.sendall(piece)
        moved()
        left -= len(piece)
    after = os.fstat(descriptor)
    is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    send_line(connected, {"sha256": digest.hexdigest() if is_same else ""})


def receive_files(
    connected: socket.socket,
    folder: ResultFolder,
    files: Sequence[ResultFile],
    moved: Callable[[], None] = _unobserved,
) -> Received:
    """Write these files into the folder of the run, in the order in which they were asked for.

    `moved` is called after each piece.
    """
    began, arrived, size, problems = time.monotonic(), 0, 0, list[str]()
    connected.settimeout(STALL_S)
    try:
        with folder.room(sum(file.size for file in files)) as room, connected.makefile("rb") as stream:
            for file in files:
                try:
                    _receive_file(stream, folder, file, room, moved)
                    arrived, size = arrived + 1, size + file.size
                except RefusedFileError as error:
                    problems.append(f"{file.path}: {error}")
    except (OSError, RefusedFileError, MisfitError) as error:
        problems.append(str(error) or type(error).__name__)
    first = problems[0][:LONGEST_PROBLEM] if problems else ""
    return Received(files=arrived, bytes=size, seconds=time.monotonic() - began, problem=first)


def _receive_file(
    stream: io.BufferedReader, folder: ResultFolder, file: ResultFile, room: Path, moved: Callable[[], None]
) -> None:
    """Write one file. RefusedFileError: it is not copied, and the stream continues. MisfitError, OSError: the stream
    ends."""
    header = read_line(stream)
    if header.get("path") != file.path:
        raise MisfitError("a file that was not asked for")
    if problem := header.get("problem"):
        raise RefusedFileError(str(problem)[:LONGEST_PROBLEM])
    size = whole(header, "size", most=SIZE_LIMIT)
    if size != file.size:
        raise MisfitError(f"{file.path} has {size} bytes instead of {file.size}")
    with folder.writing(file, room) as incoming:
        while incoming.size < size:
            piece = stream.read1(min(CHUNK, size - incoming.size))
            if not piece:
                raise ConnectionError("the stream ended within a file")
            incoming.write(piece)
            moved()
        if read_line(stream).get("sha256") != incoming.sha256:
            raise RefusedFileError("its content changed on the way, or while it was read")


def send_line(connected: socket.socket, values: Mapping[str, Any]) -> None:
    """Send one line of JSON."""
    connected.sendall(json.dumps(values).encode() + b"\n")


def read_line(stream: io.IOBase) -> dict[str, Any]:
    """Read one line of JSON. ConnectionError: the stream ended. MisfitError: it is not an object."""
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("the stream ended")
    return values_of(line)
