"""Everything about a run that its record on the controller tells, as plain data: `orch report` draws it.

Frozen, and of JSON's types throughout: a page that is served and a file that is written draw the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.cost_model.forecast import Forecast
from orchestrator.specs.curve import Curve
from orchestrator.state.postmortem import Postmortem


@dataclass(frozen=True, kw_only=True)
class OptionUsed:
    """An option of the training or of the launch, with its value as text."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One node's part of a run."""

    node: str
    address: str
    node_rank: int
    ranks: tuple[int, int]
    """First and last global rank of the node."""
    device: str
    interface: str
    cpus: float
    memory_mib: int
    gpus: tuple[str, ...] = ()
    link_mbit_s: float | None = None
    """Rate of its link to the other nodes, measured before the first step."""
    sample_s: float | None = None
    """Seconds for a sample, measured before the first step; of its slowest rank."""
    share: float | None = None
    """Part of a step's samples, 0 to 1; None: not measured, or the same for all."""
    left_out: str = ""
    """Reason why it took no part in the training; empty: it did."""
    torch: str = ""
    precision: str = ""
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """A stretch of a run: `launch`, `start`, `measure`, `train`, `restart`."""

    name: str
    begin_s: float
    """Seconds since the begin of the record."""
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Something that happened in a run."""

    kind: str
    """`fault`, `phase`, `checkpoint`, `evaluation` or `note`."""
    at_s: float
    """Seconds since the begin of the record."""
    time: str
    """ISO 8601 with zone."""
    node: str
    text: str
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class SampleText:
    """Text that the model wrote, which may be cut."""

    step: int | None
    text: str


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A run, from the record of one controller alone."""

    run_id: str
    project: str
    user: str
    command: str
    state: str
    """State as `orch why` shows it: failed, stopped, done, running, unknown."""
    reason: str
    begun_at: str
    """ISO 8601 with zone: time of the first line on record, or of the newest plan if that is earlier. Times in seconds
    count from here."""
    ended_at: str
    """Time of the last line on record."""
    seconds: float
    attempt: int
    world_size: int
    backend: str
    sync: str
    steps: int | None
    """Last step that is on record."""
    progress: str
    """Progress read from its output, and its optimizer steps, in words; empty where its own events report steps."""
    final_step: int | None
    versions: tuple[tuple[str, str], ...]
    """Name and version: torch, image, code, data."""
    options: tuple[OptionUsed, ...]
    machines: tuple[Machine, ...]
    forecast: Forecast | None
    measured_per_s: float | None
    """Mean of the reported speeds, in the unit of the forecast."""
    unit: str
    curves: tuple[Curve, ...]
    curves_left_out: int
    """Number of figures without a curve: there were too many."""
    phases: tuple[RunSection, ...]
    moments: tuple[Moment, ...]
    moments_left_out: int
    postmortem: Postmortem
    samples: tuple[SampleText, ...]
    last_lines: tuple[tuple[str, str, str], ...]
    """Time, node and text of the last lines that are no events."""
    lines: int | None
    """Lines on record; None: not counted."""
    notes: tuple[str, ...] = ()

    def curve(self, group: str, name: str) -> Curve | None:
        """The curve of the whole run with this name."""
        return next((one for one in self.curves if (one.group, one.name, one.node) == (group, name, "")), None)
