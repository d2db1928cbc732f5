"""Output of a rank: events for the orchestrator, and lines for people, which rank 0 writes."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import trainer
from contract.event_lines import encode_event
from contract.events import Event, RankFailed
from trainer.agent.rank_exit import classify_exception
from trainer.config import RankInfo


class Events:
    def __init__(
        self,
        place: RankInfo,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._place = place
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._clock = clock
        self._speaks = place.rank == 0
        self._line = threading.Lock()

    def speak(self, speaks: bool) -> None:
        """Set whether this rank writes the lines for people (default: rank 0 does)."""
        self._speaks = speaks

    def emit(self, event: Event) -> None:
        """Write an event, completed by time, rank and node, where an orchestrator reads it."""
        if self._place.events:
            place = self._place
            self._write(self._out, encode_event(replace(event, t=self._clock(), rank=place.rank, node=place.node)))

    def say(self, line: str) -> None:
        """Write a line for people, on one rank only: the others would repeat it."""
        if self._speaks:
            self._write(self._out, line)

    def warn(self, line: str) -> None:
        """Write a line for people about this rank alone, to stderr."""
        self._write(self._err, f"{self._place.name}: {line}")

    def failed(self, error: BaseException) -> None:
        found = classify_exception(error)
        self.emit(
            RankFailed(
                owner=found.owner,
                cause=found.id,
                error=type(error).__name__,
                message=str(error),
                frame=_last_frame(error),
            )
        )
        self._write(self._err, f"{self._place.name}: {type(error).__name__}: {error}")

    def _write(self, stream: TextIO, line: str) -> None:
        with self._line:  # the thread that writes checkpoints has its lines too
            stream.write(line + "\n")  # one write, so that lines of several ranks do not mix
            stream.flush()


def _last_frame(error: BaseException) -> str:
    """The innermost frame in the trainer's own code, otherwise the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(trainer.__file__).parent)
    ours = [frame for frame in frames if frame.filename.startswith(here)] or list(frames)
    return f"{ours[-1].filename}:{ours[-1].lineno} in {ours[-1].name}" if ours else ""
