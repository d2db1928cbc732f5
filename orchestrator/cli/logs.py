"""`orch logs`: the output of the ranks, all nodes merged, of an active run or of a recorded one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain, islice
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import known_nodes
from orchestrator.cli.moments import log_time
from orchestrator.cli.options import InventoryOption, JsonOption, NodesOption, RunArgument
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from orchestrator.specs.selection import Labels, labels_of, select_names

if TYPE_CHECKING:
    from orchestrator.fleet.runs.read_logs import LogSource
    from orchestrator.nodes.interface import Node
    from orchestrator.render.log_lines import LogPrinter
    from orchestrator.store.line_filter import Filter
    from orchestrator.store.segments import Ends

EXAMPLES = """\
orch logs -f
orch logs RUN -n gamma --tail 50
orch logs RUN --rank 3 --since 10m --grep 'loss|error'
orch logs RUN --level error -C 5
"""
SAMPLE = 2000
"""First lines that tell whether a node has several ranks."""


class LevelOption(StrEnum):
    """The least level of the lines to show."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def logs(
    run: RunArgument = None,
    follow: bool = typer.Option(False, "-f", "--follow", help="Keep printing new lines."),
    nodes: NodesOption = None,
    rank: int | None = typer.Option(None, metavar="N", help="Only this global rank."),
    since: str = typer.Option(
        "", metavar="TIME|10m", help="Only lines since a time, or from the last 10 minutes (s, m, h, d)."
    ),
    tail: int | None = typer.Option(None, min=0, metavar="N", help="Only the last N lines of each node."),
    until: str = typer.Option("", metavar="TIME|10m", help="Only lines until a time, or until 10 minutes ago."),
    grep: str = typer.Option("", metavar="REGEX", help="Only lines that match."),
    level: LevelOption = typer.Option(
        LevelOption.INFO, metavar="warning|error", help="Only warnings and errors, or only errors."
    ),
    context: int = typer.Option(
        0,
        "-C",
        "--context",
        min=0,
        max=1000,
        metavar="N",
        help="Also N lines of the same node before and after each line that --grep or --level selects.",
    ),
    raw: bool = typer.Option(
        False, "--raw", help="Show all lines, each state of a progress bar among them, and fold none."
    ),
    timestamps: bool = typer.Option(False, "-t", "--timestamps", help="Show the local time of each line."),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Show the output of a run's ranks, merged by time, each line with its node.

    Tracebacks of ranks that merely lost a peer are folded into one line, and the same line of several ranks is shown
    once with their numbers ([0-2]); --nodes, --rank, --grep, --level, --raw and --json show all lines. A progress bar
    is a line at every 10 % and at its end; --raw shows all of its states. --level knows the marks of
    Python's logging, warnings and tracebacks, of torch and NCCL (orch docs launch). Ctrl-C stops following; the run
    continues. Search all runs: orch search.
    """
    from orchestrator.checks.line_levels import LineLevel
    from orchestrator.fleet.connect import connected_for
    from orchestrator.render.consequences import peers
    from orchestrator.render.log_lines import LogPrinter, has_several_ranks
    from orchestrator.store.line_filter import Filter, stored_lines

    if follow and until:
        raise UsageError("--follow shows new lines, --until only past ones: give one of them")
    wanted = Filter(
        rank=rank,
        since=log_time(since, option="--since"),
        until=log_time(until, option="--until"),
        tail=tail,
        events=as_json or raw,
        grep=_expression(grep),
        level=LineLevel(level.value),
        context=context,
    )
    picked = bool(nodes or grep or rank is not None or level is not LevelOption.INFO)
    specs = known_nodes(inventory, run)
    with connected_for(specs, run) as reached:
        source = _resolved(reached, run)
        wanted = replace(wanted, nodes=_selected(source, nodes, rank, labels_of(specs)))
        for name, problem in source.unreachable.items():
            say(f"note: {name} does not answer, its newest lines are missing: {problem.message}")
        ends = source.collect_new(lambda text: say(f"note: {text}"))
        first = list(islice(lines := stored_lines(source.record.as_of(ends), wanted), SAMPLE))
        printer = LogPrinter(
            names=source.names,
            as_json=as_json,
            timestamps=timestamps,
            several_ranks=has_several_ranks(line for line, _ in first),
            fold=None if as_json or picked or raw else peers(source.record.plan()),
            raw=raw,
        )
        for line, matched in chain(first, lines):
            printer.print(line, context=not matched)
        printer.rest()
        if not first and not picked:
            _say_silent(source)
        return _follow(source, wanted, printer, ends) if follow and source.running else EXIT_OK


def _say_silent(source: LogSource) -> None:
    """Report that there is no line, which is usual while the ranks still import torch."""
    what = "nothing yet" if source.running else "nothing"
    say(f"note: the ranks have printed {what}\n  → orch status {source.run_id}")


def _resolved(reached: Sequence[Node], run: str | None) -> LogSource:
    """Return the source of the lines, and report where its nodes speak without a record."""
    from orchestrator.fleet.runs.read_logs import resolve_logs
    from orchestrator.store.run_record import spoken_by_nodes

    source = resolve_logs(reached, run)
    if source.containers and (line := spoken_by_nodes(source.run_id)):
        say(f"note: {line}")
    return source


def _follow(source: LogSource, wanted: Filter, printer: LogPrinter, ends: Ends) -> int:
    """Print the lines after these ends until the run ends or Ctrl-C."""
    from orchestrator.fleet.supervise.follow import follow as follow_run
    from orchestrator.fleet.supervise.followed import observed
    from orchestrator.render.recovery import recovery_line
    from orchestrator.specs.run_events import ContainerExited, RunLine, Tick
    from orchestrator.specs.seen import seen_now
    from orchestrator.state.facts import fact_of
    from orchestrator.state.reduce import apply
    from orchestrator.store.line_filter import Selection
    from orchestrator.watch.follow_lines import FollowLines

    selection, conditions, state = Selection(wanted), FollowLines(), observed(source.record, source.containers)
    try:
        for happening in follow_run(source.to_follow, source.record, patient=True, ends=ends):
            if fact := fact_of(happening, seen_now()):
                apply(state, fact)
            for text in conditions.after(happening, state, seen_now()):
                say(text)
            if isinstance(happening, RunLine):
                for line, matched in selection.hear(happening):
                    printer.print(line, context=not matched)
            elif isinstance(happening, Tick | ContainerExited):
                printer.rest()
            elif text := recovery_line(happening):
                say(text)
    except KeyboardInterrupt:
        say(f"\nrun {source.run_id} continues\n  → orch stop {source.run_id}")
        return EXIT_INTERRUPTED
    printer.rest()
    return EXIT_OK


def _expression(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise UsageError(f"--grep {grep}: not a regular expression: {error}") from error


def _selected(source: LogSource, nodes: str | None, rank: int | None, labels: Labels) -> frozenset[str] | None:
    """Return the nodes of the run that `nodes` selects, None for all. UsageError: a rank that the run does not have."""
    plan = source.record.plan()
    if rank is not None and plan and not 0 <= rank < plan.world_size:
        raise UsageError(f"run {source.run_id} has no rank {rank}; it has 0 to {plan.world_size - 1}")
    if nodes is None:
        return None
    planned = [part.node for part in plan.nodes] if plan else []
    names = tuple(dict.fromkeys([*planned, *sorted({*source.names, *source.record.names, *source.unreachable})]))
    selected, count = select_names(nodes, names, place=f"run {source.run_id}", labels=labels)
    return frozenset(selected[:count])
