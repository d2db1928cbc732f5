"""Lines of a record that a person asks for: of these nodes, of this time, with these words; and those around them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contract.log_lines import EVENT_MARK
from orchestrator.checks.line_levels import LevelReader, LineLevel, levels_newest_first, near_level
from orchestrator.specs.run_events import RunLine
from orchestrator.store.read_lines import WantedLines
from orchestrator.store.run_store import RunStore
from orchestrator.store.search import ANY_LINE, Needles, words

_SIMPLE = re.compile(r"[\w\s:,/=^$-]*(?:\.\*?[\w\s:,/=^$-]*)*", re.ASCII)
"""A regular expression of which each word must be in the text: nothing is optional, and there are no alternatives."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Selection of the lines to show."""

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
    """True if `tail` counts lines with events, which only programs see."""
    context: int = 0
    """Lines of the same node to show before and after each one that `grep` and `level` want."""

    def passes(self, line: RunLine) -> bool:
        """Return whether this line is wanted; `tail`, `level` and `context` do not count here."""
        return self.may_show(line) and bool(self.grep.search(line.text))

    def may_show(self, line: RunLine) -> bool:
        """Return whether this line is wanted, or may be shown as context of one that is."""
        return (
            (self.nodes is None or line.node in self.nodes)
            and (self.rank is None or line.rank == self.rank)
            and line.time > self.since
            and (not self.until or line.time <= self.until)
        )

    def counts(self, line: RunLine) -> bool:
        """Return whether a wanted line is one of the `tail`."""
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


def stored_lines(record: RunStore, wanted: Filter) -> Iterator[Selected]:
    """The lines to show, in order of time."""
    if wanted.tail is not None:
        names = [name for name in record.names if wanted.nodes is None or name in wanted.nodes]
        last = [one for name in names for one in _newest(record, name, wanted, wanted.tail)]
        yield from sorted(last, key=lambda one: (one[0].time, one[0].node_rank))
        return
    selection = Selection(wanted)
    passes = wanted.may_show if wanted.context or wanted.level is not LineLevel.INFO else wanted.passes
    stored = WantedLines(since=wanted.since, until=wanted.until, needles=wanted.needles, passes=passes)
    for line in record.lines(wanted.nodes, stored):
        yield from selection.hear(line)


def _newest(record: RunStore, node: str, wanted: Filter, number: int) -> list[Selected]:
    """The last `number` lines of one node that are wanted, with their context, read newest first."""
    found: list[Selected] = []
    context, matches, beyond = _Context(wanted.context), 0, 0
    stored = WantedLines(since=wanted.since, until=wanted.until, needles=wanted.needles)
    lines = record.newest(node, wanted=stored)
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
