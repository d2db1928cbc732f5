"""Destinations of a training's figures, on rank 0: metrics.jsonl, TensorBoard, and reporters of the user's own."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Protocol

from trainer.own_module import imported

OPTION = "--reporter"
MOST_WAITING = 1000
"""Calls that a reporter may be behind: later ones are left out."""
PATIENCE_S = 30.0
"""Seconds for a reporter that still sends when the training ends."""


@dataclass(frozen=True, kw_only=True)
class TrainingBegun:
    """A training at its start, for reporters."""

    run_id: str = ""
    """Empty without an orchestrator."""
    run_dir: Path
    first_step: int
    """The step after the one that is resumed from; 1 for a new training."""
    final_step: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options, as JSON's types."""


class Reporter(Protocol):
    """Takes the figures of one training. A step may come again after a restart: the later one counts."""

    def start(self, begun: TrainingBegun) -> None: ...

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Take the figures of a step. `kind`: `train` or `validation`; a value may be NaN or infinite."""

    def checkpoint(self, step: int, path: Path) -> None:
        """Note that a checkpoint was written and verified."""

    def end(self, state: str) -> None:
        """End. `state`: `done`, `stopped` or `failed`."""


class JsonLines:
    """RUN/metrics.jsonl."""

    def start(self, begun: TrainingBegun) -> None:
        begun.run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (begun.run_dir / "metrics.jsonl").open("a", encoding="utf-8")

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        line = {"t": time.time(), "kind": kind, "step": step, **values}
        # JSON has neither NaN nor infinities.
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()

    def checkpoint(self, step: int, path: Path) -> None:  # noqa: ARG002  # of the protocol
        return

    def end(self, state: str) -> None:  # noqa: ARG002  # of the protocol
        self._file.close()


class TensorBoard:
    """RUN/tensorboard."""

    def start(self, begun: TrainingBegun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides what an interrupted run had drawn beyond the step it resumes from.
        self._board = SummaryWriter(str(begun.run_dir / "tensorboard"), purge_step=begun.first_step)

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._board.add_scalar(f"{kind}/{name}", value, step)

    def checkpoint(self, step: int, path: Path) -> None:  # noqa: ARG002  # of the protocol
        return

    def end(self, state: str) -> None:  # noqa: ARG002  # of the protocol
        self._board.close()


class Reporters:
    """All reporters of a training; none on other ranks than the first, where `begun` is None."""

    def __init__(
        self, begun: TrainingBegun | None, named: str = "", warn: Callable[[str], object] = lambda _line: None
    ) -> None:
        """`named`: reporters of the user's own, MODULE:CLASS, separated by commas. `warn` gets a line about each that
        fails."""
        self._reporters: list[Reporter] = [JsonLines(), TensorBoard()] if begun else []
        if begun:
            self._reporters += [_Apart(name, warn) for name in filter(None, named.split(","))]
        for reporter in self._reporters:
            reporter.start(begun)  # type: ignore[arg-type]  # without `begun` there is none

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for reporter in self._reporters:
            reporter.figures(kind, step, values)

    def checkpoint(self, step: int, path: Path) -> None:
        for reporter in self._reporters:
            reporter.checkpoint(step, path)

    def end(self, state: str) -> None:
        """End all, once."""
        reporters, self._reporters = self._reporters, []
        for reporter in reporters:
            reporter.end(state)


class _Apart:
    """A reporter of the user's own in a thread of its own: what it raises or waits for is no matter of the training.

    Lines about it name the type and the place of an exception, not its text, which may hold a password.
    """

    def __init__(self, named: str, warn: Callable[[str], object]) -> None:
        self._named, self._warn = named, warn
        self._calls: Queue[tuple[str, Sequence[Any]]] = Queue(MOST_WAITING)
        self._left_out, self._failed = 0, False
        self._thread = Thread(target=self._run, name=f"reporter {named}", daemon=True)

    def start(self, begun: TrainingBegun) -> None:
        self._thread.start()
        self._call("start", begun)

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self._call("figures", kind, step, dict(values))

    def checkpoint(self, step: int, path: Path) -> None:
        self._call("checkpoint", step, path)

    def end(self, state: str) -> None:
        if self._failed:
            return
        deadline = time.monotonic() + PATIENCE_S
        with suppress(Full):
            self._calls.put(("end", (state,)), timeout=PATIENCE_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn(f"{OPTION} {self._named} has not ended after {PATIENCE_S:.0f} s and is left behind")
        if self._left_out:
            self._warn(f"{OPTION} {self._named} was too slow: {self._left_out} calls were left out")

    def _call(self, method: str, *arguments: Any) -> None:
        if self._failed:
            return
        try:
            self._calls.put_nowait((method, arguments))
        except Full:
            self._left_out += 1

    def _run(self) -> None:
        method = "its import"
        try:
            reporter = imported(self._named, OPTION)()
            while method != "end":
                method, arguments = self._calls.get()
                getattr(reporter, method)(*arguments)
        except BaseException as error:  # SystemExit, too, which some libraries raise without a key
            self._failed = True
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {frame.filename}:{frame.lineno} in {frame.name}"
            self._warn(f"{OPTION} {self._named} failed in {method}: {where}; the training continues without it")
