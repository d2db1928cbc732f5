"""The moments of a run that a timeline shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from contract.events import (
    CheckpointWritten,
    DataDamaged,
    Evaluated,
    Event,
    Finished,
    GenerationStarted,
    LivenessReported,
    NodesRecovered,
    NodesStalled,
    OutputsMissing,
    RankFailed,
    RankLeftOut,
    Rebalanced,
    Restarting,
    TrainingDone,
    TrainingResumed,
    TrainingStopped,
    WaitingForNodes,
)
from orchestrator.specs.data import damage_text
from orchestrator.state.run_report import Moment


class BothEnds:
    """The first and the last items of many."""

    def __init__(self, most: int) -> None:
        self._first: list[Moment] = []
        self._half = most // 2
        self._last: deque[Moment] = deque(maxlen=most - most // 2)
        self._number = 0

    def add(self, one: Moment) -> None:
        self._number += 1
        if len(self._first) < self._half:
            self._first.append(one)
        else:
            self._last.append(one)

    def __iter__(self) -> Iterator[Moment]:
        yield from self._first
        yield from self._last

    @property
    def left_out(self) -> int:
        return self._number - len(self._first) - len(self._last)


def moment_of(event: Event) -> tuple[str, str] | None:
    """Kind and text of what a timeline shows; None for other events."""
    match event:
        case GenerationStarted():
            return "phase", f"ranks started (generation {event.generation})"
        case Restarting() | Finished() if event.outcome not in ("done", "stopped"):
            what = "all ranks restart" if isinstance(event, Restarting) else "the attempt failed"
            return "fault", f"{what}: {event.reason or event.outcome or 'unknown'}"
        case Finished():
            return "phase", f"ranks ended: {event.outcome}"
        case RankFailed():
            return "fault", f"rank {event.rank} failed: {event.reason}"
        case LivenessReported():
            return "fault" if event.fault else "note", event.message[2:]
        case NodesStalled():
            return "fault", _of_nodes(event)
        case NodesRecovered() | WaitingForNodes():
            return "note", _of_nodes(event)
        case DataDamaged():
            return "fault", f"data damaged: {damage_text(event.file or '', event.wrong or '', event.offset or 0)}"
        case OutputsMissing() if not event.other_ranks:
            return "note", f"{event.path} only on {event.source}{', not copied' if event.why_not else ', copied'}"
        case TrainingResumed() if event.step:
            return "phase", f"resumed from step {event.step:,}"
        case CheckpointWritten():
            took = f" in {event.seconds:.1f} s" if event.seconds else ""
            return (
                "checkpoint",
                f"checkpoint of step {event.step or 0:,}{took}{'' if event.verified else ', not verified'}",
            )
        case Evaluated():
            return "evaluation", f"evaluation at step {event.step or 0:,}: {_figures(event)}"
        case Rebalanced():
            shares = ", ".join(f"{node} {share:g}" for node, share in (event.shares or {}).items() if share is not None)
            return "note", f"new shares: {shares}"
        case RankLeftOut():
            return "note", f"left out: {event.why or 'by the forecast'}"
        case TrainingStopped():
            return ("phase", "stopped on request") if not event.rank else None
        case TrainingDone():
            return ("phase", "training done") if not event.rank else None
        case _:
            return None


def _of_nodes(event: NodesStalled | NodesRecovered | WaitingForNodes) -> str:
    nodes = ", ".join(event.nodes or ())
    if isinstance(event, NodesStalled):
        return f"sent nothing for {event.seconds or 0:.0f} s: {nodes}"
    return f"send again: {nodes}" if isinstance(event, NodesRecovered) else f"not ready: {nodes}"


def _figures(event: Evaluated) -> str:
    found = {"loss": event.loss, **event.others}
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items() if isinstance(value, int | float))
