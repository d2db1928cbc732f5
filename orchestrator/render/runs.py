"""Runs and their nodes as tables and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rich.text import Text

from contract.cost_model.forecast import Forecast
from contract.cost_model.units import duration
from contract.events import OutputProgress, ProgressEvent, ResourcesSampled
from contract.resources import ResourceUsage
from orchestrator.checks.output_progress import LONGEST_S, output_words
from orchestrator.checks.slow_ranks import slow_ranks
from orchestrator.render.console import colour_of
from orchestrator.render.forecast import forecast_line
from orchestrator.render.printable import printable
from orchestrator.render.table import Cell, Column, Table
from orchestrator.render.times import ago, clock, moment, stamp, started, zone
from orchestrator.specs.past_run import HistoryEntry, PastRun
from orchestrator.specs.run import Member, Run, State

SWAP_MIB = 512
"""Swapped memory from which it is shown: systems swap out some of what is never used."""
STYLES = {
    State.RUNNING: "green",
    State.SUCCEEDED: "bold green",
    State.FAILED: "bold red",
    State.LOST: "bold red",
    State.CREATED: "yellow",
    State.QUEUED: "yellow",
    State.STOPPED: "bold",
}


def run_table(
    run: Run,
    last: ProgressEvent | None,
    forecast: Forecast | None = None,
    used: Mapping[str, ResourcesSampled] = MappingProxyType({}),
    *,
    output: OutputProgress | None = None,
    wide: bool = False,
) -> Table:
    """One run: its state as title, below it what was forecast and what is achieved, a line per node.

    `used`: what nodes reported of their resources. `output`: progress that was read from its output, shown where
    `last` is None.
    """
    title = Text.assemble(f"run {run.run_id}  ", (run.state.value, STYLES[run.state]))
    if progress := _progress(last, running=run.state is State.RUNNING) or _printed(output, run.state):
        title.append(f"  {progress}")
    if forecast:
        title.append(f"\n{forecast_line(forecast, _achieved(last))}")
    names = [member.node for member in run.members]
    slow = {
        one.node: f"{one.ratio:.1f} x the others' time"
        for one in reversed(slow_ranks(last, names))
        if run.state is State.RUNNING
    }
    left_out = {out.node: f"left out: {out.why}" for out in forecast.left_out} if forecast else {}
    columns = (
        Column("rank", 4, right=True), Column("node"), Column("state"), Column("exit", 1, right=True),
        Column("CPU", 4, right=True), Column("memory", 5, right=True), Column("GPU", 6),
        Column(f"started ({zone()})", 3), Column("restarts", 2, right=True), Column("why", wraps=True),
        Column("container", wide=True), Column("image", wide=True),
    )  # fmt: skip
    rows = []
    for member in run.members:
        container = member.container
        rows.append(
            (
                str(member.node_rank),
                Text(member.node, colour_of(member.node_rank)),
                Text(member.state.value, STYLES[member.state]),
                "" if container is None or container.exit_code is None else str(container.exit_code),
                *_used(used[member.node].usage if member.node in used else None),
                started(container.started_at) if container else "",
                str(container.restarts) if container else "",
                _why(member) or left_out.get(member.node, "") or slow.get(member.node, ""),
                container.id[:12] if container else "",
                container.image.removeprefix("sha256:")[:12] if container else "",
            )
        )
    return Table(title=title, columns=columns, rows=rows, wide=wide)


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


def runs_table(runs: Sequence[Run], history: Sequence[HistoryEntry] = (), *, wide: bool = False) -> Table:
    """Many runs, a line each; then those that are only on record on this computer."""
    columns = (
        Column("run"), Column("state"), Column("nodes", 3), Column("by", 5), Column("started", 2),
        Column("command", 1, wraps=True), Column("from the record", 4, wraps=True),
        Column(f"started at ({zone()})", wide=True), Column("attempt", right=True, wide=True),
        Column("rank 0", wide=True), Column("project", wide=True),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        running = sum(member.state is State.RUNNING for member in run.members)
        up = f"{running}/{run.nnodes} up" if running else str(run.nnodes)
        state = Text(run.state.value, STYLES[run.state])
        rows.append((run.run_id, state, up, run.user, ago(run.started_at), run.command, "", moment(run.started_at),
                     str(run.attempt), run.master, run.project))  # fmt: skip
    for past in history:
        rows.append((past.run_id, past.state, str(len(past.nodes) or ""), past.user, ago(past.started_at), past.command,
                     past.reason, moment(past.started_at), "", "", ""))  # fmt: skip
    return Table(columns=columns, rows=rows, wide=wide)


def past_lines(past: PastRun) -> Iterator[str]:
    """A run that no node shows, for people."""
    silent = f"; {', '.join(past.unreachable)} did not answer" if past.unreachable else ""
    progress = _progress(past.last_event, running=False) or output_words(past.output, running=False)
    yield f"run {past.run_id}  {past.state}" + (f"  {progress}" if progress else "")
    yield f"as of {stamp(past.as_of)}, from the record on this computer: no node shows it now{silent}"
    if past.reason:
        yield past.reason
    if past.started_at:
        yield f"started {started(past.started_at)} ({zone()}) on {', '.join(past.nodes)}: {past.command}"
    yield f"  → orch logs {past.run_id}"


def past_data(past: PastRun) -> dict[str, Any]:
    """The same for programs."""
    last = past.last_event
    return {
        "run_id": past.run_id,
        "state": past.state,
        "reason": past.reason,
        "as_of": past.as_of,
        "started_at": past.started_at,
        "command": past.command,
        "nodes": list(past.nodes),
        "last_event": last and {"kind": last.kind, **last.values()},
        "output": past.output and past.output.values(),
        "forecast": past.forecast and asdict(past.forecast),
        "unreachable": {name: problem.message for name, problem in past.unreachable.items()},
    }


def half_stopped_line(run: Run, *, on_cluster: bool = False) -> str:
    """For a run that was stopped while some of its nodes did not answer. `orch clean` asks no cluster."""
    left = ", ".join(member.node for member in run.members if member.state in (State.RUNNING, State.CREATED))
    clean = "" if on_cluster else "   or: orch clean"
    return f"run {run.run_id} was stopped, but not on {left}\n  → orch stop {run.run_id}{clean}"


def foreign_line(run: Run) -> str:
    """Containers with the run's label that count for nothing."""
    shown: dict[int, list[str]] = {}
    for attempt, member in run.foreign:
        shown.setdefault(attempt, []).append(member.node)
    where = "; ".join(f"{', '.join(dict.fromkeys(nodes))} (attempt {number})" for number, nodes in shown.items())
    return (
        f"! a container that is no part of run {run.run_id}, attempt {run.attempt}, is left out on {where}\n"
        f"  → orch stop {run.run_id}   # ends all of its containers"
    )


def superseded_line(run: Run, recorded: int) -> str:
    """For a run that more than half of its nodes show with a later attempt than the recorded one."""
    by = f" by {printable(run.user)}" if run.user else ""
    return (
        f"! attempt {run.attempt} of run {run.run_id} was started from another computer{by}; this one launched attempt "
        f"{recorded}. What is shown is read from the nodes"
    )


def half_launched_line(run: Run) -> str:
    """State of a launch that was cut short, and what to do about it."""
    up = sum(member.state is State.RUNNING for member in run.members)
    return (
        f"run {run.run_id} was launched half-way, or is being launched: {up} of {run.nnodes} containers run\n"
        f"  → orch adopt {run.run_id}   or: orch stop {run.run_id}"
    )


def run_data(
    run: Run,
    last: ProgressEvent | None = None,
    forecast: Forecast | None = None,
    used: Mapping[str, ResourcesSampled] = MappingProxyType({}),
    *,
    output: OutputProgress | None = None,
) -> dict[str, Any]:
    """One run for programs."""
    return {
        "run_id": run.run_id,
        "project": run.project,
        "state": run.state.value,
        "attempt": run.attempt,
        "user": run.user,
        "started_at": run.started_at,
        "nnodes": run.nnodes,
        "master": run.master,
        "command": run.command,
        "last_event": last and {"kind": last.kind, **last.values()},
        "output": output and output.values(),
        "forecast": forecast and asdict(forecast),
        "of_forecast": _achieved(last),
        "slow": [asdict(one) for one in slow_ranks(last, [member.node for member in run.members])],
        "members": [_member_data(member, used.get(member.node)) for member in run.members],
        "foreign": [{"attempt": attempt, **_member_data(member, None)} for attempt, member in run.foreign],
    }


def _member_data(member: Member, used: ResourcesSampled | None) -> dict[str, Any]:
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
        "resources": used and {"t": used.t, **asdict(used.usage)},
    }


def _progress(last: ProgressEvent | None, *, running: bool) -> str:
    """Step, loss, speed, and for a running run the time that is left."""
    if last is None or last.step is None:
        return ""
    words = [f"step {last.step}"]
    if last.final_step:
        words = [f"step {last.step:,}/{last.final_step:,} ({min(1.0, last.step / last.final_step):.0%})"]
    if (loss := last.loss) is not None:
        words.append(f"loss {loss:.3f}")
    if (speed := last.per_s) is not None:
        words.append(f"{speed:,.0f} {last.unit or 'samples'}/s")
    if running and last.t is not None and last.remaining_s is not None and 0 < last.remaining_s < LONGEST_S:
        words.append(f"{duration(last.remaining_s)} left, until {clock(last.t + last.remaining_s)}")
    return printable(" · ".join(words))


def _printed(output: OutputProgress | None, state: State) -> str:
    """Progress read from the output, as long after it as it is now."""
    age_s = time.time() - output.t if output and output.t is not None else 0.0
    return output_words(output, running=state is State.RUNNING, age_s=age_s)


def _achieved(last: ProgressEvent | None) -> float | None:
    """Share of the forecast's speed."""
    return last.of_forecast if last else None


def _why(member: Member) -> str:
    if member.container and member.container.oom_killed:
        return "out of memory: its container reached its limit"
    return member.reason or (member.container.error if member.container else "")
