"""How far `orch doctor` is: on a terminal, one line for each node with the stages that it has been through."""

from __future__ import annotations

from threading import Lock
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from orchestrator.render.console import stderr

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
