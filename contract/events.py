"""Events that ranks and agents report: their kinds and fields. `event_lines` encodes and decodes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from contract.cost_model.forecast import Forecast, read_forecast
from contract.cost_model.measurement import Measurement, read_measurement
from contract.event_values import (
    Figures,
    Flag,
    Float,
    Int,
    RankNumber,
    RankNumbers,
    RankPositions,
    Rows,
    StepNumber,
    Text,
    Texts,
    plain,
)
from contract.resources import ResourceUsage, read_usage


@dataclass(frozen=True, kw_only=True)
class Event:
    """Fields of every event. A field is None where the line lacks it, or has null: NaN and infinities count as null."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    kind: ClassVar[str] = ""

    t: Float | None = None
    """Seconds since 1970."""
    rank: RankNumber | None = None
    """Global rank; None in an event of an agent."""
    node: Text | None = None
    node_rank: RankNumber | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values without a field: null, or those of a newer trainer."""

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind = kind
            Event.kinds[kind] = cls

    def values(self) -> dict[str, Any]:
        """All values but the kind, as sent: plain data."""
        values = {name: value for name, value in plain(self).items() if name not in ("others", "unknown_kind")}
        if payload := PAYLOADS.get(type(self)):
            values |= asdict(values.pop(payload[0]))
        return {**values, **self.others}


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a newer trainer, or of a user's program."""

    unknown_kind: str = ""


# ── Events of ranks ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class RankStarted(Event, kind="started"):
    """A rank has started: all agents of the run have met, and its device is ready."""

    device: Text | None = None
    threads: Int | None = None
    precision: Text | None = None
    torch: Text | None = None
    onednn: Flag | None = None
    backend: Text | None = None
    attempt: Int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupJoined(Event, kind="joined"):
    """A rank has joined the process group."""

    world_size: RankNumber | None = None
    backend: Text | None = None
    samples_per_step: StepNumber | None = None


@dataclass(frozen=True, kw_only=True)
class NodesMeasured(Event, kind="measured"):
    """Rank 0 has measured nodes and links."""

    measurement: Measurement


@dataclass(frozen=True, kw_only=True)
class ForecastMade(Event, kind="forecast"):
    """Rank 0 has predicted the speed of the run."""

    forecast: Forecast


@dataclass(frozen=True, kw_only=True)
class ConnectivityTested(Event, kind="tested"):
    """Rank 0 has tested collectives and links: `others` is the result."""


@dataclass(frozen=True, kw_only=True)
class RankLeftOut(Event, kind="left_out"):
    """The rank takes no part in the training."""

    why: Text | None = None


@dataclass(frozen=True, kw_only=True)
class OptionsChosen(Event, kind="options"):
    """The options that rank 0 trains with."""

    options: Rows | None = None
    """Name, value and origin of each that has a value."""


@dataclass(frozen=True, kw_only=True)
class TrainingResumed(Event, kind="resumed"):
    step: StepNumber | None = None
    checkpoint: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Rebalanced(Event, kind="rebalanced"):
    """Shares of the global batch have changed."""

    shares: Figures | None = None


@dataclass(frozen=True, kw_only=True)
class SampleWritten(Event, kind="sample"):
    text: Text | None = None


@dataclass(frozen=True, kw_only=True)
class ProgressEvent(Event):
    """An event that reports how far the training is. Figures that a kind never sends come from earlier events."""

    step: StepNumber | None = None
    loss: Float | None = None
    per_s: Float | None = None
    unit: Text | None = None
    of_forecast: Float | None = None
    """Speed divided by the predicted speed."""
    compute_s: Figures | None = None
    """Seconds for a rank's part of a step, by node or `NODE.LOCAL_RANK`."""
    final_step: StepNumber | None = None
    """Last step of the training; None where a script has not named it."""
    remaining_s: Float | None = None
    """Estimated seconds to it, at the time of the event."""
    balanced: StepNumber | None = None
    """Number of times that `--shares auto` has compared the speeds; None without it."""


@dataclass(frozen=True, kw_only=True)
class StepDone(ProgressEvent, kind="step"):
    """An optimizer step; not every step is reported. `others`: further figures of the trainer."""

    ended_at: Float | None = None
    """End of the step, in seconds since 1970. `t` is up to one step later, where the figures are read during the next
    step: measure between steps by this. On a GPU, the time at which the figures were read: not before the end, and
    where the exchange of gradients waits for the GPU up to one step after it."""

    @property
    def late_s(self) -> float:
        """Seconds from the end of the step to its report; 0 where the line does not say."""
        return 0.0 if self.t is None or self.ended_at is None else max(0.0, self.t - self.ended_at)


@dataclass(frozen=True, kw_only=True)
class Evaluated(ProgressEvent, kind="evaluation"):
    """Result of an evaluation. `others`: the workload's metrics."""


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(ProgressEvent, kind="checkpoint"):
    path: Text | None = None
    sha256: Text | None = None
    """Hash of its manifest, which holds those of all its files."""
    verified: Flag | None = None
    """True if it was read back and is intact."""
    stopped_s: Float | None = None
    """Seconds for which the training waited."""
    seconds: Float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingStopped(ProgressEvent, kind="stopped"):
    """The rank was asked to stop, and did after this step."""


@dataclass(frozen=True, kw_only=True)
class TrainingDone(ProgressEvent, kind="done"):
    seconds: Float | None = None
    gpu_bytes: Int | None = None


@dataclass(frozen=True, kw_only=True)
class RankFailed(Event, kind="failed"):
    """An exception ended the rank."""

    owner: Text | None = None
    cause: Text | None = None
    """Id of the signature that matched."""
    error: Text | None = None
    """Type of the exception."""
    message: Text | None = None
    frame: Text | None = None
    """`FILE:LINE in FUNCTION`."""

    @property
    def reason(self) -> str:
        return f"{self.error or 'error'}: {self.message or ''}"


@dataclass(frozen=True, kw_only=True)
class LineRedrawn(Event, kind="redraw"):
    """A state of a progress bar that the agent did not pass on as a line: `orch logs --raw` shows it."""

    bar: Text | None = None
    """Text before the bar, the same for all of its states."""
    text: Text | None = None


# ── Events of agents ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class AgentEvent(Event):
    generation: StepNumber | None = None
    """Number of the start of the ranks within the attempt: 1 for the first."""


@dataclass(frozen=True, kw_only=True)
class GenerationStarted(AgentEvent, kind="generation"):
    """The agent has started torchrun."""


@dataclass(frozen=True, kw_only=True)
class GenerationEnded(AgentEvent):
    """All ranks have ended. `node` and `rank` are those of the cause."""

    outcome: Text | None = None
    """done, stopped, or the owner of the failure."""
    note: Text | None = None
    """Sentence about a run that ended well, such as that its ranks exchanged no gradients."""
    exit_code: Int | None = None
    reason: Text | None = None
    cause: Text | None = None
    """Id of the signature that matched."""
    frame: Text | None = None
    because_of_others: Flag | None = None


@dataclass(frozen=True, kw_only=True)
class Restarting(GenerationEnded, kind="restarting"):
    """All ranks start again."""

    restarts_left: Int | None = None
    pause_s: Float | None = None


@dataclass(frozen=True, kw_only=True)
class Finished(GenerationEnded, kind="finished"):
    """The attempt is over: no rank starts again."""


@dataclass(frozen=True, kw_only=True)
class LivenessReported(AgentEvent, kind="liveness"):
    """A decision of the coordinator about ranks without progress, or that exchange no gradients; the next one about
    progress replaces it."""

    rule: Text | None = None
    """Row of the table in `contract.liveness`; empty: the ranks make progress again."""
    text: Text | None = None
    fault: Flag | None = None
    """True if something is wrong; otherwise it is a note."""
    ranks: RankNumbers | None = None
    """Ranks that others wait for, or that it is about."""
    nodes: Texts | None = None
    """Their nodes, in the same order."""
    seconds: Float | None = None
    fix: Text | None = None
    """Next command."""

    @property
    def message(self) -> str:
        """The line for people."""
        if not self.rule:
            return f"· progress again after {self.seconds or 0:.0f} s"
        return f"{'!' if self.fault else '·'} {self.text or ''}" + (f" → {self.fix}" if self.fix else "")


@dataclass(frozen=True, kw_only=True)
class StacksTaken(AgentEvent, kind="stacks"):
    """Python stacks of the ranks of a node, on the coordinator's order."""

    ranks: RankPositions | None = None


@dataclass(frozen=True, kw_only=True)
class OutputProgress(AgentEvent, kind="output"):
    """Progress that an agent has read from the output of a rank, for people: no decision depends on it."""

    epoch: Float | None = None
    """A fraction where the program prints one."""
    epochs: StepNumber | None = None
    step: StepNumber | None = None
    """Position in the unit that the program counts: steps, batches or samples."""
    steps: StepNumber | None = None
    loss: Float | None = None
    loss_key: Text | None = None
    """The name of the loss in the output."""
    not_finite: Text | None = None
    """`nan` or `inf`, where the loss is that, twice in succession."""
    not_finite_since: StepNumber | None = None
    """Step of the first such loss; None where the output names none."""
    per_s: Float | None = None
    """Speed by the agent's own clock."""
    unit: Text | None = None
    remaining_s: Float | None = None
    """Estimated seconds to the end of the training, at the time of the event."""

    @property
    def share(self) -> float | None:
        """Part of the pass that the step belongs to, from 0 to 1."""
        return None if self.step is None or not self.steps else min(1.0, self.step / self.steps)


@dataclass(frozen=True, kw_only=True)
class NodesEvent(AgentEvent):
    """An event of the coordinator about other nodes."""

    nodes: Texts | None = None
    seconds: Float | None = None


@dataclass(frozen=True, kw_only=True)
class WaitingForNodes(NodesEvent, kind="waiting"):
    """These nodes are not ready to start."""


@dataclass(frozen=True, kw_only=True)
class NodesStalled(NodesEvent, kind="stalled"):
    """These nodes have sent nothing for some seconds."""


@dataclass(frozen=True, kw_only=True)
class NodesRecovered(NodesEvent, kind="recovered"):
    """These nodes send again."""


@dataclass(frozen=True, kw_only=True)
class OutputsEvent(AgentEvent):
    """An event about files that ranks wrote, which are compared before each start."""

    nodes: Texts | None = None
    source: Text | None = None
    """Node that has the files."""
    path: Text | None = None
    """A file by its path in the folder of the script: of several, the largest."""
    size: Int | None = None
    """Bytes of this file."""
    more: Int | None = None
    """Number of the other files."""
    total: Int | None = None
    """Bytes of all files."""
    seconds: Float | None = None
    """Time of the copy."""


@dataclass(frozen=True, kw_only=True)
class OutputsMissing(OutputsEvent, kind="outputs_missing"):
    """`nodes` do not have files that ranks wrote on `source`. `seconds` is an estimate."""

    outdated: Flag | None = None
    """True if `nodes` have older copies of all of them."""
    other_ranks: Flag | None = None
    """True if another rank than rank 0 wrote them."""
    why_not: Text | None = None
    """`off`, `limit`, `other_ranks` or `connection`: why they are not copied; None: they are."""


@dataclass(frozen=True, kw_only=True)
class OutputsDiffer(OutputsEvent, kind="outputs_differ"):
    """A file has another content on each of two nodes: each keeps its own."""


@dataclass(frozen=True, kw_only=True)
class OutputsCopied(OutputsEvent, kind="outputs_copied"):
    """A copy between the event's node and rank 0's, `source`, has ended: `more` files were copied."""

    problem: Text | None = None
    """A file that was not copied, and why; empty: all were."""


@dataclass(frozen=True, kw_only=True)
class DataDamaged(AgentEvent, kind="data_damaged"):
    """A file of the node's copy of the data is not what was sent. The ranks continue to read it."""

    data: Text | None = None
    """Name of the copy."""
    file: Text | None = None
    """Path in the copy."""
    wrong: Text | None = None
    """`content`, `length`, `missing` or `unreadable`."""
    offset: Int | None = None
    size: Int | None = None
    """Bytes from `offset` in which the difference lies."""
    intact_at: Float | None = None
    """Time from which it may be damaged: the file was last known to be intact then, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class ResourcesSampled(AgentEvent, kind="resources"):
    """Resources in use on the node in the last ten seconds, and where its ranks are."""

    usage: ResourceUsage
    positions: RankPositions | None = None


PAYLOADS: Mapping[type[Event], tuple[str, Callable[[Any], Any]]] = {
    NodesMeasured: ("measurement", read_measurement),
    ForecastMade: ("forecast", read_forecast),
    ResourcesSampled: ("usage", read_usage),
}
"""Fields with fields of their own, which stand on the line beside those of the event; and their readers."""
