"""What the orchestrator hears: one `@orch {json}` line per event. What people read: rank 0's lines."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import trainer
from contract.log_lines import EVENT_MARK
from trainer.agent.rank_exit import classify_exception
from trainer.config import Place


class Events:
    def __init__(
        self,
        place: Place,
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
        """Whether this rank is the one that talks to people; before, it is rank 0."""
        self._speaks = speaks

    def emit(self, event: str, **fields: object) -> None:
        if self._place.events:
            head = {"event": event, "t": self._clock(), "rank": self._place.rank, "node": self._place.node}
            self._write(
                self._out,
                EVENT_MARK + json.dumps({key: json_value(value) for key, value in {**head, **fields}.items()}),
            )

    def say(self, line: str) -> None:
        """To people; the other ranks would only repeat it."""
        if self._speaks:
            self._write(self._out, line)

    def warn(self, line: str) -> None:
        """To people, from any rank: what this one had to do differently."""
        self._write(self._err, f"{self._place.name}: {line}")

    def failed(self, error: BaseException) -> None:
        found = classify_exception(error)
        about = {"error": type(error).__name__, "message": str(error), "frame": _last_frame(error)}
        self.emit("failed", **{"class": found.owner, "cause": found.id}, **about)
        self._write(self._err, f"{self._place.name}: {type(error).__name__}: {error}")

    def _write(self, stream: TextIO, line: str) -> None:
        with self._line:  # the thread that writes checkpoints has its lines too
            stream.write(line + "\n")  # one write, so that lines of several ranks do not mix
            stream.flush()


def json_value(value: object) -> Any:
    """JSON has no NaN, and readers stumble over Python's."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _last_frame(error: BaseException) -> str:
    """Where it happened: the innermost place in our own code, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(trainer.__file__).parent)
    ours = [frame for frame in frames if frame.filename.startswith(here)] or list(frames)
    return f"{ours[-1].filename}:{ours[-1].lineno} in {ours[-1].name}" if ours else ""
