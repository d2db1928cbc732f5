"""Comparison of two runs, from their records alone: what they were launched with, and how they went."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from contract.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    Finished,
    GroupJoined,
    LivenessReported,
    NodesStalled,
    RankFailed,
    RankStarted,
    Restarting,
    StepDone,
)
from contract.log_lines import EVENT_MARK
from orchestrator.checks.hang import timestamp
from orchestrator.fleet.runs.progress import UNKNOWN_END
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.plan.command import is_own_script
from orchestrator.specs.launch_options import NUMBERS
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import REDACTED, is_sensitive

Value = str | int | float | None
Facts = Mapping[str, Mapping[str, Value]]
"""Values by section and name, in the order in which they are shown."""
OUTCOME = "outcome"
_OPTIONS = "options: "
"""Beginning of the line in which the trainer names the options that were given."""
_OPTION = re.compile(r"(?:^|, )([a-z][a-z0-9-]*) (.{0,2000}?)(?: \(([^()]{1,300})\))?(?=, [a-z][a-z0-9-]* |$)")
_LONGEST = 20_000
"""Characters of that line that are read."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One value of two runs; None where a run does not have it."""

    section: str
    name: str
    a: Value
    b: Value

    @property
    def differs(self) -> bool:
        return self.a != self.b


def compare(a: Facts, b: Facts) -> list[Compared]:
    """Every value that one of the runs has."""
    rows = []
    for section in dict.fromkeys((*a, *b)):
        one, other = a.get(section, {}), b.get(section, {})
        rows += [
            Compared(section=section, name=name, a=one.get(name), b=other.get(name))
            for name in dict.fromkeys((*one, *other))
        ]
    return rows


def facts_of(record: RunRecord) -> dict[str, dict[str, Value]]:
    """Everything that the record says of a run. Of the values of sensitive variables nothing is known here."""
    read = _Read()
    for line in record.in_files():
        read.add(line)
    plan = record.plan() or record.plan_from(0)
    facts = plan_facts(plan, read.options) if plan else {}
    forecast = record.forecast()
    facts["versions"] = {f"{name} on {node}": value for (name, node), value in sorted(read.versions.items())}
    if forecast:
        facts["forecast"] = {
            "sync method": forecast.sync,
            f"{forecast.unit}/s": round(forecast.chosen.per_s, 1),
            "nodes": ", ".join(forecast.chosen.nodes),
            "left out": ", ".join(one.node for one in forecast.left_out),
        }
    facts[OUTCOME] = dict(_outcome(record, plan, read))
    return facts


def plan_facts(plan: Plan, options: Mapping[str, str] | None = None) -> dict[str, dict[str, Value]]:
    """Everything that a plan says. `options`: of the trainer, each with its origin; otherwise the words are used."""
    words: dict[str, Value]
    if options and not is_own_script(plan.command):
        words = {"workload": plan.command[0], **{f"--{name}": value for name, value in options.items()}}
    else:
        words = dict(_words(plan.command))
    return {
        "command": words,
        "image": dict(_image(plan)),
        "code": {"content": plan.code_digest, "folder": plan.code_origin} if plan.own_code else {},
        "data": {"content": plan.data_digest, "folder": plan.data_origin, "in parts": ", ".join(plan.data_parts)},
        "nodes": dict(_nodes(plan)),
        "environment": dict(_environment(plan)),
        "settings": {
            **{flag.name: getattr(plan, name) for name, flag in NUMBERS.items()},
            **{f"--mount {one.source}": one.target + (":ro" if one.read_only else "") for one in plan.mounts},
            "backend": plan.backend,
        },
    }


def _words(command: Iterable[str]) -> Iterator[tuple[str, Value]]:
    """The words of a command: each option with its value, the others together."""
    others, option = list[str](), ""
    found: dict[str, str] = {}
    for word in command:
        if word.startswith("--") and len(word) > 2:
            option, equals, value = word.partition("=")
            found[option] = value if equals else found.get(option, "")
            option = "" if equals else option
        elif option:
            found[option] = f"{found[option]} {word}".strip()
            option = ""
        else:
            others.append(word)
    yield "words", shlex.join(others)
    yield from ((name, value or "given") for name, value in found.items())


def _image(plan: Plan) -> Iterator[tuple[str, Value]]:
    if plan.image:
        yield "name", plan.image
    by_id: dict[str, list[str]] = {}
    for part in plan.nodes:
        by_id.setdefault(part.container.image.removeprefix("sha256:")[:12], []).append(part.device)
    for image, devices in by_id.items():
        yield f"id ({', '.join(dict.fromkeys(devices))})", image


def _nodes(plan: Plan) -> Iterator[tuple[str, Value]]:
    yield "number", plan.nnodes
    yield "ranks", plan.world_size
    yield "rank 0", plan.master
    for part in sorted(plan.nodes, key=lambda part: part.node):
        yield part.node, _node(part)


def _node(part: NodePlan) -> str:
    limits = part.container
    return (
        f"{part.device} x {part.nproc_per_node}, {part.address}, {limits.cpus:g} CPUs, "
        f"{limits.memory_mib / 1024:.1f} GiB, {limits.shm_mib / 1024:.1f} GiB shm"
    )


def _environment(plan: Plan) -> Iterator[tuple[str, Value]]:
    for name, value in sorted(plan.environment.items()):
        yield name, REDACTED if is_sensitive(name, value) else value
    for name in sorted(secret.name for secret in plan.secrets):
        yield f"secret {name}", REDACTED


class _Read:
    """Values that the lines of a run hold, in one pass: a record may have millions."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.versions: dict[tuple[str, str], str] = {}
        self.steps: list[tuple[int, float | None, float | None]] = []
        """Step, loss and units per second of each reported step."""
        self.evaluated: list[tuple[int, float]] = []
        self.unit = ""
        self.final_step: int | None = None
        self.checkpoint: int | None = None
        self.last_time = ""
        self.faults: dict[str, int] = {}
        self.cause = ""
        self.samples_per_step: int | None = None

    def add(self, line: RunLine) -> None:
        self.last_time = max(self.last_time, line.time)
        if line.text.startswith(_OPTIONS):
            given = line.text[len(_OPTIONS) : _LONGEST].partition("; all of them in ")[0]
            found = _OPTION.findall(given)
            self.options = {name: f"{value} ({origin})" if origin else value for name, value, origin in found}
        elif line.text.startswith(EVENT_MARK) and line.event:
            self._hear(line.event, line.node)

    def _hear(self, event: Event, node: str) -> None:
        match event:
            case RankStarted():
                for name in ("torch", "device", "precision", "backend"):
                    if (value := getattr(event, name)) is not None:
                        self.versions[name, node] = str(value)
            case GroupJoined() if event.samples_per_step:
                self.samples_per_step = event.samples_per_step
            case StepDone() if event.step is not None:
                self.steps.append((event.step, event.loss, event.per_s))
                self.unit = event.unit or self.unit
                self.final_step = event.final_step or self.final_step
            case Evaluated() if event.step is not None and event.loss is not None:
                self.evaluated.append((event.step, event.loss))
            case CheckpointWritten() if event.verified and event.step is not None:
                self.checkpoint = max(event.step, self.checkpoint or 0)
            case Restarting():
                self._count("restarts of the ranks")
            case LivenessReported() if event.fault:
                self._count("hangs")
            case NodesStalled():
                for name in event.nodes or ():
                    self._count(f"silences of {name}")
            case RankFailed() | Finished():
                self.cause = event.cause or self.cause

    def _count(self, what: str) -> None:
        self.faults[what] = self.faults.get(what, 0) + 1


def _outcome(record: RunRecord, plan: Plan | None, read: _Read) -> Iterator[tuple[str, Value]]:
    state, reason = record.outcome() or UNKNOWN_END
    yield "state", state
    yield "reason", reason or None
    yield "cause", read.cause if state == "failed" and read.cause else None
    yield "attempts", plan.attempt + 1 if plan else None
    yield "step", max((step for step, _, _ in read.steps), default=None)
    yield "of steps", read.final_step
    yield "last checkpoint", read.checkpoint
    losses = [(step, loss) for step, loss, _ in read.steps if loss is not None]
    yield "final loss", max(losses)[1] if losses else None
    yield "best loss", min(loss for _, loss in losses) if losses else None
    yield "final validation loss", max(read.evaluated)[1] if read.evaluated else None
    yield "best validation loss", min(loss for _, loss in read.evaluated) if read.evaluated else None
    speeds = [per_s for _, _, per_s in read.steps if per_s is not None]
    yield f"{read.unit or 'samples'}/s (median)", round(median(speeds), 1) if speeds else None
    yield "samples per step", read.samples_per_step
    seconds = timestamp(read.last_time) - timestamp(plan.started_at) if plan and read.last_time else 0.0
    yield "seconds", round(seconds, 1) if seconds > 0 else None
    yield from sorted(read.faults.items())


def samples_per_step_of(record: RunRecord) -> int | None:
    """Samples of each step, as the ranks reported them last; None if they did not."""
    joined = [line.event for line in record.in_files() if line.text.startswith(EVENT_MARK)]
    sizes = [event.samples_per_step for event in joined if isinstance(event, GroupJoined) and event.samples_per_step]
    return sizes[-1] if sizes else None


def as_data(rows: Iterable[Compared]) -> list[dict[str, Any]]:
    """The values for programs."""
    return [{"section": one.section, "name": one.name, "a": one.a, "b": one.b} for one in rows]
