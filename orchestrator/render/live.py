"""A live model of machines and their run: events in, a frozen snapshot out, for a screen, for programs, for a page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from contract.cost_model.forecast import Forecast
from contract.events import (
    Event,
    ForecastMade,
    LivenessReported,
    OutputProgress,
    ProgressEvent,
    RankFailed,
    ResourcesSampled,
    Restarting,
    StepDone,
)
from contract.liveness_watch import EXCHANGE_RULES
from contract.resources import ResourceUsage
from orchestrator.checks.hang import timestamp
from orchestrator.checks.progress import with_figures
from orchestrator.checks.stragglers import Straggler, straggler
from orchestrator.render.live_figures import PrintedProgress, reported, worst_state
from orchestrator.render.printable import printable
from orchestrator.render.recovery import recovery_line
from orchestrator.specs.past_run import PastRun
from orchestrator.specs.run import Run, State
from orchestrator.specs.run_events import (
    ContainerExited,
    ContainerRemoved,
    NodeBack,
    NodeLost,
    NodeSampled,
    NodeSilent,
    RunFound,
    RunLine,
    WatchEvent,
)

SILENT_S = 4.0
"""Seconds after which a node that is sampled every two seconds counts as silent."""
MOST_AGE_S = 600.0
"""An older event, or one of the future, tells of clocks that differ rather than of its age."""
STALLED_S = 60.0
"""Without progress: a shorter pause is an evaluation or a checkpoint."""
LOSSES, READINGS, FAULTS, LINES = 240, 60, 50, 1000
"""Newest values that are kept: of the run, of a node, of the run, of a node."""
LONGEST = 2000
"""Characters of a kept line."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that went wrong, or has recovered."""

    at: float
    """Seconds since 1970."""
    node: str
    text: str


@dataclass(frozen=True, kw_only=True)
class KeptLine:
    """A log line that is not an event."""

    number: int
    """Position among the lines of its node, from 1."""
    time: str
    rank: int | None
    """Global rank; None for a line of the agent."""
    text: str
    """Safe to show, and cut to a bounded length."""


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run as it is known now. None: not known, or not reported."""

    run_id: str
    state: str
    reason: str = ""
    attempt: int | None = None
    command: str = ""
    started_at: str = ""
    as_of: str = ""
    """Time of the record, for a run that no node shows."""
    step: int | None = None
    final_step: int | None = None
    step_age_s: float | None = None
    """Since the newest report of progress."""
    remaining_s: float | None = None
    """None, too, while the run makes no progress, or one of its nodes is silent."""
    loss: float | None = None
    losses: tuple[float, ...] = ()
    """Losses of the newest reported steps, the newest last."""
    per_s: float | None = None
    unit: str = ""
    of_forecast: float | None = None
    waiting: float | None = None
    exchanging: float | None = None
    """Shares of the time, from 0 to 1, in which the reporting rank waits for data, and for the other nodes."""
    straggler: Straggler | None = None
    liveness: str = ""
    """The coordinator's decision that stands, `!` or `·` first: a rank that others wait for, models trained apart."""
    restarts: int = 0
    """Seen since the monitor has started."""
    restarting: bool = False
    """Whether no step has come since the newest restart: figures are those before it."""
    output: str = ""
    """Progress read from its output, in words, where its own events report none; its loss, speed and time left are
    then those of this run."""
    output_share: float | None = None
    """Part of the training that this output says is done, from 0 to 1."""
    said: str = ""
    """The newest log line of a rank, where it says more than steps do: before the first, and while none comes."""

    @property
    def progress(self) -> float | None:
        """From 0 to 1."""
        if self.output:
            return self.output_share
        if self.step is None or not self.final_step:
            return None
        return min(1.0, self.step / self.final_step)


@dataclass(frozen=True, kw_only=True)
class LiveNode:
    """A node as it is known now."""

    name: str
    node_rank: int | None = None
    """None: no part of the run."""
    state: str
    """State of its container; `idle` without one, `connecting` before the first answer, otherwise `no answer`."""
    silent: bool = False
    heard_s: float | None = None
    """Since it was heard last; None: not yet."""
    problem: str = ""
    """Why it is silent, or how its container ended."""
    usage: ResourceUsage | None = None
    """The newest reading; that of a silent node is old."""
    usage_age_s: float | None = None
    cpu_history: tuple[float, ...] = ()
    gpu_history: tuple[float, ...] = ()
    """Mean utilization of its GPUs, in percent."""
    compute_s: float | None = None
    """Seconds for its part of a step: those of its slowest rank."""
    lines: int = 0
    """Log lines since the monitor has started."""


@dataclass(frozen=True, kw_only=True)
class LiveSnapshot:
    """All that is known at one moment."""

    at: float
    """Seconds since 1970, by this computer's clock."""
    run: LiveRun | None
    looked: bool
    """Whether the nodes have been asked for runs."""
    nodes: tuple[LiveNode, ...]
    faults: tuple[Fault, ...]
    """The newest, in order of time."""

    def data(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        values = asdict(self)
        if self.run:
            values["run"]["progress"] = self.run.progress
        return values


@dataclass(kw_only=True)
class _Node:
    """Facts known of a node so far. Times are those of the monotonic clock."""

    rank: int | None = None
    state: str = ""
    heard: float | None = None
    lost: bool = False
    problem: str = ""
    usage: ResourceUsage | None = None
    used: float = 0.0
    cpu: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    gpu: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    seen: str = ""
    """Time of the newest line that has counted."""
    count: int = 0
    told: int = 0
    tail: deque[KeptLine] = field(default_factory=lambda: deque(maxlen=LINES))


def _age_s(time: str, now: float) -> float:
    """Seconds since a line was written; 0 where its clock says otherwise."""
    age = now - timestamp(time)
    return age if 0 <= age <= MOST_AGE_S else 0.0


class LiveModel:
    """Facts of a run and its nodes so far. One thread at a time may use it."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` measures ages, and never jumps; `wall` is the time of day, which may."""
        self._clock, self._wall = clock, wall
        self._nodes = {name: _Node() for name in names}
        self._run: Run | None = None
        self._past: PastRun | None = None
        self._forecast: Forecast | None = None
        self._looked = False
        self._last: ProgressEvent | None = None
        self._step: ProgressEvent | None = None
        self._printed = PrintedProgress()
        self._progressed = 0.0
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._faults: deque[Fault] = deque(maxlen=FAULTS)
        self._restarts, self._restarting = 0, False
        self._liveness: dict[bool, str] = {}
        """Decisions on progress (False) and on the exchange of gradients (True) that stand."""
        self._said = ("", "")
        """Time and text of the newest line of a rank."""

    def watch(self, names: Iterable[str]) -> None:
        """Know these nodes, in this order, and no others."""
        self._nodes = {name: self._nodes.get(name) or _Node() for name in names}

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, event: WatchEvent) -> None:
        """Take an event into account. Those of nodes that are not watched change nothing."""
        if isinstance(event, RunFound):
            self._find(event)
            return
        node = self._nodes.get(getattr(event, "node", ""))
        if node is None:
            return
        match event:
            case RunLine():
                self._read(event, node)
            case NodeSampled(usage=usage):
                self._hear(node)
                if usage:
                    self._use(node, usage)
            case NodeSilent(error=error) | NodeLost(error=error):
                node.lost, node.problem = True, printable(error.message)
                self._note(event.node, event)
            case NodeBack():
                self._hear(node)
                self._note(event.node, event)
            case ContainerExited(container=container):
                self._hear(node)
                node.state = container.state.value
                if container.state is State.FAILED:
                    how = "out of memory" if container.oom_killed else f"exit code {container.exit_code}"
                    node.problem = how
                    self._fault(event.node, f"the container on {event.node} has ended: {how}")
            case ContainerRemoved():
                node.state = State.LOST.value
                self._note(event.node, event)

    def tail(self, name: str, after: int = 0) -> list[KeptLine]:
        """The newest log lines of a node, after the line with this number."""
        return [line for line in self._nodes[name].tail if line.number > after]

    def silent(self) -> frozenset[str]:
        """Names of the nodes that are silent now."""
        now = self._clock()
        return frozenset(name for name, node in self._nodes.items() if self._is_silent(node, now))

    @property
    def settled(self) -> bool:
        """Whether the nodes were asked for runs, and each has answered or is known not to."""
        return self._looked and all(node.usage or node.lost for node in self._nodes.values())

    def _find(self, found: RunFound) -> None:
        self._looked = True
        before, now = (self._run or self._past), (found.run or found.past)
        self._run, self._past = found.run, found.past
        self._forecast = found.forecast or self._forecast
        if now and before and now.run_id != before.run_id:
            self._forget(found.forecast)
        if found.past and found.past.last_event:
            self._last = self._step = found.past.last_event
        self._printed.event = (found.past and found.past.output) or self._printed.event
        for node in self._nodes.values():
            node.rank, node.state = None, ""
        for member in found.run.members if found.run else ():
            if held := self._nodes.get(member.node):
                held.rank, held.state = member.node_rank, member.state.value
                if not held.lost:
                    held.problem = printable(member.reason or (member.container.error if member.container else ""))
        for line in found.lines:
            self.add(line)

    def _forget(self, forecast: Forecast | None) -> None:
        """Begin with another run, perhaps an older one: its lines may be older than those that were read."""
        self._last = self._step = None
        self._printed = PrintedProgress()
        self._losses.clear()
        self._faults.clear()
        self._restarts, self._restarting, self._said = 0, False, ("", "")
        self._forecast = forecast
        for node in self._nodes.values():
            node.seen = ""
            if not node.lost:
                node.problem = ""

    def _read(self, line: RunLine, node: _Node) -> None:
        if line.time <= node.seen:  # read before: from the record, or over an earlier connection
            return
        node.seen = line.time
        if node.state == State.CREATED.value:  # it has started since it was found
            node.state = State.RUNNING.value
        node.count += 1
        self._hear(node)
        event = line.event
        if event is None:
            node.told += 1
            text = printable(line.text[:LONGEST])
            node.tail.append(KeptLine(number=node.told, time=line.time, rank=line.rank, text=text))
            if line.rank is not None and text.strip() and line.time >= self._said[0]:
                self._said = (line.time, f"rank {line.rank}: {text.strip()}")
            return
        if isinstance(event, ProgressEvent):
            self._progress(event, line.time)
        elif isinstance(event, OutputProgress):
            self._print(event, line)
        elif isinstance(event, ResourcesSampled):
            if node.usage is None or self._clock() - node.used > SILENT_S:  # the samples of two seconds are newer
                self._use(node, event.usage)
        elif isinstance(event, ForecastMade):
            self._forecast = event.forecast
        else:
            self._trouble(event, line)

    def _progress(self, event: ProgressEvent, at: str) -> None:
        self._last = with_figures(event, self._last) if self._last else event
        self._restarting = False
        self._progressed = self._clock() - _age_s(at, self._wall())
        if isinstance(event, StepDone):
            self._step = event
            if event.loss is not None:
                self._losses.append(event.loss)

    def _print(self, event: OutputProgress, line: RunLine) -> None:
        if warning := self._printed.take(event, self._clock() - _age_s(line.time, self._wall())):
            self._fault(line.node, warning, timestamp(line.time) or None)
        if self._printed.event is event and event.loss is not None and self._step is None:
            self._losses.append(event.loss)

    def _trouble(self, event: Event, line: RunLine) -> None:
        at = timestamp(line.time) or self._wall()
        if isinstance(event, RankFailed):
            self._fault(line.node, f"rank {event.rank} on {line.node}: {event.reason}", at)
        elif isinstance(event, Restarting) or recovery_line(line):
            if isinstance(event, LivenessReported):
                self._liveness[event.rule in EXCHANGE_RULES] = printable(event.message) if event.rule else ""
            if isinstance(event, Restarting):
                self._liveness.clear()
                self._restarts += line.node_rank == 0
                self._restarting = True
            self._note(line.node, line, at)

    def _note(self, name: str, event: Any, at: float | None = None) -> None:
        if text := recovery_line(event):
            self._fault(name, text.partition("\n")[0][2:], at)

    def _fault(self, name: str, text: str, at: float | None = None) -> None:
        self._faults.append(Fault(at=self._wall() if at is None else at, node=name, text=printable(text[:LONGEST])))

    def _hear(self, node: _Node) -> None:
        if node.lost:
            node.lost, node.problem = False, ""
        node.heard = self._clock()

    def _use(self, node: _Node, usage: ResourceUsage) -> None:
        node.usage, node.used = usage, self._clock()
        node.cpu.append(usage.cpu_percent)
        busy = [gpu.utilization_percent for gpu in usage.gpus if gpu.utilization_percent is not None]
        if busy:
            node.gpu.append(sum(busy) / len(busy))

    # ── Snapshot ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> LiveSnapshot:
        now = self._clock()
        compute_s = self._compute_s()
        return LiveSnapshot(
            at=self._wall(),
            run=self._live_run(now),
            looked=self._looked,
            nodes=tuple(self._live_node(name, node, now, compute_s) for name, node in self._nodes.items()),
            faults=tuple(self._faults),
        )

    def _live_node(self, name: str, node: _Node, now: float, compute_s: Mapping[str, float]) -> LiveNode:
        heard_s = None if node.heard is None else max(0.0, now - node.heard)
        silent = self._is_silent(node, now)
        unknown = "no answer" if node.lost and node.heard is None else "connecting" if node.heard is None else "idle"
        return LiveNode(
            name=name,
            node_rank=node.rank,
            state=node.state or unknown,
            silent=silent,
            heard_s=heard_s,
            problem=node.problem,
            usage=node.usage,
            usage_age_s=max(0.0, now - node.used) if node.usage else None,
            cpu_history=tuple(node.cpu),
            gpu_history=tuple(node.gpu),
            compute_s=compute_s.get(name),
            lines=node.count,
        )

    def _is_silent(self, node: _Node, now: float) -> bool:
        return node.lost or (node.heard is not None and now - node.heard > SILENT_S)

    def _live_run(self, now: float) -> LiveRun | None:
        last, step = self._last, self._step
        age = max(0.0, now - self._progressed)
        figures: dict[str, Any] = {}
        running = self._state() == State.RUNNING.value
        if last:
            left = last.remaining_s
            figures = {
                **reported(last, step),
                "step_age_s": age if self._run else None,
                "remaining_s": max(0.0, left - age) if left is not None and left >= 0 and self._moves(age) else None,
                "losses": tuple(self._losses),
                "straggler": self._straggler() if running and not self._restarting else None,
            }
        if not last and self._printed.event:
            figures = {**self._printed.figures(now, running=running), "losses": tuple(self._losses)}
        if running and (not last or self._restarting or age > STALLED_S):
            figures["said"] = self._said[1]
        if run := self._run:
            return LiveRun(
                run_id=run.run_id, state=self._state(), attempt=run.attempt, command=printable(run.command),
                started_at=run.started_at, liveness=" ".join(filter(None, self._liveness.values())) if running else "",
                restarts=self._restarts, restarting=running and self._restarting, **figures,
            )  # fmt: skip
        if past := self._past:
            return LiveRun(
                run_id=past.run_id, state=past.state, reason=printable(past.reason), as_of=past.as_of,
                command=printable(past.command), started_at=past.started_at, **figures,
            )  # fmt: skip
        return None

    def _moves(self, age_s: float) -> bool:
        """Whether the run is likely to make progress: it runs, all of its nodes are heard, and steps come."""
        silent = any(node.rank is not None and self._is_silent(node, self._clock()) for node in self._nodes.values())
        return self._state() == State.RUNNING.value and not silent and not self._restarting and age_s < STALLED_S

    def _state(self) -> str:
        """As healthy as the worst of its containers, as far as their ends have been seen."""
        if not self._run:
            return ""
        states = {node.state for node in self._nodes.values() if node.rank is not None}
        unseen = {member.state.value for member in self._run.members if member.node not in self._nodes}
        return worst_state(states | unseen)

    def _compute_s(self) -> dict[str, float]:
        """Seconds of the slowest rank of each node."""
        slowest: dict[str, float] = {}
        if self._restarting:
            return slowest
        for label, seconds in ((self._last and self._last.compute_s) or {}).items():
            node = self._node_of(label)
            if seconds is not None and node:
                slowest[node] = max(seconds, slowest.get(node, 0.0))
        return slowest

    def _straggler(self) -> Straggler | None:
        used = {name: node.usage for name, node in self._nodes.items() if node.usage}
        links = (
            {self._node_of(label): speed for label, speed in self._forecast.link_mbit_s.items()}
            if self._forecast
            else {}
        )
        links.pop("", None)
        last = self._last
        if last and self._step:  # a checkpoint has no shares of its own
            last = with_figures(self._step, last) if last is not self._step else last
        return straggler(last, self._nodes, used, links)

    def _node_of(self, label: str) -> str:
        """Node of `NODE` or `NODE.LOCAL_RANK`; empty where it is not watched."""
        if label in self._nodes:
            return label
        node = label.rpartition(".")[0]
        return node if node in self._nodes else ""
