"""Log lines of a run, from its containers and from this controller's record."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.log_lines import EVENT_MARK, split_rank
from orchestrator.checks.line_levels import LevelReader, LineLevel, levels_newest_first, near_level
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.find_runs import (
    RunningContainer,
    containers_of,
    find_runs,
    run_or_record,
    running_containers,
)
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.nodes.interface import LogLine, Node
from orchestrator.specs.errors import OrchError, UnkeptError
from orchestrator.specs.run import State
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import Veil
from orchestrator.store.run_store import RunStore
from orchestrator.store.search import ANY_LINE, Needles, words
from orchestrator.store.segments import Ends

_SIMPLE = re.compile(r"[\w\s:,/=^$-]*(?:\.\*?[\w\s:,/=^$-]*)*", re.ASCII)
"""A regular expression of which each word must be in the text: nothing is optional, and there are no alternatives."""


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
    until: str = ""
    tail: int | None = None
    grep: re.Pattern[str] = re.compile("")
    level: LineLevel = LineLevel.INFO
    """The least level."""
    events: bool = False
    """Whether `tail` counts lines with events, which only programs see."""
    context: int = 0
    """Lines of the same node to show before and after each one that `grep` and `level` want."""

    def passes(self, line: RunLine) -> bool:
        """Whether this line is wanted; `tail`, `level` and `context` do not count here."""
        return self.may_show(line) and bool(self.grep.search(line.text))

    def may_show(self, line: RunLine) -> bool:
        """Whether this line is wanted, or may be shown as context of one that is."""
        return (
            (self.nodes is None or line.node in self.nodes)
            and (self.rank is None or line.rank == self.rank)
            and line.time > self.since
            and (not self.until or line.time <= self.until)
        )

    def counts(self, line: RunLine) -> bool:
        """Whether a wanted line is one of the `tail`."""
        return self.events or not line.text.startswith(EVENT_MARK)

    @property
    def needles(self) -> Needles:
        """Marks by which the wanted lines are found: words that each match of the regular expression has, where it is
        simple enough to tell, or those of the level; none where the context needs other lines."""
        if self.context or self.level is not LineLevel.INFO:
            return ANY_LINE if self.context else Needles(near=near_level(self.level))
        simple = _SIMPLE.fullmatch(self.grep.pattern) and not self.grep.flags & (re.IGNORECASE | re.VERBOSE)
        return words([self.grep.pattern.replace(".*", " ")] if simple else [])


Selected = tuple[RunLine, bool]
"""A line to show, and whether it is wanted itself: otherwise it is context."""


class Selection:
    """Picks the lines to show from lines as they come."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted, self._levels, self._context = wanted, LevelReader(), _Context(wanted.context)

    def hear(self, line: RunLine) -> list[Selected]:
        if not self._wanted.may_show(line):
            return []
        plain = self._wanted.level is LineLevel.INFO
        reaches = plain or self._levels.hear(line).reaches(self._wanted.level)
        return self._context.hear(line, reaches and self._wanted.passes(line))


class _Context:
    """Adds the lines around those that are wanted; in ascending or in descending order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._before: dict[str, deque[RunLine]] = {}
        self._after: dict[str, int] = {}

    def hear(self, line: RunLine, wanted: bool) -> list[Selected]:
        if wanted:
            self._after[line.node] = self._number
            return [*((one, False) for one in self._before.pop(line.node, ())), (line, True)]
        if not self._number or line.text.startswith(EVENT_MARK):  # people see no events
            return []
        if self._after.get(line.node, 0):
            self._after[line.node] -= 1
            return [(line, False)]
        self._before.setdefault(line.node, deque(maxlen=self._number)).append(line)
        return []


def resolve_logs(nodes: Sequence[Node], wanted: str | None) -> LogSource:
    """Find a run on the nodes or, without containers, in this controller's record."""
    found = find_runs(nodes)
    run = run_or_record(found, wanted)
    if isinstance(run, RunRecord):
        return LogSource(record=run, names=run.names, unreachable=found.unreachable)
    record, by_name = RunRecord(run.run_id), {node.name: node for node in nodes}
    plan = record.plan()
    up = any(member.state is State.RUNNING for member in run.members)
    return LogSource(
        record=record,
        attempt=run.attempt,
        containers=running_containers(run, by_name),
        earlier=containers_of((member for _, member in run.earlier), by_name),
        names=tuple(member.node for member in run.members if member.container),
        running=run.state in (State.RUNNING, State.QUEUED) or (run.state is State.LOST and up),
        away=tuple(
            RunningContainer(node=by_name[part.node], node_rank=part.node_rank, id="")
            for part in (plan.nodes if plan else ())
            if part.node in found.unreachable and part.node in by_name
        ),
        unreachable=found.unreachable,
    )


def select_lines(
    source: LogSource, wanted: Filter, note: Callable[[str], object] = lambda _text: None
) -> Iterator[Selected]:
    """The lines to show, in order of time; new lines of the nodes are recorded first. `note` receives the reason if
    they cannot be written."""
    return stored_lines(source.record.as_of(collect_new(source, note)), wanted)


def collect_new(source: LogSource, note: Callable[[str], object]) -> Ends:
    """Record new lines of the nodes; where the recorded lines end then."""
    collected = collect_logs((*source.earlier, *source.containers), source.record)
    for problem in dict.fromkeys(str(one.error) for one in collected if isinstance(one.error, UnkeptError)):
        note(problem)
    return source.record.ends()


def stored_lines(record: RunStore, wanted: Filter) -> Iterator[Selected]:
    """The lines to show, in order of time."""
    if wanted.tail is not None:
        names = [name for name in record.names if wanted.nodes is None or name in wanted.nodes]
        last = [one for name in names for one in _newest(record, name, wanted, wanted.tail)]
        yield from sorted(last, key=lambda one: (one[0].time, one[0].node_rank))
        return
    selection = Selection(wanted)
    passes = wanted.may_show if wanted.context or wanted.level is not LineLevel.INFO else wanted.passes
    needles = wanted.needles
    for line in record.lines(wanted.nodes, since=wanted.since, until=wanted.until, needles=needles, passes=passes):
        yield from selection.hear(line)


def _newest(record: RunStore, node: str, wanted: Filter, number: int) -> list[Selected]:
    """The last `number` lines of one node that are wanted, with their context, read newest first."""
    found: list[Selected] = []
    context, matches, beyond = _Context(wanted.context), 0, 0
    lines = record.newest(node, since=wanted.since, until=wanted.until, needles=wanted.needles)
    for line, level in _with_level(filter(wanted.may_show, lines), wanted) if number else ():
        is_match = level.reaches(wanted.level) and wanted.passes(line)
        if matches >= number:
            if is_match or beyond >= wanted.context:
                break
            beyond += not line.text.startswith(EVENT_MARK)
        found += context.hear(line, is_match)
        matches += is_match and wanted.counts(line)
    return found[::-1]


def _with_level(lines: Iterable[RunLine], wanted: Filter) -> Iterator[tuple[RunLine, LineLevel]]:
    if wanted.level is LineLevel.INFO:
        return ((line, LineLevel.INFO) for line in lines)
    return levels_newest_first(lines)


def run_line(container: RunningContainer, line: LogLine, veil: Veil) -> RunLine:
    """A container's line with node and rank, secrets removed."""
    rank, text = split_rank(line.text)
    return RunLine(
        time=line.time, node=container.node.name, node_rank=container.node_rank, rank=rank, text=veil.hide(text)
    )


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
                record.note_checkpoint(entry, container.id)  # first: a line that is stored is not collected again
                log.add(entry)
                number += 1
        if log.problem:
            raise UnkeptError(log.problem)
        return number

    return fan_out(containers, bring)


def note_checkpoints(containers: Sequence[RunningContainer], record: RunRecord) -> None:
    """Record the checkpoints that these containers reported, although their lines may have been collected before. Those
    that do not answer are left out."""

    def note(container: RunningContainer) -> None:
        for line in container.node.engine.logs(container.id):
            record.note_checkpoint(run_line(container, line, record.veil), container.id)

    fan_out(containers, note)
