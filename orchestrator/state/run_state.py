"""State of a run: plain data, equal where it was made from equal facts. `apply` changes it, projections read it.

Times are seconds since 1970 by this computer's clock, durations seconds, shares from 0 to 1. None: not known. What a
node's lines report stands in the state of that node: lines of two nodes may be read in any order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from contract.cost_model.forecast import Forecast
from contract.cost_model.measurement import Measurement
from contract.event_values import RankPosition
from contract.events import (
    CheckpointWritten,
    ConnectivityTested,
    DataDamaged,
    Event,
    Finished,
    GenerationEnded,
    GroupJoined,
    LivenessReported,
    OutputProgress,
    ProgressEvent,
    RankFailed,
    RankStarted,
    TrainingResumed,
)
from contract.resources import ResourceUsage
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts, Run
from orchestrator.state.journal import Journal
from orchestrator.state.limits import FAILURES, LOSSES, MOMENTS, READINGS, TAIL


@dataclass(frozen=True, kw_only=True)
class TailLine:
    """A log line that is no event."""

    number: int
    """Position among the lines of its node, from 1."""
    at: float
    time: str
    """Time by the node's engine."""
    rank: int | None
    """Global rank; None for a line of the agent."""
    text: str
    """Cut to a bounded length, and not yet safe to show."""


@dataclass(slots=True, kw_only=True)
class RankPart:
    """A rank in the current generation, by the lines of its node."""

    stage: str = "started"
    """started, joined, left_out or ended."""
    started: RankStarted | None = None
    left_out: str = ""
    """Reason why it takes no part in the training."""
    line_at: float | None = None
    last_line: str = ""
    """Its newest log line that is not blank, not yet safe to show."""
    failed: RankFailed | None = None
    stopped: bool = False
    """True if it was asked to stop, and did."""
    position: RankPosition | None = None
    """Its newest position: a stack where one was taken."""
    position_at: float | None = None


@dataclass(slots=True, kw_only=True)
class AttemptPart:
    """One node's part of the current attempt, by the lines of its container."""

    lines: int = 0
    read_at: float | None = None
    """Time when its newest line was written."""
    starts: dict[str, int] = field(default_factory=dict)
    """Starts of its ranks: time of each → number of the generation."""
    generation: int = 0
    """Number of the newest generation that its agent has reported."""
    started_at: float | None = None
    """Time when its ranks last started."""
    is_restarting: bool = False
    """True if its newest report of agents is that all ranks are about to start again."""
    ranks: dict[int, RankPart] = field(default_factory=dict)
    progress: ProgressEvent | None = None
    """The newest report of progress, completed by the figures of earlier ones; its step never decreases within a
    generation."""
    progress_at: float = 0.0
    progress_generation: int = 0
    """Number of starts at its time: figures of an earlier one are those before a restart."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Shares of the time of the reporting rank by the newest step: `waiting`, `exchanging`."""
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES))
    printed: OutputProgress | None = None
    """The newest progress read from the output of a rank."""
    printed_at: float = 0.0
    checkpoint: CheckpointWritten | None = None
    """The newest verified checkpoint."""
    joined: GroupJoined | None = None
    resumed: TrainingResumed | None = None
    """Its newest report that the training continues from a checkpoint."""
    tested: ConnectivityTested | None = None
    forecast: Forecast | None = None
    measurement: Measurement | None = None
    unresponsive: dict[str, float] = field(default_factory=dict)
    """Nodes that the others wait for or miss, and since when: by the times at which this computer learned of it, as a
    decision follows from it and the node's clock may be wrong."""
    rank_seen_at: float = 0.0
    """Time when a line of a rank was last read."""
    finished_at: float | None = None
    """Time when its agent's report of the end was first read."""
    waiting_for: dict[str, float] = field(default_factory=dict)
    """Nodes that its coordinator waits for, and since when."""
    peers_silent: dict[str, float] = field(default_factory=dict)
    """Nodes that have sent its coordinator nothing, and since when."""
    liveness: LivenessReported | None = None
    """The coordinator's decision on progress that stands."""
    liveness_at: float = 0.0
    exchange: LivenessReported | None = None
    """Its decision that ranks exchange no gradients."""
    hangs: int = 0
    """Faults of the ranks that its coordinator has reported."""
    silences: dict[str, int] = field(default_factory=dict)
    """Number of times that it has reported each node as silent."""
    damaged: dict[tuple[str, str], DataDamaged] = field(default_factory=dict)
    """Files of its data that are damaged, by the name of the copy and their path, in the order of the reports."""
    finished: Finished | None = None
    stopped: bool = False
    """True if a rank was asked to stop and did, in this generation."""
    ends: deque[GenerationEnded] = field(default_factory=lambda: deque(maxlen=FAILURES))
    """Ends of its generations, the newest last."""
    failed: RankFailed | None = None
    """The first failure of a rank in this generation."""
    moments: deque[tuple[float, Event]] = field(default_factory=lambda: deque(maxlen=MOMENTS))
    """Its newest rare events, each with its time."""
    tail: deque[TailLine] = field(default_factory=lambda: deque(maxlen=TAIL))
    last_time: str = ""
    """Time of its newest line, as the node's engine has it."""
    recent: dict[int, None] = field(default_factory=dict)
    """Hashes of its newest lines, the newest last."""
    clock_ahead_s: float = 0.0
    """Seconds to subtract from its times: its clock was ahead, or was set back."""
    first_seen_at: float | None = None
    """Time when this computer read its first line."""
    clock_behind_s: float | None = None
    """Seconds by which lines that were read as they were written seem old, at least: its clock is behind. None: no line
    was read so."""

    def by_our_clock(self, at: float) -> float:
        """The same moment by the clock of this computer."""
        return at + (self.clock_behind_s or 0.0)


@dataclass(slots=True, kw_only=True)
class NodeState:
    """A node of the run, or of the inventory."""

    name: str
    node_rank: int | None = None
    """None: no part of the current attempt."""
    container: ContainerFacts | None = None
    """Its container of the current attempt."""
    ended_at: float | None = None
    """Time when the end of its container was seen."""
    is_missing: bool = False
    """True if it answers, and has no container of the current attempt."""
    last_answer_at: float | None = None
    silent_since: float | None = None
    error: str = ""
    """Reason why it does not answer."""
    usage: ResourceUsage | None = None
    usage_at: float | None = None
    sampled_at: float | None = None
    """Time when this computer last sampled it; otherwise samples are those in its lines."""
    cpu_history: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    gpu_history: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    """Mean utilization of its GPUs, in percent."""
    part: AttemptPart = field(default_factory=AttemptPart)


@dataclass(slots=True, kw_only=True)
class ForeignContainer:
    """A container with the run's label that is no part of it: shown, and stopped with the run, and nothing else."""

    node: str
    attempt: int | None
    is_active: bool = True


@dataclass(slots=True, kw_only=True)
class RunState:
    """All that this computer knows of a run."""

    run_id: str
    journal: Journal = field(default_factory=Journal)
    plan: Plan | None = None
    """Plan of the recorded attempt."""
    run: Run | None = None
    """The run as nodes last showed it; None: no container was seen."""
    was_looked_for: bool = False
    """True if nodes were asked for its containers."""
    unreachable: tuple[str, ...] = ()
    """Nodes that did not answer then."""
    as_of: float = 0.0
    """Time when the newest fact was seen."""
    attempt: int | None = None
    """The current attempt: that on record, or a later one that most nodes show."""
    claim: str = ""
    """Id of its claim on record."""
    master: str = ""
    """Node of rank 0."""
    recorded_forecast: Forecast | None = None
    nodes: dict[str, NodeState] = field(default_factory=dict)
    """Nodes in the order of node_rank, then nodes without a part in it."""
    foreign: dict[tuple[str, str], ForeignContainer] = field(default_factory=dict)
    """Node and short id of the container → what is known of it."""
    is_supervised: bool | None = None
    """True if a process of this computer supervises it; None: not known."""
    lines_not_stored: str = ""
    """Reason why lines are not stored completely on this computer; empty: they are."""

    @property
    def is_ahead_of_record(self) -> bool:
        """True if most nodes show a later attempt than the newest one that is recorded as started."""
        current = self.journal.current
        return bool(current and self.attempt is not None and self.attempt > current.number and not self.is_job)

    @property
    def is_job(self) -> bool:
        """True if it is a job of a cluster, of which the scheduler makes the attempts."""
        return bool(self.plan and self.plan.cluster)

    @property
    def is_superseded(self) -> bool:
        """True if another computer has continued the run: most nodes show a later attempt, which this one has not
        claimed."""
        claimed = None if self.attempt is None else self.journal.attempt(self.attempt)
        return self.is_ahead_of_record and (claimed is None or claimed.refused)

    @property
    def has_record(self) -> bool:
        """True if this computer has a record of the run."""
        return bool(self.journal.attempts)

    @property
    def members(self) -> list[NodeState]:
        """The nodes of the current attempt, by node_rank."""
        return sorted(
            (one for one in self.nodes.values() if one.node_rank is not None), key=lambda one: one.node_rank or 0
        )

    @property
    def coordinator(self) -> NodeState | None:
        """The node of rank 0, whose agent coordinates the others."""
        if found := self.nodes.get(self.master):
            return found
        return next((one for one in self.nodes.values() if one.node_rank == 0), None)

    @property
    def finished(self) -> Finished | None:
        """End of the attempt by its agents: the coordinator decides, otherwise the agent with the worst report."""
        coordinator = self.coordinator
        if coordinator and coordinator.part.finished:
            return coordinator.part.finished
        reports = [one.part.finished for one in self.members if one.part.finished]
        return next((one for one in reports if one.outcome not in ("done", "stopped")), reports[0] if reports else None)

    @property
    def samples_per_step(self) -> int | None:
        """Samples of each step, as the ranks have reported them."""
        reports = [one.part.joined for one in self.members if one.part.joined]
        return next((one.samples_per_step for one in reports if one.samples_per_step), None)

    @property
    def forecast(self) -> Forecast | None:
        """The predicted speed of the run."""
        coordinator = self.coordinator
        return (coordinator.part.forecast if coordinator else None) or self.recorded_forecast

    @property
    def leader(self) -> NodeState | None:
        """The node that reports progress: that of rank 0, or the first one that a forecast lets train."""
        if forecast := self.forecast:
            return next((one for one in self.members if forecast.led_by(one.name)), self.coordinator)
        return self.coordinator

    @property
    def restarts(self) -> int:
        """Restarts of all ranks in this attempt, by the coordinator's reports alone."""
        coordinator = self.coordinator
        if coordinator is None:
            return 0
        part = coordinator.part
        return max(len(part.starts), part.generation, 1) - 1 + part.is_restarting

    @property
    def faults(self) -> Mapping[str, int]:
        """Restarts of the ranks, warnings about stuck ranks (which may have continued by themselves) and silences of
        nodes, each counted once, although every node reports them."""
        counted = Counter[str]({"restarts of the ranks": self.restarts})
        if self.coordinator:
            counted["warnings about stuck ranks"] = self.coordinator.part.hangs
            counted.update({f"silences of {name}": times for name, times in self.coordinator.part.silences.items()})
        return +counted
