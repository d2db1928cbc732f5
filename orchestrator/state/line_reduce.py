"""Lines of a node: each changes that node's part of the attempt alone, so that lines of two nodes may be read in any
order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from contract.events import (
    AgentEvent,
    CheckpointWritten,
    ConnectivityTested,
    DataDamaged,
    Event,
    Finished,
    ForecastMade,
    GenerationStarted,
    GroupJoined,
    LineRedrawn,
    LivenessReported,
    NodesEvent,
    NodesMeasured,
    NodesRecovered,
    NodesStalled,
    OutputProgress,
    OutputsEvent,
    ProgressEvent,
    RankFailed,
    RankLeftOut,
    RankStarted,
    ResourcesSampled,
    Restarting,
    StacksTaken,
    StepDone,
    TrainingDone,
    TrainingResumed,
    TrainingStopped,
    WaitingForNodes,
)
from contract.liveness_watch import EXCHANGE_RULES
from contract.resources import ResourceUsage
from orchestrator.checks.hang import timestamp
from orchestrator.checks.output_progress import SILENT_S
from orchestrator.specs.run_events import RunLine
from orchestrator.state.limits import DAMAGED, LINE_CHARS, RANKS, RECENT, STARTS
from orchestrator.state.run_state import AttemptPart, NodeState, RankPart, TailLine

RARE = (DataDamaged, LivenessReported, NodesEvent, OutputsEvent, RankFailed, Restarting)
"""Events that the timeline of faults shows."""
SHORT_CHARS = 16 * 1024
"""A longer event is kept without its long texts."""
LASTING = ("of_forecast", "compute_s", "final_step", "remaining_s")
"""Figures that not every step reports: they hold until the next report."""
MOST_NAMES = 256
FRESH_S = 4.0
"""Age up to which a sample of the node itself, taken every two seconds, counts before one in its lines."""
SET_BACK_S = 1.0
"""Seconds by which a line may be older than the one before it: the two streams of a container are merged."""
CAUGHT_UP_S = 10.0
"""Seconds after the first line of a node from which its lines are read as they are written. Those before may be old."""

AnyEvent = TypeVar("AnyEvent", bound=Event)


def read_line(node: NodeState, line: RunLine, seen: float) -> float | None:
    """Take a line into account. Return when it was written, by this computer's clock; None: it was read before."""
    part = node.part
    mark = hash((line.time, line.rank, line.text))
    if mark in part.recent:
        return None
    part.recent[mark] = None
    if len(part.recent) > RECENT:
        del part.recent[next(iter(part.recent))]
    at = _written_at(part, line.time, seen)
    part.lines += 1
    event = line.event
    if line.rank is not None:
        part.rank_seen_at = max(part.rank_seen_at, seen)
    if event is None:
        _read_text(part, line, at)
    else:
        is_whole = len(line.text) <= SHORT_CHARS or isinstance(event, ConnectivityTested)  # one result of a short run
        _read_event(node, line, event if is_whole else _shortened(event), at, seen)
    return at


def use(node: NodeState, usage: ResourceUsage, at: float) -> None:
    """Note a sample of the resources of a node."""
    node.usage, node.usage_at = usage, at
    node.cpu_history.append(usage.cpu_percent)
    busy = [gpu.utilization_percent for gpu in usage.gpus if gpu.utilization_percent is not None]
    if busy:
        node.gpu_history.append(sum(busy) / len(busy))


def _written_at(part: AttemptPart, time: str, seen: float) -> float:
    """A line that was read late counts when it was written. A clock that is ahead, or is set back, counts from there
    on by what it differs."""
    written = timestamp(time) or seen
    before, part.last_time = timestamp(part.last_time), time
    if before and written < before - SET_BACK_S and part.read_at is not None:
        part.clock_ahead_s = written - part.read_at
    part.clock_ahead_s = max(part.clock_ahead_s, written - seen)
    part.read_at = min(seen, written - part.clock_ahead_s)
    part.first_seen_at = seen if part.first_seen_at is None else part.first_seen_at
    if seen - part.first_seen_at >= CAUGHT_UP_S:
        behind = seen - part.read_at
        part.clock_behind_s = behind if part.clock_behind_s is None else min(part.clock_behind_s, behind)
    return part.read_at


def _rank(part: AttemptPart, rank: int | None) -> RankPart | None:
    if rank is None or (rank not in part.ranks and len(part.ranks) >= RANKS):
        return None
    return part.ranks.setdefault(rank, RankPart())


def _read_text(part: AttemptPart, line: RunLine, at: float) -> None:
    text = line.text[:LINE_CHARS]
    number = part.tail[-1].number + 1 if part.tail else 1
    part.tail.append(TailLine(number=number, at=at, time=line.time, rank=line.rank, text=text))
    if rank := _rank(part, line.rank):
        rank.line_at = at
        rank.last_line = text if text.strip() else rank.last_line


def _read_event(node: NodeState, line: RunLine, event: Event, at: float, seen: float) -> None:
    part = node.part
    if isinstance(event, AgentEvent):
        # of a start that is not among the lines: a record ends with its recorder, and a node's newest lines are few
        is_later = (event.generation or 0) > part.generation
        part.is_restarting = part.is_restarting and not is_later
        part.generation = max(part.generation, event.generation or 0)
    if isinstance(event, RARE):
        part.moments.append((at, event))
    match event:
        case ProgressEvent():
            _progress(part, event, at)
        case OutputProgress():
            _printed(part, event, at)
        case ResourcesSampled():
            if node.sampled_at is None or at - node.sampled_at > FRESH_S:
                use(node, event.usage, at)
            _positions(part, event, at)
        case LineRedrawn():
            if rank := _rank(part, event.rank):
                rank.line_at, rank.last_line = at, (event.text or "")[:LINE_CHARS] or rank.last_line
        case StacksTaken():
            _positions(part, event, at)
        case GenerationStarted():
            _start(part, event, line.time, at)
        case Restarting() | Finished():
            _end(part, event, seen)
        case LivenessReported():
            _liveness(part, event, at)
        case NodesEvent():
            _peers(part, event, at, seen)
        case DataDamaged():
            key = event.data or "", event.file or ""
            if len(part.damaged) < DAMAGED:
                part.damaged.setdefault(key, event)
        case _:
            _of_rank(part, event)


def _of_rank(part: AttemptPart, event: Event) -> None:
    """Events that describe a rank, or the setup of the training."""
    rank = _rank(part, event.rank)
    match event:
        case RankStarted() if rank:
            rank.started = event
        case GroupJoined():
            part.joined = event
            if rank:
                rank.stage = "joined"
        case RankLeftOut() if rank:
            rank.stage, rank.left_out = "left_out", event.why or ""
        case RankFailed():
            part.failed = part.failed or event
            if rank:
                rank.stage, rank.failed = "ended", event
        case ForecastMade() if event.rank == 0:
            part.forecast = event.forecast
        case NodesMeasured():
            part.measurement = event.measurement
        case TrainingResumed():
            part.resumed = event
        case ConnectivityTested():
            part.tested = event


# ── Progress ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _progress(part: AttemptPart, event: ProgressEvent, at: float) -> None:
    """The step never decreases within a generation: a checkpoint is reported when it is written, maybe steps later."""
    earlier, generation = part.progress, len(part.starts)
    if earlier and part.progress_generation == generation:
        merged = _with_figures(event, earlier)
        steps = [step for step in (merged.step, earlier.step) if step is not None]
        part.progress = replace(merged, step=max(steps, default=None))
    else:
        final = event.final_step or (earlier.final_step if earlier else None)
        part.progress = replace(event, final_step=final)
    part.progress_at, part.progress_generation = at, generation
    if rank := _rank(part, event.rank):
        rank.stage = "ended" if isinstance(event, TrainingDone | TrainingStopped) else "joined"
        rank.stopped |= isinstance(event, TrainingStopped)
    part.stopped |= isinstance(event, TrainingStopped)
    if isinstance(event, StepDone):
        shares = {name: share_of(event, name) for name in ("waiting", "exchanging")}
        part.shares = {name: share for name, share in shares.items() if share is not None}
        if event.loss is not None:
            part.losses.append(event.loss)
    if isinstance(event, CheckpointWritten) and event.verified and event.step is not None:
        part.checkpoint = event


def _with_figures(event: ProgressEvent, earlier: ProgressEvent) -> ProgressEvent:
    """A checkpoint and a stop keep all figures of the step before, every other event the `LASTING` ones. A checkpoint
    is reported when it is written, maybe some steps later: the step never decreases."""
    keeps_all = isinstance(event, CheckpointWritten | TrainingStopped)
    figures = [one.name for one in fields(ProgressEvent) if one.name != "others"] if keeps_all else LASTING
    known = {name: getattr(earlier, name) for name in figures if getattr(event, name) is None}
    if isinstance(event, CheckpointWritten):
        known["step"] = max(event.step or 0, earlier.step or 0)
    return replace(event, **known, others={**earlier.others, **event.others} if keeps_all else event.others)


def newest_output(event: OutputProgress, newest: OutputProgress | None) -> OutputProgress:
    """The newest report of the lowest rank that prints its progress, after this event."""
    return event if newest is None or _counts_more(event, newest) else newest


def _counts_more(event: OutputProgress, newest: OutputProgress) -> bool:
    if event.generation != newest.generation or _rank_of(event) <= _rank_of(newest):
        return True
    return (event.t or 0.0) - (newest.t or 0.0) > SILENT_S


def _rank_of(event: OutputProgress) -> float:
    return float("inf") if event.rank is None else event.rank


def share_of(event: ProgressEvent, name: str) -> float | None:
    """A share of the time (`waiting`, `exchanging`) that a step reports, from 0 to 1; None without a valid one."""
    value = event.others.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1 else None


def _printed(part: AttemptPart, event: OutputProgress, at: float) -> None:
    part.printed = newest_output(event, part.printed)
    if part.printed is event:
        part.printed_at = at
        if event.loss is not None and part.progress is None:
            part.losses.append(event.loss)


def _positions(part: AttemptPart, event: ResourcesSampled | StacksTaken, at: float) -> None:
    positions = event.positions if isinstance(event, ResourcesSampled) else event.ranks
    for position in positions or ():
        if rank := _rank(part, position.rank):
            before, rank.position_at = rank.position, at
            keeps_stack = position.frames is None and before and before.line == position.line
            rank.position = replace(position, frames=before.frames) if before and keeps_stack else position


# ── Reports of agents ─────────────────────────────────────────────────────────────────────────────────────────────────


def _start(part: AttemptPart, event: GenerationStarted, time: str, at: float) -> None:
    """All ranks of the node are new. Its container, started again, counts generations from 1 again."""
    if len(part.starts) < STARTS:
        part.starts[time] = event.generation or 1
    part.started_at, part.is_restarting, part.stopped = at, False, False
    part.finished = part.failed = part.liveness = part.exchange = None
    part.ranks, part.waiting_for, part.peers_silent, part.unresponsive = {}, {}, {}, {}
    part.finished_at = None


def _end(part: AttemptPart, event: Restarting | Finished, seen: float) -> None:
    part.ends.append(event)
    part.liveness = part.exchange = None
    part.waiting_for, part.peers_silent = {}, {}
    if isinstance(event, Finished):
        part.finished, part.is_restarting = event, False
        part.finished_at = seen if part.finished_at is None else part.finished_at
    else:
        part.is_restarting = True


def _liveness(part: AttemptPart, event: LivenessReported, at: float) -> None:
    part.hangs += bool(event.fault)
    if event.rule in EXCHANGE_RULES:
        part.exchange = event
    else:
        part.liveness = event if event.rule else None
        part.liveness_at = at


def _peers(part: AttemptPart, event: NodesEvent, at: float, seen: float) -> None:
    """Nodes that are missed, since the time of the line, and for decisions by the clock of this computer alone."""
    ago, names = max(0.0, event.seconds or 0.0), (event.nodes or ())[:MOST_NAMES]
    if isinstance(event, WaitingForNodes):
        part.waiting_for = {name: min(part.waiting_for.get(name, at - ago), at - ago) for name in names}
        part.unresponsive = {name: min(part.unresponsive.get(name, seen - ago), seen - ago) for name in names}
    elif isinstance(event, NodesStalled):
        for name in names:
            if name in part.silences or len(part.silences) < MOST_NAMES:
                part.silences[name] = part.silences.get(name, 0) + 1
        part.peers_silent = _with_names(part.peers_silent, names, at - ago)
        part.unresponsive = _with_names(part.unresponsive, names, seen - ago)
    elif isinstance(event, NodesRecovered):
        part.peers_silent = {name: one for name, one in part.peers_silent.items() if name not in names}
        part.unresponsive = {name: one for name, one in part.unresponsive.items() if name not in names}


def _with_names(known: Mapping[str, float], names: Sequence[str], since: float) -> dict[str, float]:
    """The known names, each with its time, and those that are new."""
    return dict([*known.items(), *((name, since) for name in names if name not in known)][:MOST_NAMES])


def _shortened(event: AnyEvent) -> AnyEvent:
    """The event without texts and values beyond a bound: of a forecast, whose tables are bounded, all stays."""
    long: dict[str, Any] = {}
    for one in fields(event):
        value = getattr(event, one.name)
        if isinstance(value, str):
            long[one.name] = value[:LINE_CHARS]
        elif isinstance(value, tuple) and one.name not in ("positions", "ranks"):
            long[one.name] = value[:MOST_NAMES]
    return replace(event, **long, others={})
