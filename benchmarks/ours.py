"""Our side of a comparison: the trainer as a user starts it, timed by the events that it prints."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.stopwatch import Stopwatch

PREFIX = "@orch "


class Enough(BaseException):
    """The measurement is complete. Not an Exception, so that the engine does not report a failure."""


class EventsHeard(io.TextIOBase):
    """Replacement of stdout that records the time of each `step` event and ends the run at the last."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self.last: dict[str, Any] = {}

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.startswith(PREFIX):
                event = json.loads(line.removeprefix(PREFIX))
                if event["event"] == "step":
                    self.last = event
                    if self._watch.after(event["step"]):
                        raise Enough
            elif line:
                print(line, file=sys.stderr)
        return len(text)


def steps_of(watch: Stopwatch, words: Sequence[str]) -> dict[str, Any]:
    """Run `python -m trainer WORDS` in this process until the watch is done; return the last step's event.

    There are no evaluations and no checkpoints: peers do neither.
    """
    from trainer.cli import main

    os.environ["ORCH_EVENTS"] = "1"
    heard = EventsHeard(watch)
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-") as run_dir:
        argv = [*words, "--run-dir", run_dir, "--max-steps", str(watch.last), "--eval-every", "0"]
        argv += ["--checkpoint-every", "0", "--log-every", str(math.gcd(watch.warmup, watch.steps))]
        try:
            with contextlib.redirect_stdout(heard):
                code = main(argv)
        except Enough:
            return heard.last
    raise RuntimeError(f"the trainer ended with exit code {code} before step {watch.last}")
