"""Events: the `@orch {json}` lines that ranks and agents write between their log lines. Encoded and decoded here alone.

Any program on a node can write such a line: each value is checked for its type and its bounds, and a line that does not
fit is an ordinary log line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from contract.cost_model.forecast import Forecast, read_forecast
from contract.cost_model.measurement import Measurement, read_measurement
from contract.log_lines import EVENT_MARK
from contract.resources import ResourceUsage, read_usage

MAX_EVENT_CHARS = 1024 * 1024
"""A forecast of fifty nodes has some ten thousand."""
MAX_ITEMS, MAX_DEPTH = 4096, 16
"""Items of a list or an object in an event, and levels of nesting."""
STEP_LIMIT, RANK_LIMIT, INT_LIMIT = 10**12, 10**6, 2**63 - 1

Checked = TypeVar("Checked")


def _is(*kinds: type[Checked]) -> Callable[[Any], Any]:
    """A reader that returns a value of one of these types. ValueError: another type."""

    def read(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"{value!r:.80} is of another type")
        return value

    return read


_text, _int, _float = _is(str), _is(int), _is(int, float)


def _int_below(limit: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number: int = _int(value)
        if not 0 <= number < limit:
            raise ValueError(f"{number} is out of bounds")
        return number

    return read


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in _is(list)(value))


def _figures(value: Any) -> Mapping[str, float | None]:
    return {key: None if item is None else _float(item) for key, item in _is(dict)(value).items()}


def _rows(value: Any) -> tuple[tuple[str, str, str], ...]:
    rows = tuple(_texts(row) for row in _is(list)(value))
    if any(len(row) != 3 for row in rows):
        raise ValueError("a row of other than three texts")
    return tuple((first, second, third) for first, second, third in rows)


def _rank_numbers(value: Any) -> tuple[int, ...]:
    return tuple(_int_below(RANK_LIMIT)(item) for item in _is(list)(value))


def _rank_positions(value: Any) -> tuple[RankPosition, ...]:
    found = tuple(RankPosition(**_fields(RankPosition, _is(dict)(item))) for item in _is(list)(value))
    if any(one.rank is None for one in found):
        raise ValueError("a rank without its number")
    return found


Text = Annotated[str, _text]
Flag = Annotated[bool, _is(bool)]
Int = Annotated[int, _int]
Float = Annotated[float, _float]
StepNumber = Annotated[int, _int_below(STEP_LIMIT + 1)]
RankNumber = Annotated[int, _int_below(RANK_LIMIT)]
Texts = Annotated[tuple[str, ...], _texts]
RankNumbers = Annotated[tuple[int, ...], _rank_numbers]
Rows = Annotated[tuple[tuple[str, str, str], ...], _rows]
Figures = Annotated[Mapping[str, float | None], _figures]


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """Position of a rank: its line, its work, and its Python stack where that was requested."""

    rank: RankNumber | None = None
    process: Int | None = None
    line: Text | None = None
    """The user's line: `FILE:LINE in FUNCTION`."""
    cpu: Float | None = None
    """CPU seconds per second of the rank and its descendants."""
    step: StepNumber | None = None
    """Step of the trainer, otherwise the number of optimizer steps."""
    part: Text | None = None
    """Part of the step, as the trainer names it."""
    exchange: Text | None = None
    """The collective that the rank reports to be in."""
    frames: Texts | None = None
    """`FILE:LINE in FUNCTION`, the innermost first; empty: the rank did not answer."""
    state: Text | None = None
    """The kernel's letter for the process."""


RankPositions = Annotated[tuple[RankPosition, ...], _rank_positions]


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
        values = {name: value for name, value in _plain(self).items() if name not in ("others", "unknown_kind")}
        if payload := _PAYLOADS.get(type(self)):
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
    """How often `--shares auto` has compared the speeds; None without it."""


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
    """`others`: the workload's metrics."""


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(ProgressEvent, kind="checkpoint"):
    path: Text | None = None
    sha256: Text | None = None
    """Hash of its manifest, which holds those of all its files."""
    verified: Flag | None = None
    """Whether it was read back and is intact."""
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
    """Whether something is wrong; otherwise it is a note."""
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
    """Whether `nodes` have older copies of all of them."""
    other_ranks: Flag | None = None
    """Whether another rank than rank 0 wrote them."""
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
class ResourcesSampled(AgentEvent, kind="resources"):
    """Resources in use on the node in the last ten seconds, and where its ranks are."""

    usage: ResourceUsage
    positions: RankPositions | None = None


# ── Encoding and decoding ─────────────────────────────────────────────────────────────────────────────────────────────

_OLD_KINDS = {
    "epoch": "generation", "again": "restarting", "over": "finished", "heard": "recovered",
}  # fmt: skip
_OLD_NAMES: tuple[tuple[type[Event], str, str], ...] = (
    (AgentEvent, "epoch", "generation"),
    (GenerationEnded, "class", "outcome"),
    (RankFailed, "class", "owner"),
    (WaitingForNodes, "for", "nodes"),
)
"""Kinds and names before 0.1.0: records of such runs stay readable."""
_FIRST_KIND = re.compile(r'\{"event": "(\w{1,40})"')


_PAYLOADS: Mapping[type[Event], tuple[str, Callable[[Any], Any]]] = {
    NodesMeasured: ("measurement", read_measurement),
    ForecastMade: ("forecast", read_forecast),
    ResourcesSampled: ("usage", read_usage),
}
"""Fields with fields of their own, which stand on the line beside those of the event; and their readers."""


def encode_event(event: Event) -> str:
    """One line without its newline; NaN and infinities become null."""
    values = {"event": kind_of(event), **event.values()}
    return EVENT_MARK + json.dumps({name: None if _is_nan(value) else value for name, value in values.items()})


def decode_event(text: str, rank: int | None = None) -> Event | None:
    """The event of a line without rank prefix; None for an ordinary line and for one that does not fit, such as a step
    that is not a number. `rank` is that of the line, for an event without one."""
    if not text.startswith(EVENT_MARK) or len(text) > MAX_EVENT_CHARS:
        return None
    try:
        read = json.loads(text[len(EVENT_MARK) :], parse_constant=lambda _name: None, parse_float=_finite)
        values = _bounded(_is(dict)(read))
        kind = _text(values.pop("event", None))
        cls = Event.kinds.get(_OLD_KINDS.get(kind, kind), UnknownEvent)
        for owner, old, new in _OLD_NAMES:
            if issubclass(cls, owner) and old in values and not hasattr(cls, old):
                values.setdefault(new, values.pop(old))
        values.setdefault("rank", rank)
        own = _fields(cls, values)
        if payload := _PAYLOADS.get(cls):
            return cls(**own, **{payload[0]: payload[1](values)})
    except (ValueError, RecursionError):
        return None
    others = {name: value for name, value in values.items() if name not in own and (name, value) != ("rank", None)}
    if cls is UnknownEvent:
        return UnknownEvent(**own, others=others, unknown_kind=kind)
    return cls(**own, others=others)


def kind_in(text: str) -> str:
    """The kind of the event that a line seems to hold, without decoding it; empty for an ordinary line."""
    if not text.startswith(EVENT_MARK):
        return ""
    if match := _FIRST_KIND.match(text, len(EVENT_MARK)):
        return _OLD_KINDS.get(match[1], match[1])
    event = decode_event(text)
    return kind_of(event) if event else ""


def is_redrawn(text: str) -> bool:
    """Whether a line holds a state of a progress bar, which is none of the lines that a program leaves behind."""
    return kind_in(text) == LineRedrawn.kind


def kind_of(event: Event) -> str:
    """The kind on the wire."""
    return event.unknown_kind if isinstance(event, UnknownEvent) else event.kind


def _plain(of_fields: Event | RankPosition) -> dict[str, Any]:
    """The fields that have a value."""
    values = {one.name: getattr(of_fields, one.name) for one in fields(of_fields)}
    for name in ("ranks", "positions"):
        if isinstance(of_fields, StacksTaken | ResourcesSampled) and values.get(name) is not None:
            values[name] = [_plain(position) for position in values[name]]
    return {name: value for name, value in values.items() if value is not None}


def _is_nan(value: Any) -> bool:
    """Whether it is NaN or an infinity, which JSON does not have."""
    return isinstance(value, float) and not math.isfinite(value)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _bounded(value: Any, depth: int = 0) -> Any:
    """The same value, within the bounds of every value. ValueError: it is outside."""
    if type(value) is float or value is None:  # most values of most lines
        return value
    if isinstance(value, str):  # a file name that is not UTF-8 is a lone surrogate, which no screen and no file takes
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int) and abs(value) > INT_LIMIT:
        raise ValueError("an integer of more than 64 bits")
    if isinstance(value, list | dict) and (len(value) > MAX_ITEMS or depth >= MAX_DEPTH):
        raise ValueError("more items, or more levels, than an event has")
    if isinstance(value, list):
        return [_bounded(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_bounded(key): _bounded(item, depth + 1) for key, item in value.items()}
    return value


def _fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the fields that are there. ValueError: one is of another type, or out of bounds."""
    return {name: read(values[name]) for name, read in _readers(cls).items() if values.get(name) is not None}


@cache
def _readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    """Field → its reader: the metadata of `Annotated[type, reader] | None`."""
    hints = get_type_hints(cls, include_extras=True)
    names = [one.name for one in fields(cls) if one.default is None]
    return {name: get_args(hints[name])[0].__metadata__[0] for name in names}
