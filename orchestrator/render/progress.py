"""Progress of builds, transfers and `orch doctor`: live lines for the nodes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from contract.cost_model.units import duration
from orchestrator.nodes.interface import Progress
from orchestrator.render.console import stderr
from orchestrator.render.printable import printable

EVERY_S, LONG_EVERY_S = 30.0, 120.0
"""Seconds between two plain lines about the same thing: as long as it has taken so far, within these bounds."""
STEADY_S = 2.0
"""Seconds of a transfer before its rate is shown."""
LONGEST = 120
"""Characters of a plain line, at most: a RUN step of a Dockerfile is a whole script."""
MB = 1_000_000
UNITS = ((10_000 * MB, 1000 * MB, "GB", 1), (MB, MB, "MB", 1), (0, 1000, "kB", 0))
"""Bytes from which it is used, bytes, name, decimals."""


class ProgressView:
    """A context in which `notify(node, progress)` shows how far each node is. Threads may call it."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        lines: bool = False,
        notes: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`lines`: plain ones on a terminal, too; `notes`: a text without a total, or of a step that is done, is a line
        that stays, not a bar."""
        self._notes = notes
        self._console = console or stderr()
        self._quiet = quiet
        self._clock = clock
        self._lock = Lock()
        self._rows: dict[str, TaskID] = {}
        self._states: dict[str, _State] = {}
        self._gathers = False
        self._gathered: list[tuple[str, str]] = []
        """Nodes that are done with the same, and its text: they have one line, before the next one."""
        self._finished: dict[str, list[str]] = {}
        """Nodes that have come to the end of this text while others still do it."""
        self._printed: dict[str, tuple[float, float]] = {}
        """Time of the newest plain line with this text, and of the first one."""
        self._begun: dict[str, tuple[str, float, int]] = {}
        """Action of each node, its begin, and the bytes done by then: a copy that continues begins with some."""
        self._bars: Bars | None = None
        self._ended = False
        if self._console.is_terminal and not quiet and not lines:
            columns = (
                TextColumn("{task.fields[node]:>12}"),
                TimeElapsedColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
            )
            self._bars = Bars(*columns, console=self._console, transient=True)

    def __enter__(self) -> ProgressView:
        self._gathers = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the bars: another view begins."""
        with self._lock:
            self._ended = True
            self._write_gathered()
            if self._bars:
                self._bars.stop()

    def notify(self, node: str, progress: Progress) -> None:
        """Show what this node does now."""
        text = printable(progress.text).strip()
        if self._quiet or not text:
            return
        with self._lock:
            amount = f"{_amount(progress)}{self._pace(node, text, progress)}"
            if self._bars and not (self._notes and progress.total == progress.done <= 1):
                self._move(self._bars, node, text, progress, amount)
            else:
                self._say(node, text, progress, amount)

    def _pace(self, node: str, text: str, progress: Progress) -> str:
        """Rate and remaining time of a transfer, once it has taken two seconds."""
        now = self._clock()
        what, since, before = self._begun.get(node, ("", now, 0))
        if what != text or progress.done < before:
            self._begun[node] = (text, now, progress.done)
            return ""
        passed, moved = now - since, progress.done - before
        if progress.left_s is not None or not _amount(progress) or passed < STEADY_S or moved <= 0:
            return ""
        left_s = passed * (progress.total - progress.done) / moved
        return f", {moved / passed / MB:.1f} MB/s" + (f", {duration(left_s)} left" if left_s > 0 else "")

    def _move(self, bars: Bars, node: str, text: str, progress: Progress, amount: str) -> None:
        if self._ended:
            return
        if not self._rows:
            bars.start()
        if node not in self._rows:
            self._rows[node] = bars.add_task("", node=node, total=None)
        room = max(20, self._console.width - 50 - len(amount))
        bars.update(
            self._rows[node],
            description=f"{text[:room]} {amount}".rstrip(),
            completed=progress.done,
            total=progress.total or None,
        )

    def _say(self, node: str, text: str, progress: Progress, amount: str) -> None:
        """A line where a node begins something else. Several that do the same have one line about how far they are, now
        and then, and one at the end of the last of them."""
        now, before = self._clock(), self._states.get(node)
        self._states[node] = state = _State(text, progress, amount)
        same = [name for name, one in self._states.items() if one.text == text and not one.ended]
        begins = before is None or before.text != text
        shown = f"{text[:LONGEST]} {amount}".rstrip()
        if self._gathered and self._gathered[0][1] != shown:
            self._write_gathered()
        if begins and state.ended and self._gathers:
            self._gathered.append((node, shown))
            return
        if begins and same in ([], [node]):
            self._printed.pop(text, None)
        printed, since = (
            self._printed.get(text, (-LONG_EVERY_S, now)) if progress.total or not begins else (-EVERY_S, now)
        )
        if before and before.ended and not begins:
            return
        if state.ended:
            self._finished.setdefault(text, []).append(node)
            if same:
                return
            node = ", ".join(self._finished.pop(text))
        if not state.ended and now - printed < min(LONG_EVERY_S, max(EVERY_S, printed - since)):
            return
        self._printed[text] = (now, since)
        if len(same) > 1 and progress.total and not state.ended:
            node = ", ".join(same)
            slowest = min((self._states[name] for name in same), key=lambda one: one.share)
            shown = f"{text[:LONGEST]} {slowest.amount}".rstrip()
        self._console.print(f"{node}: {shown}", markup=False, soft_wrap=True)

    def _write_gathered(self) -> None:
        if self._gathered:
            names = ", ".join(name for name, _ in self._gathered)
            self._console.print(f"{names}: {self._gathered[0][1]}", markup=False, soft_wrap=True)
            self._gathered.clear()


@dataclass(frozen=True)
class _State:
    """Activity of a node at this moment."""

    text: str
    progress: Progress
    amount: str

    @property
    def share(self) -> float:
        return self.progress.done / max(1, self.progress.total)

    @property
    def ended(self) -> bool:
        return self.progress.left_s is None and self.share >= 1


def _amount(progress: Progress) -> str:
    """Bytes in a unit that suits the total, which may not be known; empty where other things are counted."""
    if progress.left_s is not None:
        return f"{100 * progress.done / progress.total:.0f} %, about {duration(progress.left_s)} left"
    most = progress.total or progress.done
    if most < MB // 100:
        return ""
    unit, name, digits = next(one[1:] for one in UNITS if most >= one[0])
    total = f" of {progress.total / unit:.{digits}f}" if progress.total else ""
    return f"{progress.done / unit:.{digits}f}{total} {name}"


_SIGNS = {"asked": ("…", "dim"), "done": ("✓", "green"), "failed": ("✗", "red")}


class ExaminingView:
    """A context in which `step` shows what is asked of whom. Threads may call it; it is silent off a terminal."""

    def __init__(self, nodes: list[str], *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or stderr()
        self._states: dict[str, dict[str, str]] = {node: {} for node in nodes}
        self._lock = Lock()
        shown = self._console.is_terminal and not quiet
        self._live = Live(console=self._console, transient=True, get_renderable=self.text) if shown else None

    def __enter__(self) -> ExaminingView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def step(self, node: str, stage: str, state: str) -> None:
        """A stage of a node was `asked`, is `done` or has `failed`."""
        with self._lock:
            self._states[node][stage] = state

    def text(self) -> Text:
        """Text that is shown now: a line per node with its stages."""
        width = max(map(len, self._states), default=0)
        with self._lock:
            lines = []
            for node, stages in self._states.items():
                line = Text(f"{node:<{width}}")
                for stage, state in stages.items():
                    sign, style = _SIGNS[state]
                    line.append(f"  {sign} {stage}", style=style)
                lines.append(line)
        return Text("\n").join(lines)
