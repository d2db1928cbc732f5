"""Read the events of a run once, in order of time, into a report: in memory that does not grow with the run."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contract.cost_model.forecast import Forecast
from contract.cost_model.measurement import Measurement
from contract.event_lines import step_values
from contract.event_values import RankPosition
from contract.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    Finished,
    ForecastMade,
    GenerationStarted,
    GroupJoined,
    NodesMeasured,
    OptionsChosen,
    OutputProgress,
    ProgressEvent,
    RankLeftOut,
    RankStarted,
    Rebalanced,
    ResourcesSampled,
    Restarting,
    SampleWritten,
    StepDone,
    TrainingDone,
    TrainingResumed,
    TrainingStopped,
)
from contract.log_lines import readable
from contract.rank_words import work_line
from orchestrator.checks.hang import timestamp
from orchestrator.checks.output_progress import output_place, output_words
from orchestrator.specs.curve import Curve, CurvePoints
from orchestrator.specs.launch_options import RunSettings
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.plan_json import to_data
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import Journal
from orchestrator.state.line_reduce import newest_output
from orchestrator.state.moments import BothEnds, moment_of
from orchestrator.state.phase import ACTIVE_PHASES
from orchestrator.state.postmortem import Evidence, write_postmortem
from orchestrator.state.progress import lowest_at_work
from orchestrator.state.run_report import Machine, Moment, OptionUsed, RunReport, RunSection, SampleText

MOST_CURVES = 400
"""Curves of one run: a script can report figures of any number of names."""
MOST_MOMENTS = 200
"""Moments of each kind; half of them from the beginning."""
SAMPLES, SAMPLE_CHARS = 10, 4000
LINE_CHARS = 1000
LARGEST = 1e30
"""Figures beyond it are left out like infinite ones: a chart could not be scaled."""
OUTPUT_UNIT = "from its output"
"""Text in place of a unit, of a figure that was read from the output."""
LAUNCH = "launch"
"""Origin of a setting of the launch, which is no option of the training."""
_NUMBERS = (float, int)
_NO_FIGURES = {"event", "epoch", *(one.name for one in dataclasses.fields(StepDone))} - {"loss", "per_s", "others"}
"""Values of a step without a curve over steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinesOnRecord:
    """The part of a report that other lines than events are read for. The defaults are those of a page, where nothing
    but `evidence` is needed."""

    evidence: tuple[RunLine, ...] = ()
    """Lines that a post-mortem reads."""
    last: tuple[RunLine, ...] = ()
    """The last lines that are no events."""
    first_time: str = ""
    last_time: str = ""
    number: int | None = None


class RunHistory:
    """Content of the events of one run, in the order of `add`."""

    def __init__(self, plan: Plan | None = None) -> None:
        self._plan = plan
        self._zero: float | None = timestamp(plan.started_at) if plan else None
        self._first_time = self._last_time = ""
        self._curves_left_out = 0
        self._curves: dict[tuple[str, str, str, str], CurvePoints] = {}
        self._moments: dict[str, BothEnds] = {}
        self._phases = _Phases()
        self._samples: deque[SampleText] = deque(maxlen=SAMPLES)
        self._ranks: dict[str, RankStarted] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}
        self._left_out: dict[str, str] = {}
        self._options: tuple[OptionUsed, ...] = ()
        self._shares: Mapping[str, float | None] = {}
        self._joined: GroupJoined | None = None
        self._measured: Measurement | None = None
        self._forecast: Forecast | None = None
        self._step: int | None = None
        self._final_step: int | None = None
        self._printed: OutputProgress | None = None
        self._work: RankPosition | None = None
        self._unit = ""

    def add(self, line: RunLine) -> None:
        """Add a line with an event."""
        self._last_time = max(self._last_time, line.time)
        if (not self._first_time or line.time < self._first_time) and timestamp(line.time):
            self._first_time = line.time
        if self._phases.is_training and (values := step_values(line.text)):  # nearly all events of a long run
            self._figures("train", values.get("step"), values.get("unit"), values)
            self._note_step(values.get("step"), values.get("final_step"))
        elif event := line.event:
            self._add_event(line, event)

    def _add_event(self, line: RunLine, event: Event) -> None:
        time = timestamp(line.time)
        self._phases.add(event, time)
        self._read(line, event, time)
        if moment := moment_of(event):
            kind, text = moment
            ends = self._moments.setdefault(kind, BothEnds(MOST_MOMENTS))
            step = event.step if isinstance(event, ProgressEvent | TrainingResumed) else None
            node = event.node or line.node
            ends.add(Moment(kind=kind, at_s=time, time=line.time, node=node, text=text[:LINE_CHARS], step=step))

    def _read(self, line: RunLine, event: Event, time: float) -> None:
        match event:
            case StepDone() | Evaluated():
                group = "train" if isinstance(event, StepDone) else "validation"
                figures = {"loss": event.loss, "per_s": event.per_s, **event.others}
                self._figures(group, event.step, event.unit, figures)
            case OutputProgress():
                self._output(event)
            case ResourcesSampled():
                self._resources(event, event.node or line.node, time)
                self._work = lowest_at_work((*(event.positions or ()), self._work))
            case RankStarted():
                self._ranks[event.node or line.node] = event
            case RankLeftOut():
                self._left_out[event.node or line.node] = event.why or "by the forecast"
            case GroupJoined():
                self._joined = event
            case NodesMeasured(measurement=measured):
                self._measured = measured
            case ForecastMade(forecast=made):
                self._forecast = made
            case OptionsChosen():
                self._options = tuple(OptionUsed(name=n, value=v, origin=o) for n, v, o in event.options or ())
            case Rebalanced():
                self._shares = event.shares or {}
            case SampleWritten():
                self._samples.append(SampleText(step=self._step, text=(event.text or "")[:SAMPLE_CHARS]))
            case _:
                pass
        if isinstance(event, ProgressEvent) and event.step is not None:
            is_later = isinstance(event, CheckpointWritten)  # it is reported when it is written, maybe some steps later
            self._note_step(max(event.step, self._step or 0) if is_later else event.step, event.final_step)

    def _note_step(self, step: int | None, final_step: int | None) -> None:
        if step is not None:
            self._step, self._final_step = step, self._final_step if final_step is None else final_step

    def _output(self, event: OutputProgress) -> None:
        """Take progress from the output into account, while no event of the program itself reports any."""
        self._printed = newest_output(event, self._printed)
        if self._step is None and self._printed is event and (place := output_place(event)) is not None:
            self._point(("train", "loss", "", OUTPUT_UNIT), place, event.loss)

    def _figures(self, group: str, step: int | None, unit: str | None, figures: Mapping[str, Any]) -> None:
        self._curves.pop(("train", "loss", "", OUTPUT_UNIT), None)
        self._unit = unit or self._unit
        if step is None:
            return
        speed_unit = f"{self._unit}/s"
        for name, value in figures.items():
            if name not in _NO_FIGURES:
                self._point((group, name, "", speed_unit if name == "per_s" else ""), step, value)

    def _resources(self, event: ResourcesSampled, node: str, time: float) -> None:
        usage, at = event.usage, time
        values: dict[tuple[str, str], float | None] = {
            ("cpu", "%"): usage.cpu_percent,
            ("memory", "%"): 100 * usage.ram_used_mib / max(1, usage.ram_limit_mib),
            ("network", "MiB/s"): usage.network_in_mib_s + usage.network_out_mib_s,
            ("disk", "MiB/s"): usage.disk_read_mib_s + usage.disk_write_mib_s,
        }
        if usage.swap_used_mib:
            values["swap", "MiB"] = usage.swap_used_mib
        if usage.gpus:
            self._gpus[node] = tuple(gpu.name for gpu in usage.gpus)
        for gpu in usage.gpus:
            name = f"GPU {gpu.index} " if len(usage.gpus) > 1 else "GPU "
            values[f"{name}use", "%"] = gpu.utilization_percent
            if gpu.memory_used_mib is not None and gpu.memory_total_mib:
                values[f"{name}memory", "%"] = 100 * gpu.memory_used_mib / gpu.memory_total_mib
            values[f"{name}temperature", "°C"] = gpu.temperature_c
            values[f"{name}power", "W"] = gpu.power_w
        for (name, unit), value in values.items():
            self._point(("resources", name, node, unit), at, value)

    def _point(self, key: tuple[str, str, str, str], x: float, value: Any) -> None:
        """`key`: group, name, node and unit of the curve."""
        if type(value) not in _NUMBERS or not -LARGEST < value < LARGEST:
            return
        if (points := self._curves.get(key)) is None:
            if len(self._curves) >= MOST_CURVES:
                self._curves_left_out += 1
                return
            points = self._curves[key] = CurvePoints()
        points.add(x, float(value))

    def report(
        self,
        run_id: str,
        *,
        journal: Journal,
        forecast: Forecast | None,
        now: float,
        lines: LinesOnRecord = LinesOnRecord(),
        notes: Iterable[str] = (),
    ) -> RunReport:
        """The report. `journal`: the record of the run; `now`: seconds since 1970."""
        plan = self._plan
        times = (plan.started_at if plan else "", self._first_time, lines.first_time)
        begun_at = min(filter(timestamp, times), key=timestamp, default="")
        ended_at = max(self._last_time, lines.last_time)
        zero, end = timestamp(begun_at), timestamp(ended_at)
        evidence = Evidence(run_id=run_id, plan=plan, lines=lines.evidence, journal=journal, now=now)
        story, forecast = write_postmortem(evidence), forecast or self._forecast
        curves = tuple(self._made_curves(zero))
        speed = next((one for one in curves if (one.group, one.name) == ("train", "per_s")), None)
        moments = sorted((one for ends in self._moments.values() for one in ends), key=lambda one: one.at_s)
        return RunReport(
            run_id=run_id,
            project=plan.project if plan else "",
            user=plan.user if plan else "",
            command=shlex.join(plan.command) if plan else "",
            state=story.state,
            reason=journal.end.reason if journal.end else "",
            begun_at=begun_at,
            ended_at=ended_at,
            seconds=max(0.0, end - zero) if end else 0.0,
            attempt=plan.attempt if plan else 0,
            world_size=plan.world_size if plan else (self._joined.world_size or 0) if self._joined else 0,
            backend=(self._joined.backend if self._joined else "") or (plan.backend if plan else ""),
            sync=forecast.sync if forecast else "",
            steps=self._step,
            progress=self._progress(story.state) if self._step is None else "",
            final_step=self._final_step,
            versions=tuple(self._versions()),
            options=(*self._options, *_settings(plan)),
            machines=self._machines(forecast),
            forecast=forecast,
            measured_per_s=speed.mean if speed else None,
            unit=self._unit,
            curves=curves,
            curves_left_out=self._curves_left_out,
            phases=self._phases.spans(zero, end),
            moments=tuple(dataclasses.replace(one, at_s=max(0.0, one.at_s - zero)) for one in moments),
            moments_left_out=sum(ends.left_out for ends in self._moments.values()),
            postmortem=story,
            samples=tuple(self._samples),
            last_lines=tuple((one.time, one.node, readable(one.text)[:LINE_CHARS]) for one in lines.last),
            lines=lines.number,
            notes=(*(plan.notes if plan else ()), *notes),
        )

    def _progress(self, phase: str) -> str:
        """Progress of a script that reports no steps itself, as `orch status` shows it."""
        is_active, work = phase in ACTIVE_PHASES, self._work
        output = output_words(self._printed, running=False)
        steps = work.step if work and (is_active or not output) else None
        return " · ".join(filter(None, (output, "" if steps is None else work_line(steps, is_over=not is_active))))

    def _made_curves(self, zero: float) -> Iterator[Curve]:
        for (group, name, node, unit), points in self._curves.items():
            if made := points.curve(group=group, name=name, node=node, unit=unit):
                timed = group == "resources"
                yield dataclasses.replace(made, x=tuple(round(x - zero, 1) for x in made.x)) if timed else made

    def _versions(self) -> Iterator[tuple[str, str]]:
        for torch in dict.fromkeys(started.torch for started in self._ranks.values() if started.torch):
            yield "torch", torch
        if plan := self._plan:
            for image in dict.fromkeys(part.container.image for part in plan.nodes):
                yield "image", image
            yield from (("code", plan.code_digest),) if plan.code_digest else ()
            yield from (("data", one.digest) for one in plan.data)
            yield from (("agent", plan.agent_digest),) if plan.agent_digest else ()

    def _machines(self, forecast: Forecast | None) -> tuple[Machine, ...]:
        parts = self._plan.nodes if self._plan else ()
        shares = dict(self._shares) or _forecast_shares(forecast)
        whole = sum(share for share in shares.values() if share) or 1.0
        return tuple(self._machine(part, forecast, {node: (share or 0.0) / whole for node, share in shares.items()})
                     for part in parts)  # fmt: skip

    def _machine(self, part: NodePlan, forecast: Forecast | None, shares: Mapping[str, float]) -> Machine:
        node, started = part.node, self._ranks.get(part.node)
        own = [share for name, share in shares.items() if _is_of(name, node)]
        speeds = [one.sample_s for one in (self._measured.nodes if self._measured else ()) if _is_of(one.node, node)]
        links = [link for name, link in (forecast.link_mbit_s if forecast else {}).items() if _is_of(name, node)]
        out = {one.node: one.why for one in (forecast.left_out if forecast else ())} | self._left_out
        return Machine(
            node=node,
            address=part.address,
            node_rank=part.node_rank,
            ranks=(part.first_rank, part.first_rank + part.nproc_per_node - 1),
            device=(started.device if started else "") or part.device,
            interface=part.interface,
            cpus=part.container.cpus,
            memory_mib=part.container.memory_mib,
            gpus=self._gpus.get(node, ()),
            link_mbit_s=min(links, default=None),
            sample_s=max(speeds, default=None),
            share=sum(own) if own else None,
            left_out=next((why for name, why in out.items() if _is_of(name, node)), ""),
            torch=(started.torch if started else "") or "",
            precision=(started.precision if started else "") or "",
            threads=started.threads if started else None,
        )


class _Phases:
    """The part of a run that each moment belongs to, by the events that begin and end it."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, str]] = deque(maxlen=2 * MOST_MOMENTS)

    @property
    def is_training(self) -> bool:
        """True if a further step changes nothing."""
        return bool(self._begun) and self._begun[-1][1] == "train"

    def add(self, event: Event, time: float) -> None:
        now = self._begun[-1][1] if self._begun else "launch"
        match event:
            case GenerationStarted() if now in ("launch", "restart", ""):
                self._begin("start", time)
            case GroupJoined() if now == "start":
                self._begin("measure", time)
            case StepDone() if now != "train":
                self._begin("train", max(time - event.late_s, self._begun[-1][0] if self._begun else 0.0))
            case Restarting() if now != "restart":
                self._begin("restart", time)
            case Finished() | TrainingDone() | TrainingStopped() if now:
                self._begin("", time)
            case _:
                pass

    def _begin(self, name: str, time: float) -> None:
        self._begun.append((time, name))

    def spans(self, zero: float, end: float) -> tuple[RunSection, ...]:
        begun = [(zero, "launch"), *self._begun]
        ends = [time for time, _ in begun[1:]] + [end]
        return tuple(
            RunSection(name=name, begin_s=max(0.0, begin - zero), end_s=max(0.0, until - zero))
            for (begin, name), until in zip(begun, ends, strict=True)
            if name and until > begin
        )


def _settings(plan: Plan | None) -> Iterator[OptionUsed]:
    """Settings of the launch that are not the default. Values of sensitive variables are hidden."""
    values = to_data(plan) if plan else {}
    for each in dataclasses.fields(RunSettings):
        default = each.default_factory() if callable(each.default_factory) else each.default
        if plan and getattr(plan, each.name) != default:
            value = values.get(each.name)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield OptionUsed(name=each.metadata["flag"].name.lstrip("-"), value=text, origin=LAUNCH)


def _forecast_shares(forecast: Forecast | None) -> dict[str, float | None]:
    if forecast is None or len(forecast.chosen.shares) != len(forecast.chosen.nodes):
        return {}
    return dict(zip(forecast.chosen.nodes, forecast.chosen.shares, strict=True))


def _is_of(name: str, node: str) -> bool:
    """Return whether a label of a rank, `alpha` or `alpha.1`, is one of this node."""
    before, dot, after = name.rpartition(".")
    return name == node or (bool(dot) and before == node and after.isdecimal())
