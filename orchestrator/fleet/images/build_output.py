"""The output of a builder: all of it in a file, and for people the stage, its share of the build and the time left."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType

from orchestrator.fleet.fan_out import Notify
from orchestrator.nodes.interface import Progress
from orchestrator.nodes.state_files import open_private
from orchestrator.specs.secret_forms import hide_secrets

LAST_LINES = 15
"""Last lines of a builder's output shown when a build fails: the error itself names only the command."""
EVERY_S = 1.0
CACHED_S = 0.5
"""Seconds of a RUN step up to which it was in the builder's cache, and says nothing about the machine's speed."""
_STEP = re.compile(r"Step ([0-9]{1,4})/[0-9]{1,4} : ")
_STAGE = re.compile(r"FROM\s+\S+(?:\s+AS\s+(?P<name>\S+))?\s*$", re.IGNORECASE)
_COSTS = tuple(
    (re.compile(pattern), cost)
    for pattern, cost in (
        ("apt-get.*g\\+\\+", 100.0),
        ("apt-get", 20.0),
        ("pip", 50.0),
        ("RUN", 3.0),
        ("--from=", 8.0),
        ("", 0.3),
    )
)
"""Seconds of a step by what it does, in proportion: as measured on two cores (149, 19, 53 and 69 s)."""


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """One instruction of a Dockerfile."""

    stage: str
    expected_s: float
    runs: bool


def steps_of(dockerfile: bytes, last: str) -> tuple[BuildStep, ...]:
    """Return the instructions in order. `last`: name of a stage without one, which is the image itself."""
    lines = (line for line in dockerfile.decode(errors="replace").splitlines() if not line.lstrip().startswith("#"))
    instructions = [one.strip() for one in "\n".join(lines).replace("\\\n", " ").splitlines() if one.strip()]
    stages = [found["name"] or last for one in instructions if (found := _STAGE.match(one))]
    number, steps = 0, []
    for text in instructions:
        number += _STAGE.match(text) is not None
        stage = stages[max(0, number - 1)] if stages else last
        runs = text[:4].upper() == "RUN "
        usual = next(cost for pattern, cost in _COSTS if pattern.search(text))
        steps.append(BuildStep(stage=stage, expected_s=usual, runs=runs))
    return tuple(steps)


@dataclass(kw_only=True)
class BuildOutput:
    """A context in which the lines of one build are read; `notify` gets its progress every second."""

    node: str
    steps: tuple[BuildStep, ...]
    notify: Notify
    log: Path | None = None
    """File that the whole output is appended to."""
    clock: Callable[[], float] = time.monotonic
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    _number: int = 0
    _since: float = 0.0
    _taken: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of the steps that ran, and those expected."""
    _ended: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> BuildOutput:
        self._since = self.clock()
        self._thread = Thread(target=self._tick, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def read(self, text: str) -> None:
        """Take a piece of the builder's output."""
        for line in hide_secrets(text).splitlines():
            self.last.append(line)
            if self.log:
                with open_private(self.log) as file:
                    file.write(f"{self.node}: {line}\n".encode())
            if found := _STEP.match(line):
                self._begin(int(found[1]))

    def progress(self) -> Progress | None:
        """Return the stage, with the share of the whole build and the estimate of its remaining time."""
        with self._lock:
            if not 0 < self._number <= len(self.steps):
                return None
            step = self.steps[self._number - 1]
            pace = self._pace()
            expected = [one.expected_s * pace for one in self.steps]
            done = sum(expected[: self._number - 1])
            # A step that takes longer than expected slows down before its end.
            now, usual = self.clock() - self._since, expected[self._number - 1]
            done += usual * now / (now + usual) if now > usual / 2 else now * 2 / 3
            whole = sum(expected)
            names = list(dict.fromkeys(one.stage for one in self.steps))
            place = f" ({names.index(step.stage) + 1} of {len(names)})" if len(names) > 1 else ""
        text = f"building the image: {step.stage}{place}"
        return Progress(text=text, done=round(100 * done / whole), total=100, left_s=max(0.0, whole - done))

    def last_lines(self) -> Iterator[str]:
        """Yield the end of the output, for the error of a build that failed, and where all of it is."""
        yield from self.last
        if self.log:
            yield f"the whole output: {self.log}"

    def _begin(self, number: int) -> None:
        with self._lock:
            now, before = self.clock(), self.steps[self._number - 1 : self._number]
            if self._number and before and before[0].runs and now - self._since > CACHED_S:
                self._taken.append((now - self._since, before[0].expected_s))
            stage_before = before[0].stage if self._number and before else ""
            self._number, self._since = number, now
        if (shown := self.progress()) and self.steps[number - 1].stage != stage_before:
            self.notify(self.node, shown)

    def _pace(self) -> float:
        """Seconds of this machine per expected second."""
        taken, expected = (sum(each) for each in zip(*self._taken, strict=True)) if self._taken else (1.0, 1.0)
        return taken / expected

    def _tick(self) -> None:
        while not self._ended.wait(EVERY_S):
            if shown := self.progress():
                self.notify(self.node, shown)
