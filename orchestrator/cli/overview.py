"""`orch` alone: runs and nodes from the records of this computer, and the next command. No node is asked."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.cli.context import load_inventory
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK

if TYPE_CHECKING:
    from orchestrator.render.table import Table
    from orchestrator.specs.inventory import Inventory
    from orchestrator.state.progress import RunProgress
    from orchestrator.store.run_record import RunRecord

LOOKED_AT, SHOWN = 50, 6
"""Newest runs that are looked at, and how many of them are shown, running ones first."""
MOST_NAMES = 16
NEXT = {
    "running": ("orch monitor   # nodes and run, live", "orch logs {run} -f"),
    "failed": ("orch why {run}   # the cause, and how to fix it",),
    "stopped": ("orch resume {run}",),
    "succeeded": ("orch report {run}   # one HTML file about it", "orch pull {run}   # copy what it wrote"),
}
"""Commands by the state of the first run that is shown; in any other state the nodes are to be asked."""


@dataclass(frozen=True, kw_only=True)
class RunLook:
    """A run as its record shows it."""

    run_id: str
    state: str
    progress: str
    """`1,204/3,000` steps, `epoch 3/10`, or `1,204 steps` of a script that says neither."""
    started_at: str
    nodes: int
    command: str
    checkpoint: bool
    """True if a checkpoint of it is known."""


def overview() -> int:
    """Show runs, nodes and the next command."""
    from orchestrator.render.console import show

    inventory = load_inventory(None).inventory
    if runs := newest_runs(time.time()):
        show(_table(runs))
    names = [holder.name for holder in inventory.holders]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    say(f"{'' if runs else 'no runs yet; '}nodes of {inventory.filename}: {', '.join(names[:MOST_NAMES])}{more}")
    for line in _next(runs, inventory):
        say(f"  → {line}")
    say("all commands: orch --help")
    return EXIT_OK


def newest_runs(now: float) -> list[RunLook]:
    """Runs on record: those that run, then the newest."""
    from orchestrator.state.limits import RECENT_S
    from orchestrator.store.run_record import RunRecord, known_records

    records = [RunRecord(one.run_id) for one in known_records()[:LOOKED_AT]]
    running = {one.run_id for one in records if one.outcome() is None and now - one.touched_at() < RECENT_S}
    shown = sorted(records, key=lambda one: one.run_id not in running)[:SHOWN]
    return [_look(record, now) for record in shown]


def _look(record: RunRecord, now: float) -> RunLook:
    from orchestrator.fleet.runs.load_state import recorded_state
    from orchestrator.state.next_step import has_checkpoint
    from orchestrator.state.phase import phase_of
    from orchestrator.state.progress import progress_of

    state = recorded_state(record, now)
    phase, plan = phase_of(state), state.plan
    return RunLook(
        run_id=record.run_id,
        state=phase.value,
        progress=_progress(progress_of(state, phase, now)),
        started_at=plan.started_at if plan else "",
        nodes=len(state.members),
        command=shlex.join(plan.command) if plan else "",
        checkpoint=has_checkpoint(state),
    )


def _progress(known: RunProgress) -> str:
    counts_epochs = known.epoch is not None
    done, of = (known.epoch, known.epochs) if counts_epochs else (known.step, known.final_step)
    if done is None:
        return known.work.partition(" optimizer")[0] + " steps" if known.work else ""
    return "epoch " * counts_epochs + (f"{done:,g}" if counts_epochs else f"{done:,}") + (f"/{of:,}" if of else "")


def _table(runs: Sequence[RunLook]) -> Table:
    from rich.text import Text

    from orchestrator.render.runs import STYLES
    from orchestrator.render.table import Column, Table
    from orchestrator.render.times import ago

    columns = (Column("run"), Column("state"), Column("progress", right=True), Column("started", 2),
               Column("nodes", 3, right=True), Column("command", 1, wraps=True))  # fmt: skip
    rows = [
        (
            one.run_id,
            Text(one.state, STYLES.get(one.state, "")),
            one.progress,
            ago(one.started_at),
            str(one.nodes),
            one.command,
        )
        for one in runs
    ]
    return Table(columns=columns, rows=rows)


def _next(runs: Sequence[RunLook], inventory: Inventory) -> Iterator[str]:
    """Commands that make sense now, most sensible first."""
    if runs:
        lines = NEXT.get(runs[0].state, ("orch status {run}   # asks its nodes",))
        if runs[0].state == "stopped" and not runs[0].checkpoint:
            lines = ("orch runs rerun {run}   # from the beginning: it has no checkpoint",)
        for line in lines:
            yield line.format(run=runs[0].run_id)
        return
    from orchestrator.store.doctor_record import record_file

    if not record_file().is_file():
        yield "orch doctor   # finds whatever would make a run fail, such as a missing image"
    else:
        if any(spec.engine != "process" for spec in inventory.nodes):
            yield "orch build   # the image; nodes that have it are skipped"
        yield "orch launch -- gpt2 --preset lab   # or your own script: orch launch --workdir . -- python train.py"
