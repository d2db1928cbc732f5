"""Runs and their nodes as tables and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.text import Text

from contract.cost_model.units import duration
from contract.resources import ResourceUsage
from orchestrator.checks.hang import timestamp
from orchestrator.checks.output_progress import LONGEST_S
from orchestrator.render.console import colour_of
from orchestrator.render.forecast import forecast_line
from orchestrator.render.printable import printable
from orchestrator.render.table import Cell, Column, Table
from orchestrator.render.times import ago, clock, moment, started, zone
from orchestrator.specs.past_run import HistoryEntry
from orchestrator.specs.run import Member, Run, State
from orchestrator.state.condition import Condition
from orchestrator.state.conditions import SWAP_MIB
from orchestrator.state.phase import STOPPED_CODE, Phase
from orchestrator.state.progress import RunProgress, progress_of, words_of_script
from orchestrator.state.run_state import NodeState, RunState
from orchestrator.state.verdict import Verdict

STYLES = {
    "running": "green",
    "succeeded": "bold green",
    "failed": "bold red",
    "lost": "bold red",
    "stopped": "bold",
    **dict.fromkeys(("created", "queued", "launching", "starting", "restarting", "stopping"), "yellow"),
}
"""Styles of phases, and of the states of containers."""


def run_table(state: RunState, judged: Verdict, now: float, *, wide: bool = False) -> Table:
    """One run: its phase and progress as title, below it what was forecast and what is achieved, a line per node."""
    title = _title(state, judged, now)
    if state.forecast:
        title.append(f"\n{forecast_line(state.forecast, progress_of(state, judged.phase, now).of_forecast)}")
    left_out = {one.node: f"left out: {one.why}" for one in state.forecast.left_out} if state.forecast else {}
    slow = {
        one.node: f"{one.values['ratio']:.1f} x the others' time"
        for one in judged.conditions
        if one.node and isinstance(one.values.get("ratio"), float)
    }
    columns = (
        Column("rank", 4, right=True), Column("node"), Column("state"), Column("exit", 1, right=True),
        Column("CPU", 4, right=True), Column("memory", 5, right=True), Column("GPU", 6),
        Column(f"started ({zone()})", 3), Column("why", wraps=True),
        Column("container restarts", right=True, wide=True), Column("container", wide=True), Column("image", wide=True),
    )  # fmt: skip
    rows = []
    for node in state.members:
        container = node.container
        rows.append(
            (
                str(node.node_rank),
                Text(node.name, colour_of(node.node_rank or 0)),
                Text(_node_state(node), STYLES.get(_node_state(node), "")),
                "" if container is None or container.exit_code is None else str(container.exit_code),
                *_used(node.usage if judged.phase.is_active else None),
                started(container.started_at) if container else "",
                _why(node) or left_out.get(node.name, "") or slow.get(node.name, ""),
                str(container.restarts) if container else "",
                container.id[:12] if container else "",
                container.image.removeprefix("sha256:")[:12] if container else "",
            )
        )
    return Table(title=title, columns=columns, rows=rows, wide=wide)


def _title(state: RunState, judged: Verdict, now: float) -> Text:
    title = Text.assemble(f"run {state.run_id}  ", (judged.phase.value, STYLES.get(judged.phase, "")))
    known = progress_of(state, judged.phase, now)
    if progress := _progress(known, judged.phase, now):
        title.append(f"  {progress}")
    if known.last_line and judged.phase.is_active and known.is_quiet:
        title.append(f"\n{printable(known.last_line[:LAST_LINE])}", "dim")
    return title


LAST_LINE = 200
"""Characters of the newest log line that are shown."""


def _node_state(node: NodeState) -> str:
    """State of the container on a node."""
    if node.container is None:
        return State.LOST.value
    return State.STOPPED.value if node.container.exit_code == STOPPED_CODE else node.container.state.value


def _used(usage: ResourceUsage | None) -> tuple[str, str, str]:
    """Shares of CPU, memory and GPUs for people."""
    if usage is None:
        return "", "", ""
    gpus = []
    for gpu in usage.gpus:
        words = [] if gpu.utilization_percent is None else [f"{gpu.utilization_percent} %"]
        if gpu.memory_used_mib is not None and gpu.memory_total_mib is not None:
            words.append(_gib(gpu.memory_used_mib, gpu.memory_total_mib))
        words += [] if gpu.temperature_c is None else [f"{gpu.temperature_c} °C"]
        words += [printable(f"slowed by {gpu.slowed_by}")] if gpu.slowed_by else []
        gpus.append(", ".join(words))
    swapped = f" + {usage.swap_used_mib / 1024:.1f} swap" if usage.swap_used_mib >= SWAP_MIB else ""
    return f"{usage.cpu_percent:.0f} %", _gib(usage.ram_used_mib, usage.ram_limit_mib) + swapped, "\n".join(gpus)


def _gib(used_mib: int, of_mib: int) -> str:
    return f"{used_mib / 1024:.1f}/{of_mib / 1024:.1f} GiB"


def runs_table(
    runs: Sequence[tuple[Run, Verdict]], history: Sequence[HistoryEntry] = (), *, wide: bool = False
) -> Table:
    """Many runs and those that are only on record on this computer, a line each, the newest start first."""
    columns = (
        Column("run"), Column("state"), Column("nodes", 3), Column("by", 5), Column("started", 2),
        Column("command", 1, wraps=True), Column("from the record", 4, wraps=True),
        Column(f"started at ({zone()})", wide=True), Column("attempt", right=True, wide=True),
        Column("rank 0", wide=True), Column("project", wide=True),
    )  # fmt: skip
    rows: list[tuple[float, tuple[Cell, ...]]] = []
    for run, judged in runs:
        running = sum(member.state is State.RUNNING for member in run.members)
        up = f"{running}/{run.nnodes} up" if running else str(run.nnodes)
        state = Text(judged.phase.value, STYLES.get(judged.phase, ""))
        row: tuple[Cell, ...] = (run.run_id, state, up, run.user, ago(run.started_at), run.command, "",
                                 moment(run.started_at), str(run.attempt), run.master, run.project)  # fmt: skip
        rows.append((timestamp(run.started_at), row))
    for past in history:
        row = (past.run_id, past.state, str(len(past.nodes) or ""), past.user, ago(past.started_at), past.command,
               past.reason, moment(past.started_at), "", "", "")  # fmt: skip
        rows.append((timestamp(past.started_at), row))
    rows.sort(key=lambda one: one[0], reverse=True)
    return Table(columns=columns, rows=[row for _, row in rows], wide=wide)


def past_lines(state: RunState, judged: Verdict, now: float, as_of: str) -> Iterator[str]:
    """A run that no node shows, for people. `as_of`: time of the newest thing on record."""
    silent = f"; {', '.join(state.unreachable)} did not answer" if state.unreachable else ""
    yield _title(state, judged, now).plain
    yield f"as of {started(as_of)} ({zone()}), from the record on this computer: no node shows it now{silent}"
    if judged.reason and judged.phase is not Phase.FAILED:  # otherwise a message says it, with the next command
        yield judged.reason
    if plan := state.plan:
        nodes, command = ", ".join(part.node for part in plan.nodes), shlex.join(plan.command)
        yield f"started {started(plan.started_at)} ({zone()}) on {nodes}: {command}"
    yield f"  → orch logs {state.run_id}"


def half_launched_line(run: Run) -> str:
    """State of a launch that was cut short, and what to do about it."""
    up = sum(member.state is State.RUNNING for member in run.members)
    return (
        f"run {run.run_id} was launched half-way, or is being launched: {up} of {run.nnodes} containers run\n"
        f"  → orch adopt {run.run_id}   or: orch stop {run.run_id}"
    )


def run_data(state: RunState, judged: Verdict, now: float) -> dict[str, Any]:
    """One run for programs, but for the words of its conditions."""
    known, plan, run = progress_of(state, judged.phase, now), state.plan, state.run
    leader = state.leader
    last = leader.part.progress if leader else None
    return {
        "run_id": state.run_id,
        "project": run.project if run else plan.project if plan else "",
        "state": judged.phase.value,
        "severity": judged.severity,
        "reason": judged.reason,
        "conditions": [condition_data(one) for one in judged.conditions],
        "attempt": state.attempt,
        "restarts": state.restarts,
        "user": run.user if run else plan.user if plan else "",
        "started_at": run.started_at if run else plan.started_at if plan else "",
        "nnodes": run.nnodes if run else plan.nnodes if plan else 0,
        "master": state.master,
        "command": run.command if run else shlex.join(plan.command) if plan else "",
        "nodes": [node.name for node in state.members],
        "progress": _progress_data(known),
        "last_event": last and {"kind": last.kind, **last.values()},
        "output": known.printed and known.printed.values(),
        "forecast": state.forecast and asdict(state.forecast),
        "of_forecast": known.of_forecast,
        "members": [_node_data(node) for node in state.members],
        "foreign": [{"attempt": attempt, **_member_data(member)} for attempt, member in (run.foreign if run else ())],
    }


def condition_data(one: Condition) -> dict[str, Any]:
    """A condition for programs."""
    return {**asdict(replace(one, values=dict(one.values))), "code": one.code.value}


def _progress_data(known: RunProgress) -> dict[str, Any]:
    values = asdict(replace(known, compute_s=dict(known.compute_s), printed=None))
    return {name: value for name, value in values.items() if name not in ("printed", "is_over")}


def _node_data(node: NodeState) -> dict[str, Any]:
    container = node.container
    member = Member(
        node=node.name, node_rank=node.node_rank or 0, state=container.state if container else State.LOST,
        container=container, reason=node.error,
    )  # fmt: skip
    used = node.usage and {"t": node.usage_at, **asdict(node.usage)}
    return {**_member_data(member), "resources": used}


def _member_data(member: Member) -> dict[str, Any]:
    container = member.container
    return {
        "node": member.node,
        "node_rank": member.node_rank,
        "state": member.state.value,
        "reason": member.reason,
        "container": container and container.id,
        "image": container and container.image,
        "exit_code": container and container.exit_code,
        "oom_killed": container and container.oom_killed,
        "started_at": container and container.started_at,
        "finished_at": container and container.finished_at,
        "restarts": container and container.restarts,
    }


def _progress(known: RunProgress, phase: Phase, now: float) -> str:
    """Step, loss, speed, and for a running run the time that is left."""
    before = " · before the restart" if known.is_before_restart and phase.is_active else ""
    if known.origin != "event":
        running = phase is Phase.RUNNING and not before
        words_read = printable(words_of_script(known, running=running))
        return words_read + before if words_read else ""
    if known.step is None:
        return ""
    words = [f"step {known.step}"]
    if known.final_step:
        words = [f"step {known.step:,}/{known.final_step:,} ({known.share or 0.0:.0%})"]
    if known.loss is not None:
        words.append(f"loss {known.loss:.3f}")
    if known.per_s is not None:
        words.append(f"{known.per_s:,.0f} {known.unit}/s")
    if known.remaining_s is not None and 0 < known.remaining_s < LONGEST_S:
        words.append(f"{duration(known.remaining_s)} left, until {clock(now + known.remaining_s, now)}")
    return printable(" · ".join(words) + before)


def _why(node: NodeState) -> str:
    if node.container and node.container.oom_killed:
        return "out of memory: its container reached its limit"
    return node.error or (node.container.error if node.container else "")


Row = Mapping[str, object]


def comparison_table(names: tuple[str, str], rows: Sequence[Row]) -> Table:
    """A line for each value: its section where it begins, its name, and both values; equal ones are dimmed."""
    cells: list[tuple[Cell, ...]] = []
    styles, before = [], ""
    for row in rows:
        section = str(row["section"])
        title = Text(section if section != before else "", "bold")
        cells.append((title, str(row["name"]), _text(row["a"]), _text(row["b"])))
        styles.append("dim" if row["a"] == row["b"] else "")
        before = section
    columns = (Column("", 1), Column("value"), Column(names[0], wraps=True), Column(names[1], wraps=True))
    return Table(columns=columns, rows=cells, styles=styles)


def _text(value: object) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,}" if isinstance(
        value, int | float) else str(value)  # fmt: skip
