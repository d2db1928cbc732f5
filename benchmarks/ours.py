"""Our side of a comparison: the trainer as a user starts it, timed at the end of each optimizer step."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.stopwatch import Stopwatch

PREFIX = "@orch "


class Enough(BaseException):
    """The measurement is complete. Not an Exception, so that the engine does not report a failure."""


class Events(io.TextIOBase):
    """Replacement of stdout that keeps the last `step` event, and passes all but events on to stderr."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.step: dict[str, Any] = {}

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.startswith(PREFIX):
                event = json.loads(line.removeprefix(PREFIX))
                if event["event"] == "step":
                    self.step = event
                    if event["step"] >= self._last:
                        raise Enough
            elif line:
                print(line, file=sys.stderr)
        return len(text)


def steps_of(watch: Stopwatch, words: Sequence[str]) -> dict[str, Any]:
    """Run `python -m trainer WORDS` in this process until the watch is done; return the last step's event.

    There are no evaluations and no checkpoints: peers do neither. A step ends for the watch when its optimizer has
    stepped, as in the peers' loops. Its event comes later: figures are read in the next step (ADR 34).
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from trainer.agent import heartbeat
    from trainer.cli import main

    counted = 0

    def stepped(*_: object) -> None:
        nonlocal counted
        # Step 0: an optimizer that is tried or filled before the training. One that consists of several steps several
        # times, the first time at the same place of each step.
        if (step := heartbeat.current_step()) > counted:
            counted = step
            watch.after(step)

    os.environ["ORCH_EVENTS"] = "1"
    events = Events(watch.last)
    hook = register_optimizer_step_post_hook(stepped)
    with tempfile.TemporaryDirectory(prefix="orch-benchmark-") as run_dir:
        argv = [*words, "--run-dir", run_dir, "--max-steps", str(watch.last), "--eval-every", "0"]
        argv += ["--checkpoint-every", "0"]
        try:
            with contextlib.redirect_stdout(events):
                code = main(argv)
        except Enough:
            return events.step
        finally:
            hook.remove()
    raise RuntimeError(f"the trainer ended with exit code {code} before step {watch.last}")
