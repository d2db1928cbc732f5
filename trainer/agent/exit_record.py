"""Record of the exit of a node's ranks, for the next start: Docker restarts a container unless its exit code is 0.

Its disk space is reserved at the start, since a full disk may be what ends a run. A copy-on-write file system
(btrfs, ZFS) may need more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from trainer.agent.rank_exit import RankExit, from_values

ROOM = 4096
"""Bytes: one block of the common file systems."""


class ExitRecord:
    def __init__(self, folder: Path, node_rank: int, run: str) -> None:
        """`folder` is the run's; `run` names run and attempt: the record of another attempt is ignored."""
        self._run = run
        self._file = folder / f"over-{node_rank}.json"
        self._room = folder / f".over-{node_rank}"

    def read(self) -> RankExit | None:
        """Read the record. None: the attempt has not ended, or the record could not be written."""
        try:
            values = json.loads(self._file.read_text("utf-8"))
            return from_values(values["rank_exit"]) if values["run"] == self._run else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def reserve(self) -> None:
        """Reserve disk space; the run starts without it, too."""
        try:
            self._room.parent.mkdir(parents=True, exist_ok=True)  # a pod has no folder of the run yet
            if not self._room.exists() or self._room.stat().st_size != ROOM:  # otherwise kept after a kill
                self._room.write_bytes(b" " * ROOM)
        except OSError as error:
            print(f"{self._room} could not be written: {error}", file=sys.stderr)

    def write(self, rank_exit: RankExit) -> None:
        while len(text := self._text(rank_exit)) >= ROOM and rank_exit.reason:
            rank_exit = replace(rank_exit, reason=rank_exit.reason[: len(rank_exit.reason) // 2], frame="")
        try:
            descriptor = os.open(self._room, os.O_WRONLY | os.O_CREAT, 0o644)  # in place: it takes no new block
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode().ljust(ROOM - 1) + b"\n")
                file.truncate()
            self._room.replace(self._file)
        except OSError as error:
            print(f"{self._file} could not be written: {error}", file=sys.stderr)

    def _text(self, rank_exit: RankExit) -> str:
        return json.dumps({"run": self._run, "at": time.time(), "rank_exit": asdict(rank_exit)})

    def release(self) -> None:
        """Release the reserved space, where nothing was recorded."""
        with contextlib.suppress(OSError):
            self._room.unlink()
