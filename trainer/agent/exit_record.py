"""What a node's part in a run ended of, kept for the next start: Docker starts a container again unless it ends with 0.

Room for it is taken when the node begins, since a full disk is among the reasons to end. Where a file system copies
what it changes (btrfs, ZFS), that is no promise.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from trainer.agent.rank_exit import Ending, from_values

ROOM = 4096
"""Bytes: one block of the common file systems."""


class LastWord:
    def __init__(self, folder: Path, node_rank: int, run: str) -> None:
        """`folder` is the run's; `run` names run and attempt: what another attempt ended of is no end of this."""
        self._run = run
        self._file = folder / f"over-{node_rank}.json"
        self._room = folder / f".over-{node_rank}"

    def read(self) -> Ending | None:
        """None: it has not ended, or nobody could write it down."""
        try:
            values = json.loads(self._file.read_text("utf-8"))
            return from_values(values["ending"]) if values["run"] == self._run else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def reserve(self) -> None:
        """Without room, the run begins all the same."""
        try:
            if not self._room.exists() or self._room.stat().st_size != ROOM:  # else it is kept, since a kill
                self._room.write_bytes(b" " * ROOM)
        except OSError as error:
            print(f"{self._room} could not be written: {error}", file=sys.stderr)

    def write(self, ending: Ending) -> None:
        while len(text := self._text(ending)) >= ROOM and ending.reason:
            ending = replace(ending, reason=ending.reason[: len(ending.reason) // 2], frame="")
        try:
            descriptor = os.open(self._room, os.O_WRONLY | os.O_CREAT, 0o644)  # in place: it takes no new block
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode().ljust(ROOM - 1) + b"\n")
                file.truncate()
            self._room.replace(self._file)
        except OSError as error:
            print(f"{self._file} could not be written: {error}", file=sys.stderr)

    def _text(self, ending: Ending) -> str:
        return json.dumps({"run": self._run, "at": time.time(), "ending": ending.as_values()})

    def give_back(self) -> None:
        """The room, where there is nothing to say."""
        with contextlib.suppress(OSError):
            self._room.unlink()
