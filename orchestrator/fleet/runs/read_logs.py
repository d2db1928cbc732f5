"""Log lines of a run, from its containers and from this controller's record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.log_lines import split_rank
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.find_runs import (
    RunningContainer,
    containers_of,
    find_runs,
    run_or_record,
    running_containers,
)
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.nodes.interface import LogLine, Node
from orchestrator.specs.errors import OrchError, UnkeptError
from orchestrator.specs.run import State
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import Veil
from orchestrator.store.line_filter import Filter, Selected, stored_lines
from orchestrator.store.run_record import RunRecord
from orchestrator.store.run_store import RunStore
from orchestrator.store.segments import Ends


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """Source of a run's log lines: its record and its containers."""

    record: RunRecord
    attempt: int | None = None
    """Attempt of `containers`."""
    containers: tuple[RunningContainer, ...] = ()
    earlier: tuple[RunningContainer, ...] = ()
    """Those of other attempts: their lines may not be on record yet."""
    names: tuple[str, ...]
    running: bool = False
    away: tuple[RunningContainer, ...] = ()
    """Containers on recorded nodes that do not answer."""
    unreachable: Mapping[str, OrchError]

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def to_follow(self) -> tuple[RunningContainer, ...]:
        return (*self.containers, *self.away)

    def collect_new(self, note: Callable[[str], object]) -> Ends:
        """Record new lines of the nodes; where the recorded lines end then. `note` receives the reason if they cannot
        be written."""
        collected = collect_logs((*self.earlier, *self.containers), self.record)
        for problem in dict.fromkeys(str(one.error) for one in collected if isinstance(one.error, UnkeptError)):
            note(problem)
        return self.record.ends()


def resolve_logs(nodes: Sequence[Node], wanted: str | None) -> LogSource:
    """Find a run on the nodes or, without containers, in this controller's record."""
    found = find_runs(nodes)
    run = run_or_record(found, wanted)
    if isinstance(run, RunRecord):
        return LogSource(record=run, names=run.names, unreachable=found.unreachable)
    record, by_name = RunRecord(run.run_id), {node.name: node for node in nodes}
    plan, made = record.plan(), record.journal.containers
    up = any(member.state is State.RUNNING for member in run.members)
    return LogSource(
        record=record,
        attempt=run.attempt,
        containers=running_containers(run, by_name),
        earlier=containers_of((member for _, member in run.earlier), by_name),
        names=tuple(member.node for member in run.members if member.container),
        running=run.state in (State.RUNNING, State.QUEUED) or (run.state is State.LOST and up),
        away=tuple(
            RunningContainer(node=by_name[part.node], node_rank=part.node_rank, id=made.get(part.node, ""))
            for part in (plan.nodes if plan else ())
            if part.node in found.unreachable and part.node in by_name
        ),
        unreachable=found.unreachable,
    )


def select_lines(
    source: LogSource, wanted: Filter, note: Callable[[str], object] = lambda _text: None
) -> Iterator[Selected]:
    """The lines to show, in order of time; new lines of the nodes are recorded first. `note`: as of `collect_new`."""
    return stored_lines(source.record.as_of(source.collect_new(note)), wanted)


def run_line(container: RunningContainer, line: LogLine, veil: Veil) -> RunLine:
    """A container's line with node and rank, secrets removed."""
    rank, text = split_rank(line.text)
    return RunLine(
        time=line.time, node=container.node.name, node_rank=container.node_rank, rank=rank, text=veil.hide(text),
        container=container.id, attempt=container.attempt,
    )  # fmt: skip


def collect_logs(
    containers: Sequence[RunningContainer], record: RunRecord, into: RunStore | None = None
) -> tuple[Outcome[RunningContainer, int], ...]:
    """Append what each container wrote since its last recorded line, to `into` if it is given; the number of new lines.
    The outcome is an `UnkeptError` where they could not be written."""
    lines = into or record

    def bring(container: RunningContainer) -> int:
        with lines.open_log(container.node.name, container.id) as log:
            veil = veil_at(container.node, container.secrets, record.veil)
            number = 0
            for line in container.node.engine.logs(container.id, since=log.since):
                entry = run_line(container, line, veil)
                record.note_report(entry, container.id)  # first: a line that is stored is not collected again
                log.add(entry)
                number += 1
        if log.problem:
            raise UnkeptError(log.problem)
        return number

    return fan_out(containers, bring)


def note_reports(containers: Sequence[RunningContainer], record: RunRecord) -> None:
    """Record what these containers reported of checkpoints and data, although their lines may have been collected
    before. Those that do not answer are left out."""

    def note(container: RunningContainer) -> None:
        for line in container.node.engine.logs(container.id):
            record.note_report(run_line(container, line, record.veil), container.id)

    fan_out(containers, note)
