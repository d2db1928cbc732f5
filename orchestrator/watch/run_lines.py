"""A run for people: a few lines at the top of a screen, and its newest faults below."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from contract.cost_model.units import duration
from orchestrator.checks.output_progress import LONGEST_S
from orchestrator.render.bars import bar, sparkline
from orchestrator.render.printable import counted
from orchestrator.render.times import clock
from orchestrator.state.limits import NO_PROGRESS_S
from orchestrator.state.phase import Phase
from orchestrator.state.progress import RunProgress
from orchestrator.watch.fleet_view import FleetView, HealthLine
from orchestrator.watch.node_table import GREY, STYLES
from orchestrator.watch.views import RunView

SHARE = 0.05
"""Least share of the time that is shown."""
CONDITIONS, CONDITION_LINES = 3, 2
"""Conditions that are shown, the most severe, and lines of the sentence of one."""
TONES = {"error": "bold red", "warning": "bold yellow", "info": ""}


def run_lines(shown: FleetView, width: int, *, ascii_only: bool = False) -> list[Text]:
    """A few lines of at most `width` columns about the run, and what is wrong; without a run, about the machines."""
    run = shown.run
    if run is None:
        known = "no run" if shown.looked else "looking for a run"
        answering = sum(not node.silent and node.answered_s is not None for node in shown.nodes)
        text = f"  {answering} of {counted(len(shown.nodes), 'node')} answer"
        return [_cut(Text.assemble((known, "bold"), text), width), *_health(shown, width)]
    title = Text.assemble("run ", (run.run_id, "bold"), "  ", (run.phase.value, STYLES.get(run.phase.value, "")))
    if run.attempt and run.attempt > 1:
        title.append(f"  attempt {run.attempt}")
    if not run.is_on_nodes:
        title.append("  from the record on this computer", GREY)
    figures = run.progress
    parts = [*_progress(run, shown, width, ascii_only=ascii_only), *_shares(run)]
    lines = [title, *_flow(parts, width)]
    if figures.losses:
        room = max(1, min(60, width - 14))
        loss = "" if figures.loss is None else f" {figures.loss:.4g}"
        lines.append(Text.assemble("loss ", (sparkline(figures.losses, room, ascii_only=ascii_only), "cyan"), loss))
    if figures.last_line:
        lines.append(Text(figures.last_line, GREY))
    if run.reason and run.phase in (Phase.SUCCEEDED, Phase.STOPPED):
        lines.append(Text(run.reason))
    return [*(_cut(line, width) for line in lines), *_health(shown, width)]


def _progress(run: RunView, shown: FleetView, width: int, *, ascii_only: bool) -> Iterator[Text]:
    figures, runs = run.progress, run.phase is Phase.RUNNING
    if run.output or figures.work:
        yield from (Text(part) for part in run.output.split(" · ") if part)
        yield from (Text(part) for part in figures.work.split(" · ") if part)
    elif figures.step is None:
        yield Text("no step reported yet" if run.phase.is_active else "no step reported", GREY)
        return
    else:
        yield from _step(figures, width, ascii_only=ascii_only)
    left = figures.remaining_s
    if figures.is_before_restart and run.phase.is_active:
        yield Text("before the restart", GREY)
    elif runs and (figures.age_s or 0.0) > NO_PROGRESS_S:
        yield Text(f"last progress {duration(figures.age_s or 0.0)} ago")
    elif left is not None and 0 < left < LONGEST_S and not run.output:
        yield Text(f"{duration(left)} left, until {clock(shown.at + left, shown.at)}", "bold")


def _step(figures: RunProgress, width: int, *, ascii_only: bool) -> Iterator[Text]:
    if figures.share is None or not figures.final_step:
        yield Text(f"step {figures.step:,}")
        return
    is_drawn = width >= 70 and not ascii_only
    if is_drawn:
        done = bar(figures.share, 1.0, width=20, style="green")
        yield Text.assemble(done, ("·" * (20 - done.cell_len), GREY), f" {figures.share:.0%}")
    percent = "" if is_drawn else f" ({figures.share:.0%})"
    yield Text(f"step {figures.step:,}/{figures.final_step:,}{percent}")


def _shares(run: RunView) -> Iterator[Text]:
    """Speed, and shares of the time."""
    figures = run.progress
    is_old = figures.is_before_restart or (figures.age_s or 0.0) > NO_PROGRESS_S
    if figures.per_s is not None and not is_old and not run.output:
        forecast = f" ({figures.of_forecast:.0%} of the forecast)" if figures.of_forecast else ""
        yield Text(f"{figures.per_s:,.0f} {figures.unit}/s{forecast}")
    for share, what in ((figures.waiting, "waiting for data"), (figures.exchanging, "exchanging")):
        if share is not None and share >= SHARE:
            yield Text(f"{share:.0%} {what}")


def _health(shown: FleetView, width: int) -> list[Text]:
    """The most severe conditions, each with its next command."""
    found = shown.health.lines
    lines = [line for one in found[:CONDITIONS] for line in _condition(one, width)]
    if len(found) > CONDITIONS:
        lines.append(_cut(Text(f"· {len(found) - CONDITIONS} more: orch status", GREY), width))
    return lines


def _condition(one: HealthLine, width: int) -> Iterator[Text]:
    text = f"{'!' if one.severity in ('error', 'warning') else '·'} {one.text}"
    wrapped = textwrap.wrap(
        text, max(width, 4), subsequent_indent="  ", max_lines=CONDITION_LINES, placeholder=" …"
    )  # fmt: skip
    yield from (_cut(Text(line, TONES[one.severity]), width) for line in wrapped)
    if one.command:
        yield _cut(Text(f"  → {one.command}"), width)


def _flow(parts: Sequence[Text], width: int) -> list[Text]:
    """The parts, as many on a line as fit."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append(" · ").append(part)
        else:
            lines.append(part.copy())
    return lines


def _cut(line: Text, width: int) -> Text:
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def fault_lines(shown: FleetView, most: int) -> list[Text]:
    """The newest faults, the newest last."""
    faults = shown.faults[-most:] if most > 0 else ()
    return [Text.assemble((f"{clock(one.at, shown.at)} ", GREY), one.text) for one in faults]
