"""Log lines of a run, from its containers and from this controller's record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.log_lines import split_rank
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.find_runs import FoundRuns, choose_run, find_runs, running_containers
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.records import RunRecord, recorded_runs
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.nodes.interface import LogLine, Node
from orchestrator.specs.errors import OrchError, UnkeptError
from orchestrator.specs.run import State
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import Veil

LOOK_BEYOND = 1000
"""Lines."""


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """Source of a run's log lines: its record and its containers."""

    record: RunRecord
    containers: tuple[RunningContainer, ...] = ()
    names: tuple[str, ...]
    running: bool = False
    away: tuple[RunningContainer, ...] = ()
    """Recorded nodes that do not answer: their containers are not known."""
    unreachable: Mapping[str, OrchError]

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def to_follow(self) -> tuple[RunningContainer, ...]:
        return (*self.containers, *self.away)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which lines to show."""

    nodes: frozenset[str] | None = None
    """None: all of the run."""
    rank: int | None = None
    since: str = ""
    tail: int | None = None
    grep: re.Pattern[str] = re.compile("")

    def passes(self, line: RunLine) -> bool:
        """Whether this line is wanted; `tail` does not count here."""
        return (
            (self.nodes is None or line.node in self.nodes)
            and (self.rank is None or line.rank == self.rank)
            and line.time > self.since
            and bool(self.grep.search(line.text))
        )


def resolve_logs(nodes: Sequence[Node], wanted: str | None) -> LogSource:
    """Find a run on the nodes or, without containers, in this controller's record."""
    found = find_runs(nodes)
    if record := recorded_only(found, wanted):
        return LogSource(record=record, names=record.names, unreachable=found.unreachable)
    run = choose_run(found, wanted)
    record, by_name = RunRecord(run.run_id), {node.name: node for node in nodes}
    plan = record.plan()
    up = any(member.state is State.RUNNING for member in run.members)
    return LogSource(
        record=record,
        containers=running_containers(run, by_name),
        names=tuple(member.node for member in run.members if member.container),
        running=run.state is State.RUNNING or (run.state is State.LOST and up),
        away=tuple(
            RunningContainer(node=by_name[part.node], node_rank=part.node_rank, id="")
            for part in (plan.nodes if plan else ())
            if part.node in found.unreachable and part.node in by_name
        ),
        unreachable=found.unreachable,
    )


def gather_lines(
    source: LogSource, wanted: Filter, note: Callable[[str], object] = lambda _text: None
) -> list[RunLine]:
    """All lines that pass, in order of time; new lines of the nodes are recorded first. `note` receives the reason if
    they cannot be written."""
    collected = collect_logs(source.containers, source.record)
    for problem in dict.fromkeys(str(one.error) for one in collected if isinstance(one.error, UnkeptError)):
        note(problem)
    if wanted.tail is None:
        return [line for line in source.record.lines() if wanted.passes(line)]
    names = [name for name in source.record.names if wanted.nodes is None or name in wanted.nodes]
    last = [line for name in names for line in _newest(source.record.newest(name), wanted, wanted.tail)]
    return sorted(last, key=lambda line: (line.time, line.node_rank))


def _newest(lines: Iterator[RunLine], wanted: Filter, number: int) -> list[RunLine]:
    """The last `number` lines of one node that pass the filter, read newest first. Some more are read: two followers of
    a run record the same lines in slightly different order."""
    found: dict[RunLine, None] = {}
    beyond = 0
    for line in lines:
        beyond += len(found) >= number
        if beyond > LOOK_BEYOND:
            break
        if wanted.passes(line):
            found[line] = None
    own = list(reversed(found))
    own.sort(key=lambda line: line.time)
    return own[max(0, len(own) - number) :]


def recorded_only(found: FoundRuns, wanted: str | None) -> RunRecord | None:
    """The record of a run that no node shows any more: the newest of all where no run is named."""
    on_nodes = [run.run_id for run in found.runs]
    if any(wanted is None or run_id.startswith(wanted) for run_id in on_nodes):
        return None
    records = [record for record in recorded_runs() if wanted is None or record.run_id.startswith(wanted)]
    return records[0] if records else None


def run_line(container: RunningContainer, line: LogLine, veil: Veil) -> RunLine:
    """A container's line with node and rank, secrets removed."""
    rank, text = split_rank(line.text)
    return RunLine(
        time=line.time, node=container.node.name, node_rank=container.node_rank, rank=rank, text=veil.hide(text)
    )


def collect_logs(
    containers: Sequence[RunningContainer], record: RunRecord
) -> tuple[Outcome[RunningContainer, int], ...]:
    """Append what each container wrote since its last recorded line; the number of new lines. The outcome is an
    `UnkeptError` where they could not be written."""

    def bring(container: RunningContainer) -> int:
        last = record.last_time(container.node.name, container.id)
        with record.open_log(container.node.name, container.id) as kept:
            veil = veil_at(container.node, container.secrets, record.veil)
            number = 0
            for line in container.node.engine.logs(container.id, since=last):
                kept.keep(run_line(container, line, veil))
                number += 1
        if kept.problem:
            raise UnkeptError(kept.problem)
        return number

    return fan_out(containers, bring)
