"""Output of ranks and agent: pipes from the ranks, and lines on their way out of the container.

torchrun's own way (`--tee`) is a file for each stream, from which it copies: a rank on a full disk is mute, and files
grow with every line. A pipe is memory, bounded, and gone with its reader. The reader of the container's output may be
slow, or gone: the engine, its log, a disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import IO

from trainer.agent import at_start

OUT, ERR = "out", "err"
ROOM = 1024 * 1024
"""Bytes that a pipe holds, the limit for every user: ranks continue while the engine that reads the lines restarts."""
PIECE = 1024 * 1024
"""Characters of a line before it is split: a process that writes no newline must not fill the memory."""
MAX_QUEUED = 1000
"""Queued lines of the agent; more are lost, and counted."""
QUIET_S = 60.0
"""Seconds between two notes of one kind."""


def pipe(folder: Path, local_rank: int, name: str) -> Path:
    """Path of a stream of a rank."""
    return folder / f"{local_rank}.{name}"


class RankPipes:
    """Both streams of each rank of a torchrun, as pipes in `folder`."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self._descriptors: list[int] = []
        """A writer per pipe, so that no reader sees an end before the ranks start."""
        self.readers: list[tuple[int, str, IO[bytes]]] = []
        """(local rank, name, stream) of each pipe."""
        for local_rank in range(ranks):
            for name in (OUT, ERR):
                path = pipe(folder, local_rank, name)
                os.mkfifo(path, 0o600)
                reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise it waits for a writer
                self._descriptors.append(os.open(path, os.O_WRONLY))
                os.set_blocking(reader, True)
                with contextlib.suppress(OSError):  # one user's pipes may have a limit in all
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, ROOM)
                self.readers.append((local_rank, name, os.fdopen(reader, "rb")))

    def close(self) -> None:
        """End the streams: readers see the end after the remaining lines, if no rank is left that could write."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def through_pipes(folder: Path) -> list[str]:
    """Options of torchrun for pipes in `folder`."""
    return ["--logs-specs", "orch", "--log-dir", str(folder)]


def write_torchrun(folder: Path, python: Sequence[str], streams: Path) -> None:
    """Write a `torchrun` into `folder`, for the PATH of a script: `python` with torchrun's module, and with the pipes
    in `streams`. It sets the path to `orch_streams` itself, as a script may have set PYTHONPATH."""
    path = shlex.quote(str(Path(at_start.__file__).parent))
    words = shlex.join([*python, "torch.distributed.run", *through_pipes(streams)])
    file = folder / "torchrun"
    file.write_text(f'#!/bin/sh\nexport PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}\nexec {words} "$@"\n')
    file.chmod(0o700)


def ranks_of(torchrun: Sequence[str]) -> int:
    """Number of ranks that torchrun starts."""
    return int(torchrun[torchrun.index("--nproc-per-node") + 1]) if "--nproc-per-node" in torchrun else 1


class LogWriter:
    """Writes the lines of an agent and its ranks, each as a whole."""

    def __init__(self, out: IO[bytes]) -> None:
        """`out` receives the agent's own lines."""
        self._out = out
        self._lock = Lock()
        self._own: Queue[bytes] = Queue(MAX_QUEUED)
        self._lost = 0
        self._noted: dict[str, tuple[float, int]] = {}
        """Time of the last note of each kind, and the number of notes left out since."""
        self._speaker = Thread(target=self._speak, daemon=True)
        self._speaker.start()

    def say(self, line: bytes) -> None:
        """Queue a line of the agent. It never waits: other nodes depend on this one."""
        try:
            self._own.put_nowait(line)
        except Full:
            self._lost += 1

    def note(self, kind: str, text: str) -> None:
        """Queue a line for people on something frequent: the first of its kind, then one per minute."""
        now = time.monotonic()
        at, more = self._noted.get(kind, (-QUIET_S, 0))
        if now - at < QUIET_S:
            self._noted[kind] = at, more + 1
            return
        self._noted[kind] = now, 0
        again = f" ({more} more since the last such line)" if more else ""
        self.say(f"{text}{again}\n".encode(errors="replace"))

    def pass_on(self, out: IO[bytes], line: bytes) -> None:
        """Write a line of a rank and wait for it. One that cannot be written is lost; the rank continues."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            out.write(line)
            out.flush()

    def end(self, timeout_s: float) -> None:
        """Wait until all queued lines are written, at most so long."""
        while self._own.full():  # nothing is written: the last lines matter more than the oldest
            with contextlib.suppress(Empty):
                self._own.get_nowait()
                self._lost += 1
        self.say(b"")
        self._speaker.join(timeout_s)

    def _speak(self) -> None:
        while line := self._own.get():
            self.pass_on(self._out, line)
            if lost := self._lost:
                self._lost -= lost
                self.pass_on(
                    self._out,
                    f"{lost} lines of this node's agent were lost: they could not be written in time\n".encode(),
                )
