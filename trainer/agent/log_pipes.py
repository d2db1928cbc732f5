"""What ranks write, through pipes.

torchrun's own way (`--tee`) is a file for each stream, from which it copies: a rank on a full disk is mute, and files
grow with every line. A pipe is memory, bounded, and gone with its reader.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

OUT, ERR = "out", "err"
ROOM = 1024 * 1024
"""Bytes that a pipe holds, what Linux allows anybody: ranks go on while the engine that takes the lines starts anew."""
PIECE = 1024 * 1024
"""Letters of a line, then it is cut into two: a process that writes no newline must not fill the memory."""


def pipe(folder: Path, local_rank: int, name: str) -> Path:
    """Of one stream of one rank."""
    return folder / f"{local_rank}.{name}"


class RankPipes:
    """Both streams of each rank of one torchrun, which takes them from `folder`."""

    def __init__(self, ranks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="streams-"))
        self._kept: list[int] = []
        """A writer for each, lest a reader sees an end before the first rank has come."""
        self.readers: list[tuple[int, str, IO[bytes]]] = []
        """Local rank, name and stream."""
        for local_rank in range(ranks):
            for name in (OUT, ERR):
                path = pipe(self.folder, local_rank, name)
                os.mkfifo(path, 0o600)
                reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else it waits for a writer
                self._kept.append(os.open(path, os.O_WRONLY))
                os.set_blocking(reader, True)
                with contextlib.suppress(OSError):  # one user's pipes may have a limit in all
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, ROOM)
                self.readers.append((local_rank, name, os.fdopen(reader, "rb")))

    def close(self) -> None:
        """Readers see the end once they have read what is there, if no rank is left that could write."""
        while self._kept:
            os.close(self._kept.pop())
        shutil.rmtree(self.folder, ignore_errors=True)


def through_pipes(torchrun: Sequence[str], folder: Path) -> list[str]:
    """The words of a torchrun whose ranks write there."""
    return [*torchrun[:1], "--logs-specs", "orch", "--log-dir", str(folder), *torchrun[1:]]


def ranks_of(torchrun: Sequence[str]) -> int:
    """How many it starts."""
    return int(torchrun[torchrun.index("--nproc-per-node") + 1]) if "--nproc-per-node" in torchrun else 1
