"""`orch status`: how a run and its nodes are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, Output, RunArgument
from orchestrator.cli.report import report_error, say
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, OrchError, PartialError, RunFailedError
from orchestrator.specs.run import State

if TYPE_CHECKING:
    from rich.console import RenderableType

    from orchestrator.nodes.interface import Node
    from orchestrator.specs.past_run import PastRun

EXAMPLES = """\
orch status
orch status RUN -o wide
orch status --watch 5
"""

Draw = Callable[["RenderableType"], None]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """The status of a run at one moment."""

    data: Any
    names: Sequence[str]
    view: RenderableType | list[str]
    messages: Sequence[str] = ()
    """For stderr."""
    code: int
    over: bool
    """Whether it will not change any more."""


def status(
    *,
    run: RunArgument = None,
    output: Output,
    watch: float | None = typer.Option(
        None, "--watch", min=0.2, max=3600, metavar="[SECONDS]", help="Show it again and again (default: every 2 s)."
    ),
    inventory: InventoryOption = None,
) -> int:
    """Show the state of a run on each node, its last step, its speed against the forecast, and what its nodes use.

    The state of a run is that of its worst node. Exit code 0: running or done; 1: failed; 5: some of its nodes are
    lost. A run that no node knows is shown from the record on this computer, with the time of the record. --watch ends
    with the run; Ctrl-C ends it before.
    """
    from orchestrator.fleet.connect import connected_for

    with connected_for(known_nodes(inventory, run), run) as reached:
        if watch is not None:
            return _watch(reached, run, output, watch)
        shown = _look(reached, run, output)
        output.write(shown.data, shown.names, shown.view)
        for line in shown.messages:
            say(line)
        return shown.code


def _watch(nodes: Sequence[Node], run: str | None, output: Output, every_s: float) -> int:
    """Show the status until the run has ended: on a terminal in the same place, elsewhere again."""
    shown: _Shown | None = None
    try:
        with _drawing(output) as draw:
            while shown is None or not shown.over:
                if shown:
                    time.sleep(every_s)
                try:
                    shown = _look(nodes, run, output)
                except OrchError as error:
                    if shown is None:
                        raise
                    report_error(error)  # the next look may find it
                    continue
                if draw:
                    draw(_as_one(shown))
                else:
                    output.write(shown.data, shown.names, shown.view)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return shown.code


@contextmanager
def _drawing(output: Output) -> Iterator[Draw | None]:
    """How a view is drawn in place of the one before; None where each is written after it, for programs."""
    from rich.live import Live

    from orchestrator.render.console import stdout

    console = stdout()
    if not output.is_table:
        yield None
    elif not console.is_terminal:
        yield lambda view: console.print(view, crop=False, soft_wrap=False)
    else:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda view: live.update(view, refresh=True)


def _as_one(shown: _Shown) -> RenderableType:
    """The view with its time and its messages."""
    from rich.console import Group
    from rich.text import Text

    from orchestrator.render.printable import printable
    from orchestrator.render.times import stamp_of

    lines = [line for text in shown.messages for line in text.split("\n")]
    view = [Text(printable(line)) for line in shown.view] if isinstance(shown.view, list) else [shown.view]
    return Group(Text(stamp_of(time.time())), *view, *(Text(printable(line)) for line in lines))


def _look(nodes: Sequence[Node], run: str | None, output: Output) -> _Shown:
    """Ask the nodes for the run."""
    from orchestrator.checks.cluster_job import ClusterJob
    from orchestrator.checks.output_progress import output_warning
    from orchestrator.checks.slow_ranks import slow_ranks
    from orchestrator.cli.launching.stopping import half_way, tell_missing
    from orchestrator.fleet.runs.find_runs import find_runs, run_or_record, running_containers
    from orchestrator.fleet.runs.progress import forecast_of, last_event, last_output, past_run, resources_of
    from orchestrator.fleet.runs.records import RunRecord
    from orchestrator.nodes.cluster_nodes import cluster_of
    from orchestrator.render.runs import run_data, run_table

    found = find_runs(nodes)
    tell_missing(found)
    chosen = run_or_record(found, run)
    if isinstance(chosen, RunRecord):
        return _of_the_record(past_run(chosen, found.unreachable))
    containers = running_containers(chosen, {node.name: node for node in nodes})
    forecast = forecast_of(containers, RunRecord(chosen.run_id))
    last = last_event(containers, forecast)
    read = None if last else last_output(containers)
    used = resources_of(containers) if chosen.state is State.RUNNING else {}
    names = [member.node for member in chosen.members]
    slow = slow_ranks(last, names) if output.is_table and chosen.state is State.RUNNING else ()
    cluster = next((cluster_of(one.node) for one in containers), "")
    job = ClusterJob(cluster=cluster, nodes=chosen.nnodes) if cluster else None
    messages = [f"! {one.what}\n  → {one.todo(chosen.run_id, job)}" for one in slow]
    messages += [line for line in (output_warning(read), half_way(chosen)) if line]
    codes = {State.FAILED: RunFailedError.exit_code, State.LOST: PartialError.exit_code}
    return _Shown(
        data=run_data(chosen, last, forecast, used, output=read),
        names=names,
        view=run_table(chosen, last, forecast, used, output=read, wide=output.wide),
        messages=messages,
        code=codes.get(chosen.state, EXIT_OK),
        over=not chosen.is_going and not found.unreachable,
    )


def _of_the_record(past: PastRun) -> _Shown:
    """The record of a run that no node knows."""
    from orchestrator.render.runs import past_data, past_lines

    known = {State.FAILED.value: RunFailedError.exit_code, State.SUCCEEDED.value: EXIT_OK, "stopped": EXIT_OK}
    return _Shown(
        data=past_data(past),
        names=past.nodes,
        view=list(past_lines(past)),
        code=known.get(past.state, PartialError.exit_code),
        over=not past.unreachable,
    )
