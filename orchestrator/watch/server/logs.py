"""Log lines and search results for the page, newest first, within a time that does not depend on the size of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from contract.log_lines import EVENT_MARK
from orchestrator.checks.line_levels import LineLevel, levels_newest_first, near_level
from orchestrator.render.printable import printable
from orchestrator.specs.past_run import SearchResult
from orchestrator.specs.run_events import RunLine
from orchestrator.store.read_lines import WantedLines
from orchestrator.store.run_record import RunRecord, all_records
from orchestrator.store.search import Needles, words
from orchestrator.store.search_runs import search_runs

BUDGET_S = 1.0
"""Time to look for lines; afterwards the page offers to look further back."""
MOST_LINES, LONGEST = 500, 2000
"""Lines of an answer, and characters of a line."""


class _TimeIsUp(Exception):
    """The time to look for lines is over."""


class _Budget:
    """Ends a search between two segments after some time, and keeps how far back in time it came."""

    def __init__(self, clock: Callable[[], float], until: str = "") -> None:
        """`until`: end of what was searched before; those around it do not count, so that each search gets further."""
        self._clock, self._deadline, self._until = clock, clock() + BUDGET_S, until
        self.reached = ""

    def look(self, last: str) -> None:
        """Look at the clock before a segment whose latest line has this time. _TimeIsUp: it is too late to read it."""
        if (not self._until or last < self._until) and self._clock() > self._deadline:
            self.reached = last
            raise _TimeIsUp


@dataclass(frozen=True, kw_only=True)
class LinesWanted:
    """Conditions on the lines of a run, which hold together; empty: no condition."""

    node: str = ""
    rank: int | None = None
    level: LineLevel = LineLevel.INFO
    words: str = ""
    """Each word, in any case and order, as for `orch search`."""
    until: str = ""
    """Time of the newest lines to return, as an answer has it."""
    number: int = 200

    def passes(self, line: RunLine) -> bool:
        text = line.text.lower()
        return (self.rank is None or line.rank == self.rank) and all(
            word in text for word in self.words.lower().split()
        )


def log_page(record: RunRecord, wanted: LinesWanted, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """The newest lines that are wanted, in ascending order.

    `reached`: lines before this time were not looked at; empty: all were. Events, which people do not see, are left
    out.
    """
    budget, found, more = _Budget(clock, wanted.until), list[tuple[RunLine, LineLevel]](), False
    with suppress(_TimeIsUp):
        for line, level in _lines(record, wanted, budget):
            if len(found) >= min(wanted.number, MOST_LINES):
                more = True
                break
            found.append((line, level))
    return {
        "run_id": record.run_id,
        "nodes": list(record.names),
        "lines": [{**_data(line), "level": level.value} for line, level in reversed(found)],
        "reached": found[-1][0].time if more else budget.reached,
    }


def _lines(record: RunRecord, wanted: LinesWanted, budget: _Budget) -> Iterator[tuple[RunLine, LineLevel]]:
    def passes(line: RunLine) -> bool:
        return not line.text.startswith(EVENT_MARK)

    needles = words(wanted.words.split())
    if wanted.level is not LineLevel.INFO:
        needles = Needles(near=near_level(wanted.level))
    passing = WantedLines(until=wanted.until, needles=needles, passes=passes, at_segment=budget.look)
    lines = record.lines(wanted.node or None, passing, newest_first=True)
    for line, level in levels_newest_first(lines):
        if level.reaches(wanted.level) and wanted.passes(line):
            yield line, level


def _data(line: RunLine | SearchResult) -> dict[str, Any]:
    return {
        "time": printable(line.time),
        "node": printable(line.node),
        "rank": line.rank,
        "text": printable(line.text[:LONGEST]),
    }


def search_page(text: str, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Lines of all runs on record that contain all the words, newest first. `complete`: whether all were searched."""
    budget, found = _Budget(clock), list[dict[str, Any]]()
    with suppress(_TimeIsUp):
        for result in islice(search_runs(all_records(), text.split(), at_segment=budget.look), MOST_LINES):
            found.append({"run_id": result.run_id, **_data(result)})
    return {"results": found, "complete": not budget.reached and len(found) < MOST_LINES}
