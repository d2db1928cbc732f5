"""`orch status`: how a run and its nodes are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, Output, RunArgument
from orchestrator.cli.report import report_error, say
from orchestrator.specs.errors import EXIT_OK, OrchError, PartialError, RunFailedError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from orchestrator.nodes.interface import Node
    from orchestrator.state.run_state import RunState
    from orchestrator.state.verdict import Verdict
    from orchestrator.store.run_record import RunRecord

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
    """Lines for stderr."""
    code: int
    over: bool
    """True if it will not change any more."""


def status(
    *,
    run: RunArgument = None,
    output: Output,
    watch: float | None = typer.Option(
        None, "--watch", min=0.2, max=3600, metavar="[SECONDS]", help="Refresh until the run ends (default: every 2 s)."
    ),
    inventory: InventoryOption = None,
) -> int:
    """Show the phase of a run, its last step, speed and remaining time, what is wrong, and what its nodes use.

    Exit code 0: it runs, has succeeded or was stopped; 1: it or one of its containers has failed; 5: some of its nodes
    are lost. A run that no node knows is shown from the record on this computer, with the time of the record. --watch
    ends with the run; Ctrl-C ends it before.
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
    return shown.code


@contextmanager
def _drawing(output: Output) -> Iterator[Draw | None]:
    """Yield the function that draws a view in place of the one before; None where each is written after it, for
    programs."""
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
    """Group the view with its time and its messages."""
    from rich.console import Group
    from rich.text import Text

    from orchestrator.render.printable import printable
    from orchestrator.render.times import stamp_of

    lines = [line for text in shown.messages for line in text.split("\n")]
    view = [Text(printable(line)) for line in shown.view] if isinstance(shown.view, list) else [shown.view]
    return Group(Text(stamp_of(time.time())), *view, *(Text(printable(line)) for line in lines))


def _look(nodes: Sequence[Node], run: str | None, output: Output) -> _Shown:
    """Ask the nodes for the run."""
    from orchestrator.cli.launching.stopping import half_launched, tell_missing
    from orchestrator.fleet.runs.find_runs import find_runs, run_or_record
    from orchestrator.fleet.runs.load_state import load_state
    from orchestrator.render.runs import run_table
    from orchestrator.state.verdict import verdict
    from orchestrator.store.run_record import RunRecord

    found, now = find_runs(nodes), time.time()
    tell_missing(found)
    chosen = run_or_record(found, run)
    if isinstance(chosen, RunRecord):
        return _of_the_record(chosen, found.unreachable, now)
    state = load_state(chosen, found, {node.name: node for node in nodes}, now)
    judged = verdict(state, now)
    return _Shown(
        data=status_data(state, judged, now),
        names=[node.name for node in state.members],
        view=run_table(state, judged, now, wide=output.wide),
        messages=[*status_messages(judged, state.run_id, now), *filter(None, [half_launched(chosen)])],
        code=_code(judged),
        over=not chosen.is_going and not found.unreachable,
    )


def _of_the_record(record: RunRecord, unreachable: Mapping[str, OrchError], now: float) -> _Shown:
    """The record of a run that no node knows."""
    from orchestrator.fleet.runs.load_state import recorded_state
    from orchestrator.render.runs import past_lines
    from orchestrator.state.verdict import verdict

    state = recorded_state(record, now, unreachable=unreachable)
    judged = verdict(state, now)
    as_of = datetime.fromtimestamp(record.touched_at()).astimezone().isoformat(timespec="seconds")
    silent = {name: problem.message for name, problem in unreachable.items()}
    return _Shown(
        data={**status_data(state, judged, now), "as_of": as_of, "unreachable": silent},
        names=[node.name for node in state.members],
        view=list(past_lines(state, judged, now, as_of)),
        messages=status_messages(judged, state.run_id, now),
        code=_code(judged),
        over=not unreachable,
    )


def status_data(state: RunState, judged: Verdict, now: float) -> dict[str, Any]:
    """The run for programs, each of its conditions with the words for people."""
    from orchestrator.render.runs import run_data
    from orchestrator.watch.words import words

    data = run_data(state, judged, now)
    for values, one in zip(data["conditions"], judged.conditions, strict=True):
        shown = words(one, state.run_id, now)
        values |= {"text": shown.text, "command": shown.command}
    return data


def status_messages(judged: Verdict, run_id: str, now: float) -> list[str]:
    """Lines on what is wrong, and on what is worth knowing, each with its next command."""
    from orchestrator.state.phase import Phase
    from orchestrator.watch.words import condition_lines, end_words, is_part_of_end

    ended = end_words(judged.phase, judged.reason, run_id) if judged.phase is Phase.FAILED else None
    lines = [f"! {ended.text}\n  → {ended.command}"] if ended else []
    shown = (one for one in judged.conditions if not is_part_of_end(one.code, judged.phase))
    return [*lines, *("\n".join(condition_lines(one, run_id, now)) for one in shown)]


def _code(judged: Verdict) -> int:
    if judged.has_failed:
        return RunFailedError.exit_code
    return PartialError.exit_code if judged.is_out_of_sight else EXIT_OK
