"""`orch logs`: the output of the ranks, all nodes merged, of an active run or of a recorded one."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, JsonOption, NodesOption, RunArgument
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from orchestrator.specs.numbers import duration_s
from orchestrator.specs.selection import Labels, labels_of, select_names

if TYPE_CHECKING:
    from orchestrator.fleet.runs.read_logs import LogSource

EXAMPLES = """\
orch logs -f
orch logs RUN -n gamma --tail 50
orch logs RUN --rank 3 --since 10m --grep 'loss|error'
"""


def logs(
    run: RunArgument = None,
    follow: bool = typer.Option(False, "-f", "--follow", help="Keep printing new lines."),
    nodes: NodesOption = None,
    rank: int | None = typer.Option(None, metavar="N", help="Only this global rank."),
    since: str = typer.Option(
        "", metavar="TIME|10m", help="Only lines since a time, or from the last 10 minutes (s, m, h, d)."
    ),
    tail: int | None = typer.Option(None, min=0, metavar="N", help="Only the last N lines of each node."),
    grep: str = typer.Option("", metavar="REGEX", help="Only lines that match."),
    timestamps: bool = typer.Option(False, "-t", "--timestamps", help="Show the local time of each line."),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Show the output of a run's ranks, merged by time, each line with its node.

    Tracebacks of ranks that merely lost a peer are folded into one line; --nodes, --rank and --json show them in full.
    Ctrl-C stops following; the run continues.
    """
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.runs.read_logs import Filter, gather_lines, resolve_logs
    from orchestrator.fleet.supervise.follow import follow as follow_run
    from orchestrator.render.consequences import peers
    from orchestrator.render.log_lines import LogPrinter, has_several_ranks
    from orchestrator.render.recovery import recovery_line
    from orchestrator.specs.run_events import ContainerExited, RunLine, Tick

    try:
        wanted = Filter(rank=rank, since=_moment(since), tail=tail, grep=re.compile(grep))
    except re.error as error:
        raise UsageError(f"--grep {grep}: not a regular expression: {error}") from error
    specs = known_nodes(inventory, run)
    with connected_for(specs, run) as reached:
        source = resolve_logs(reached, run)
        wanted = replace(wanted, nodes=_selected(source, nodes, rank, labels_of(specs)))
        for name, problem in source.unreachable.items():
            say(f"note: {name} does not answer, its newest lines are missing: {problem.message}")
        lines = gather_lines(source, wanted, note=lambda text: say(f"note: {text}"))
        printer = LogPrinter(
            names=source.names,
            as_json=as_json,
            timestamps=timestamps,
            several_ranks=has_several_ranks(lines),
            fold=None if as_json or nodes or grep or rank is not None else peers(source.record.plan()),
        )
        for line in lines:
            printer.print(line)
        printer.rest()
        if not follow or not source.running:
            return EXIT_OK
        try:
            for happening in follow_run(source.to_follow, source.record, patient=True):
                if isinstance(happening, RunLine) and wanted.passes(happening):
                    printer.print(happening)
                elif isinstance(happening, Tick | ContainerExited):
                    printer.rest()
                elif text := recovery_line(happening):
                    say(text)
        except KeyboardInterrupt:
            say(f"\nrun {source.run_id} continues\n  → orch stop {source.run_id}")
            return EXIT_INTERRUPTED
    return EXIT_OK


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


def _moment(text: str) -> str:
    """Convert `10m`, `2h`, `30s`, `1d` ago, or a time in ISO 8601, to the format of log lines."""
    if not text:
        return ""
    if (seconds := duration_s(text)) is not None:
        moment = datetime.now(timezone.utc) - timedelta(seconds=seconds)
    else:
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
        except ValueError as error:
            raise UsageError(f"--since {text}: expected 10m, 2h or a time like 2026-01-31T10:00") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
