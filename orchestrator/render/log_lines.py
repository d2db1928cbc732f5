"""Merged logs: `[2 gamma] text`, padded and coloured by node_rank."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from contract.event_lines import kind_of
from contract.events import LineRedrawn
from contract.log_lines import without_rank
from orchestrator.checks.hang import timestamp
from orchestrator.render.consequences import Consequences
from orchestrator.render.console import colour_of, stdout, takes_colour, write_plain
from orchestrator.render.printable import printable
from orchestrator.render.times import stamp
from orchestrator.specs.past_run import SearchResult
from orchestrator.specs.run_events import RunLine

if TYPE_CHECKING:
    from rich.text import Text

_HEAD_OF_TORCH = re.compile(r"^(\[?[WIEF])\d{4} [\d:.]{8,18}\s{1,4}(?:\d{1,9} )?")
_OWN_FOLDER = re.compile(r'(^  File "|^)/\S{1,300}/runs/[\w.-]{1,80}/code/')
"""Folder of the code before a place in it: with `engine: process`, each node has another."""
HELD_S, MOST_HELD = 1.0, 2000
"""Seconds for which a line waits for those of other nodes, by the lines' own times, and lines that wait at most."""


def shared_line(shown: SharedLine, names: Sequence[str], *, width: int, several_ranks: bool = False) -> Text:
    """One line, with all of its writers where there are several."""
    from rich.text import Text

    return Text.assemble(_head(shown, names, width, several_ranks), " ", printable(shown.text))


def _head(shown: SharedLine, names: Sequence[str], width: int, several_ranks: bool) -> tuple[str, str]:
    """The writers of a line, and their style."""
    if shown.is_shared:
        return shown.label(names), "bold"
    return _writer(shown.line, width, several_ranks), colour_of(shown.line.node_rank)


def log_line(entry: RunLine, *, width: int, several_ranks: bool = False) -> Text:
    """One line; `width` is that of the longest node name. The rank is shown where nodes have several."""
    from rich.text import Text

    return Text.assemble((_writer(entry, width, several_ranks), colour_of(entry.node_rank)), " ", printable(entry.text))


def _writer(entry: RunLine, width: int, several_ranks: bool) -> str:
    rank = "" if not several_ranks else f" r{entry.rank}" if entry.rank is not None else "   "
    return f"[{entry.node_rank} {entry.node:<{width}}{rank}]"


def log_json(entry: RunLine, *, context: bool = False) -> str:
    """One line as JSON in ASCII, safe for every terminal; an event comes parsed, under `event`. `context`: the line is
    not wanted itself."""
    extra = {"event": {"kind": kind_of(entry.event), **entry.event.values()}} if entry.event else {}
    return json.dumps({**entry.values(), **extra, **({"context": True} if context else {})})


def search_line(found: SearchResult) -> str:
    """One line that was found, with its run and time."""
    rank = f" r{found.rank}" if found.rank is not None else ""
    who = f"[{found.node_rank} {found.node}{rank}] " if found.node else ""
    return f"{found.run_id}  {stamp(found.time)}  {who}{found.text}"


def has_several_ranks(lines: Iterable[RunLine]) -> bool:
    """Return whether some node has more than one rank, so that lines must tell which."""
    ranks = Counter(node for node, _ in {(entry.node, entry.rank) for entry in lines if entry.rank is not None})
    return any(number > 1 for number in ranks.values())


@dataclass
class SharedLine:
    """A line, and its writers."""

    line: RunLine
    writers: list[tuple[str, int | None]]
    """Node and rank of each that wrote it."""
    seconds: float
    context: bool

    @property
    def is_shared(self) -> bool:
        return len(self.writers) > 1

    def label(self, names: Sequence[str]) -> str:
        """`[0-2]`, the ranks that wrote it; the nodes, in the order of the run's, where it is of their agents."""
        ranks = sorted({rank for _, rank in self.writers if rank is not None})
        if len(ranks) == len(self.writers):
            return f"[{_ranges(ranks)}]"
        nodes = {node for node, _ in self.writers}
        if len(nodes) > 2 and nodes == set(names):
            return f"[all {len(nodes)} nodes]"
        return f"[{', '.join(sorted(nodes, key=lambda node: names.index(node) if node in names else len(names)))}]"

    @property
    def text(self) -> str:
        """The line without the prefix that names one of its ranks, where several wrote it."""
        return own_place(without_rank(self.line.text)) if self.is_shared else self.line.text


def _ranges(numbers: Sequence[int]) -> str:
    """`0-2,5` for ascending numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


class SameLines:
    """Holds each line for a moment, so that the same line of several ranks is shown once."""

    def __init__(self) -> None:
        self._held: deque[SharedLine] = deque()
        self._by_text: dict[str, list[SharedLine]] = {}

    def hear(self, entry: RunLine, *, context: bool) -> Iterator[SharedLine]:
        seconds = timestamp(entry.time)
        while self._held and (len(self._held) >= MOST_HELD or abs(seconds - self._held[0].seconds) > HELD_S):
            yield self._first()
        writer, text = (entry.node, entry.rank), _compared(entry.text)
        for shown in self._by_text.get(text, ()) if entry.event is None else ():
            if writer not in shown.writers:
                shown.writers.append(writer)
                shown.context &= context
                return
        new = SharedLine(entry, [writer], seconds, context)
        self._held.append(new)
        self._by_text.setdefault(text, []).append(new)

    def rest(self) -> Iterator[SharedLine]:
        while self._held:
            yield self._first()

    def _first(self) -> SharedLine:
        first = self._held.popleft()
        text = _compared(first.line.text)
        same = self._by_text[text]
        same.remove(first)
        if not same:
            del self._by_text[text]
        return first


def own_place(text: str) -> str:
    """A place of a traceback, relative to the folder of the code."""
    return _OWN_FOLDER.sub(r"\1", text)


def _compared(text: str) -> str:
    """A line without what differs between ranks that report the same: torch's prefix of an exception, and the time and
    the process in the head of a line of its log."""
    return _HEAD_OF_TORCH.sub(r"\1", own_place(without_rank(text)))


class LogPrinter:
    """Lines to stdout: for people without events, or all of them as JSON."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        as_json: bool,
        several_ranks: bool = False,
        timestamps: bool = False,
        fold: Mapping[str, str] | None = None,
        raw: bool = False,
    ) -> None:
        """`fold`: who has which address, where what follows from another rank's end is to be a line, and the same line
        of several ranks is to be shown once; None: all is shown. `raw`: every state of a progress bar, too."""
        self._raw = raw
        self._redrawn: dict[tuple[str, int | None], str] = {}
        """The newest state of a bar of each rank: written as a line as well, it is shown once."""
        self._fold = None if fold is None else Consequences(fold)
        self._same = None if fold is None else SameLines()
        self._names = names
        self._width = max(map(len, names), default=0)
        self._as_json = as_json
        self._several_ranks = several_ranks
        self._timestamps = timestamps
        self._console = stdout() if takes_colour() and not as_json else None

    def print(self, entry: RunLine, *, context: bool = False) -> None:
        """`context`: the line is shown because of one beside it."""
        for line in self._fold.hear(entry) if self._fold else [entry]:
            self._show(line, context=context)

    def rest(self) -> None:
        """Nothing comes for now: what was held back is shown."""
        for line in self._fold.rest() if self._fold else ():
            self._show(line, context=False)
        for shown in self._same.rest() if self._same else ():
            self._write(shown)

    def _show(self, line: RunLine, *, context: bool) -> None:
        if self._same is None:
            self._write(SharedLine(line, [(line.node, line.rank)], 0.0, context))
            return
        for shown in self._same.hear(line, context=context):
            self._write(shown)

    def _write(self, shown: SharedLine) -> None:
        entry = shown.line
        if self._as_json:
            write_plain(log_json(entry, context=shown.context))
            return
        if self._raw and (state := self._redraw(entry)):
            shown = replace(shown, line=replace(entry, text=state))
        elif entry.event is not None:  # `--json` shows events
            return
        elif self._redrawn.get((entry.node, entry.rank)) == entry.text:
            del self._redrawn[entry.node, entry.rank]  # the last state of a bar, which was shown when it was drawn
            return
        time = f"{printable(stamp(entry.time))} " if self._timestamps else ""
        head, text = _head(shown, self._names, self._width, self._several_ranks), printable(shown.text)
        if self._console is None:
            write_plain(f"{time}{head[0]} {text}")
            return
        from rich.text import Text

        line = Text.assemble(head, " ", text)
        if shown.context:
            line.stylize("dim")
        self._console.print(Text.assemble(time, line))

    def _redraw(self, entry: RunLine) -> str:
        """The state of a bar that the line holds; empty for any other line."""
        if not isinstance(entry.event, LineRedrawn):
            return ""
        self._redrawn[entry.node, entry.rank] = entry.event.text or ""
        return entry.event.text or ""
