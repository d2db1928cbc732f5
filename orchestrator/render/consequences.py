"""Output of ranks and agents that only lost another rank, folded to a line: of one death every rank would print a
traceback, and every torchrun a traceback and a summary.

The record keeps all of it, for `orch why`, `--json` and whoever asks for one node or rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from contract.failures.classify import Classified, FailedRank, classify, is_stack_of_cpp
from contract.failures.torchrun import is_own_error, is_ruler, log_text
from contract.failures.tracebacks import begins, chained, is_torch_log
from contract.log_lines import EVENT_MARK, readable
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import LineRead
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState

MOST_LINES = 400
"""Lines of a traceback that are held: a longer one is shown without folding."""
REASON_CHARS = 120
_ADDRESS = re.compile(r"\[(?:::ffff:)?(?P<address>\d+\.\d+\.\d+\.\d+)\]:\d+|remote=\[(?:::ffff:)?(?P<other>[\d.]+)\]")
_ERROR_NAME = re.compile(r"^[\w.]{1,80}: |(?:at )?\[?/\S{1,300}\.(?:cc|cpp|hpp):\d+\] ")
"""The exception's type, and the place in the source of torch or gloo."""


def peers(plan: Plan | None) -> dict[str, str]:
    """Nodes by address."""
    return {part.address: part.node for part in plan.nodes} if plan else {}


@dataclass
class _Writer:
    """One rank, or torchrun's agent on a node."""

    held: list[RunLine] = field(default_factory=list)
    """A traceback that has not come to its message."""
    warning: list[RunLine] = field(default_factory=list)
    """An agent's warning that it lost the store. The lines after it tell whether that matters."""
    in_summary: int = 0
    """Rulers of torchrun's summary that are still to come."""
    in_barrier: bool = False
    """True if the traceback of torchrun's exit barrier is being written: the ranks had ended before."""
    after: str = ""
    """The last message that was folded: its C++ stack and further lines may follow."""
    chained: bool = False
    """True if the next traceback was raised from it."""
    known: set[str] = field(default_factory=set)
    """Signatures of lost peers that were shown since the last start of the ranks."""
    starts: int = 0
    """Starts of the ranks of its node that were counted."""


class Consequences:
    """Hears every line of a run and gives back those to show."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: who has which address."""
        self._names = names
        self._writers: dict[tuple[str, int | None], _Writer] = {}
        self._state = RunState(run_id="")
        """The state of the run by the events among the lines."""

    def hear(self, line: RunLine) -> Sequence[RunLine]:
        text = readable(line.text)
        if text.startswith(EVENT_MARK):
            apply(self._state, LineRead(seen=0.0, line=line))
            return [line]
        writer = self._writers.setdefault((line.node, line.rank), _Writer())
        node = self._state.nodes.get(line.node)
        if node and len(node.part.starts) != writer.starts:
            writer.starts = len(node.part.starts)
            writer.known.clear()
        if line.rank is None and self._of_agent(writer, text):
            return []
        if writer.held:
            return self._in_traceback(writer, line, text)
        if begins(text):
            writer.held.append(line)
            return []
        return self._ordinary(writer, line, text)

    def rest(self) -> Iterator[RunLine]:
        """Yield the lines that are held and may never come to an end, as they are."""
        for writer in self._writers.values():
            held, writer.held, writer.warning = [*writer.warning, *writer.held], [], []
            yield from held

    @property
    def _done(self) -> bool:
        """True if rank 0 has trained to the end: after that, ranks leave and others lose them, and nothing is wrong."""
        coordinator = self._state.coordinator
        first = coordinator.part.ranks.get(0) if coordinator else None
        return first is not None and first.stage == "ended" and not (first.failed or first.stopped)

    @staticmethod
    def _of_agent(writer: _Writer, text: str) -> bool:
        """Return whether it belongs to torchrun's summary, or to its exit barrier, which waits for ranks that have
        ended."""
        if writer.in_summary:
            writer.in_summary -= is_ruler(text)
            return True
        logged = log_text(text)
        if logged and re.match(r"failed \(exitcode: [0-9]", logged):
            return True  # the rank's own lines say why
        if logged and "waiting on exit barrier" in logged:
            writer.in_barrier, writer.warning = True, []
            return True
        if writer.in_barrier:
            inside = logged is not None and (begins(logged) or logged.startswith(" ") or not logged)
            writer.in_barrier = inside
            return inside or logged is not None
        return False

    def _ordinary(self, writer: _Writer, line: RunLine, text: str) -> Sequence[RunLine]:
        if writer.after:
            writer.chained |= chained(text)
            if is_stack_of_cpp(text) or chained(text) or text.startswith(("Last error:", "nccl")):
                return []
        lost = _lost(text) if _may_tell(text) else None
        writer.after = text if lost else ""
        writer.chained &= bool(lost)
        before, writer.warning = writer.warning, []
        if not lost:
            return [*before, line]
        if self._done or lost.id in writer.known:
            return before
        if line.rank is None and is_torch_log(text):
            writer.warning = [*before, line]
            return []
        writer.known.add(lost.id)
        return [*before, line]

    def _in_traceback(self, writer: _Writer, line: RunLine, text: str) -> Sequence[RunLine]:
        writer.held.append(line)
        if text.startswith(" ") and len(writer.held) < MOST_LINES:
            return []
        held, writer.held = [*writer.warning, *writer.held], []
        writer.warning = []
        if line.rank is None and is_own_error(text):
            writer.in_summary = 2
            return []
        lost = None if text.startswith(" ") else _lost(text, writer.after if writer.chained else "")
        writer.chained = False
        if not lost:
            writer.after = ""
            return held
        known, writer.after = lost.id in writer.known or self._done, text
        writer.known.add(lost.id)
        return [] if known else [replace(line, text=f"lost {self._who(text)}: {_how(lost, text)}")]

    def _who(self, text: str) -> str:
        found = _ADDRESS.search(text)
        address = (found["address"] or found["other"]) if found else ""
        return self._names.get(address, address) or "another rank"


def _may_tell(text: str) -> bool:
    """Return whether a line is worth classifying: it is of torch's or NCCL's log, or names an error."""
    return is_torch_log(text) or "Error" in text or "NCCL" in text


def _lost(text: str, earlier: str = "") -> Classified | None:
    found = classify(FailedRank(exit_code=1, reported=text, reported_earlier=(earlier,) if earlier else ()))
    return found if found and found.lost_peer else None


def _how(lost: Classified, text: str) -> str:
    return lost.values.get("how") or _ERROR_NAME.sub("", text)[:REASON_CHARS]
