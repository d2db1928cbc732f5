"""The lines of a run, wherever they are: in its containers, and in this controller's record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.fleet.runs.collect import collect_logs
from orchestrator.fleet.runs.find_runs import Found, choose_run, find_runs, seats_of
from orchestrator.fleet.runs.launch import Seated
from orchestrator.fleet.runs.records import RunRecord, recorded_runs
from orchestrator.nodes.seam import Node
from orchestrator.specs.errors import OrchError
from orchestrator.specs.happening import Said
from orchestrator.specs.run import State


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """Where a run's lines come from."""

    run_id: str
    record: RunRecord
    seated: tuple[Seated, ...]
    names: tuple[str, ...]
    running: bool
    unreachable: Mapping[str, OrchError]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which lines to show."""

    node: str = ""
    rank: int | None = None
    since: str = ""
    tail: int | None = None
    grep: re.Pattern[str] = re.compile("")

    def passes(self, said: Said) -> bool:
        """Whether this line is wanted; `tail` is for a whole, not for a line."""
        return (
            self.node in ("", said.node)
            and (self.rank is None or said.rank == self.rank)
            and said.time > self.since
            and bool(self.grep.search(said.text))
        )


def resolve_logs(nodes: Sequence[Node], wanted: str | None) -> LogSource:
    """Find a run on the nodes; one whose containers are gone, in this controller's record."""
    found = find_runs(nodes)
    recorded = _recorded(found, wanted)
    if recorded is not None:
        names = sorted({said.node for said in recorded.lines()})
        return _source(recorded, (), tuple(names), found, running=False)
    run = choose_run(found, wanted)
    by_name = {node.name: node for node in nodes}
    seated = seats_of(run, by_name)
    names = [member.node for member in run.members if member.container]
    return _source(RunRecord(run.run_id), seated, tuple(names), found, running=run.state is State.RUNNING)


def gather_lines(source: LogSource, wanted: Filter) -> list[Said]:
    """All lines that pass, in order of time; the nodes' newest are brought to the record first."""
    collect_logs(source.seated, source.record)
    passing = [said for said in source.record.lines() if wanted.passes(said)]
    if wanted.tail is None:
        return passing
    last: list[Said] = []
    for name in {said.node for said in passing}:
        own = [said for said in passing if said.node == name]
        last += own[max(0, len(own) - wanted.tail) :]
    return sorted(last, key=lambda said: (said.time, said.node_rank))


def _recorded(found: Found, wanted: str | None) -> RunRecord | None:
    """The record of a run that no node shows any more: the newest of all where no run is named."""
    on_nodes = [run.run_id for run in found.runs]
    if any(wanted is None or run_id.startswith(wanted) for run_id in on_nodes):
        return None
    records = [record for record in recorded_runs() if wanted is None or record.run_id.startswith(wanted)]
    return records[0] if records else None


def _source(
    record: RunRecord, seated: tuple[Seated, ...], names: tuple[str, ...], found: Found, *, running: bool
) -> LogSource:
    return LogSource(
        run_id=record.run_id,
        record=record,
        seated=seated,
        names=names,
        running=running,
        unreachable=found.unreachable,
    )
