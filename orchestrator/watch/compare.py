"""Comparison of two runs, from their records alone: what they were launched with, and how they went."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.fleet.runs.load_state import recorded_state, samples_per_step_of
from orchestrator.specs.launch_options import NUMBERS
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.secret import is_sensitive
from orchestrator.specs.secret_forms import REDACTED
from orchestrator.state.run_history import LAUNCH
from orchestrator.state.run_report import OptionUsed, RunReport
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.report import report_of

Value = str | int | float | None
Facts = Mapping[str, Mapping[str, Value]]
"""Values by section and name, in the order in which they are shown."""
OUTCOME = "outcome"


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
    plan = record.plan() or record.plan_from(0)
    report, state = report_of(record), recorded_state(record, time.time())
    options = {one.name: _option(one) for one in report.options if one.origin != LAUNCH}
    facts = plan_facts(plan, options) if plan else {}
    facts["versions"] = dict(_versions(report))
    if forecast := report.forecast:
        facts["forecast"] = {
            "sync method": forecast.sync,
            f"{forecast.unit}/s": round(forecast.chosen.per_s, 1),
            "nodes": ", ".join(forecast.chosen.nodes),
            "left out": ", ".join(one.node for one in forecast.left_out),
        }
    facts[OUTCOME] = dict(_outcome(report, state, plan, samples_per_step_of(record)))
    return facts


def plan_facts(plan: Plan, options: Mapping[str, str] | None = None) -> dict[str, dict[str, Value]]:
    """Everything that a plan says. `options`: of the trainer, each with its origin; otherwise the words are used."""
    words: dict[str, Value]
    if options and not plan.program.is_own:
        words = {"workload": plan.command[0], **{f"--{name}": value for name, value in options.items()}}
    else:
        words = dict(_words(plan.command))
    return {
        "command": words,
        "image": dict(_image(plan)),
        "code": {"content": plan.code_digest, "folder": plan.code_origin} if plan.own_code else {},
        "data": dict(_data(plan)),
        "nodes": dict(_nodes(plan)),
        "environment": dict(_environment(plan)),
        "settings": {
            **{flag.name: getattr(plan, name) for name, flag in NUMBERS.items()},
            **{f"--mount {one.source}": one.target + (":ro" if one.read_only else "") for one in plan.mounts},
            "backend": plan.backend,
        },
    }


def _data(plan: Plan) -> Iterator[tuple[str, Value]]:
    for one in plan.data:
        of = f" of {one.name}" if len(plan.data) > 1 else ""
        yield f"content{of}", one.digest
        yield f"folder{of}", one.origin
        yield f"in parts{of}", ", ".join(one.parts)


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


def _option(option: OptionUsed) -> str:
    """The value of an option, with the file or the variable that it is from."""
    is_usual = option.origin == "command line" or option.origin.endswith("default")
    return option.value if is_usual else f"{option.value} ({option.origin})"


def _versions(report: RunReport) -> Iterator[tuple[str, Value]]:
    for name in ("torch", "device", "precision"):
        for machine in sorted(report.machines, key=lambda machine: machine.node):
            if machine.torch and (value := getattr(machine, name)):
                yield f"{name} on {machine.node}", value
    yield "backend", report.backend or None


def _outcome(
    report: RunReport, state: RunState, plan: Plan | None, samples_per_step: int | None
) -> Iterator[tuple[str, Value]]:
    failure, leader = report.postmortem.failure, state.leader
    checkpoint = leader.part.checkpoint if leader else None
    yield "state", report.state
    yield "reason", report.reason or None
    yield "cause", failure.cause.id if failure and failure.cause else None
    yield "attempts", plan.attempt + 1 if plan else None
    yield "step", report.steps
    yield "of steps", report.final_step
    yield "last checkpoint", checkpoint.step if checkpoint else None
    for group, words in (("train", "loss"), ("validation", "validation loss")):
        curve = report.curve(group, "loss")
        yield f"final {words}", curve.last if curve else None
        yield f"best {words}", min(curve.y) if curve else None
    speed = report.measured_per_s
    yield f"{report.unit or 'samples'}/s (mean)", None if speed is None else round(speed, 1)
    yield "samples per step", samples_per_step
    yield "seconds", round(report.seconds, 1) or None
    yield from sorted(state.faults.items())


def as_data(rows: Iterable[Compared]) -> list[dict[str, Any]]:
    """The values for programs."""
    return [{"section": one.section, "name": one.name, "a": one.a, "b": one.b} for one in rows]
