"""Merged logs: `[2 gamma] text`, padded and coloured by node_rank."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.events import kind_of
from orchestrator.checks.hang import timestamp
from orchestrator.render.consequences import Consequences
from orchestrator.render.console import colour_of, stdout, takes_colour, write_plain
from orchestrator.render.printable import printable
from orchestrator.render.times import stamp
from orchestrator.specs.past_run import SearchResult
from orchestrator.specs.run_events import RunLine

if TYPE_CHECKING:
    from rich.text import Text

HELD_S, MOST_HELD = 1.0, 2000
"""How long a line is held for those of other nodes, by the lines' own times, and how many lines at most."""


def log_line(said: RunLine, *, width: int, several_ranks: bool = False) -> Text:
    """One line; `width` is that of the longest node name. The rank is shown where nodes have several."""
    from rich.text import Text

    return Text.assemble((_writer(said, width, several_ranks), colour_of(said.node_rank)), " ", printable(said.text))


def _writer(said: RunLine, width: int, several_ranks: bool) -> str:
    rank = "" if not several_ranks else f" r{said.rank}" if said.rank is not None else "   "
    return f"[{said.node_rank} {said.node:<{width}}{rank}]"


def log_json(said: RunLine, *, context: bool = False) -> str:
    """One line as JSON in ASCII, safe for every terminal; an event comes parsed, under `event`. `context`: the line is
    not wanted itself."""
    extra = {"event": {"kind": kind_of(said.event), **said.event.values()}} if said.event else {}
    return json.dumps({**said.values(), **extra, **({"context": True} if context else {})})


def search_line(found: SearchResult) -> str:
    """One line that was found, with its run and time."""
    rank = f" r{found.rank}" if found.rank is not None else ""
    who = f"[{found.node_rank} {found.node}{rank}] " if found.node else ""
    return f"{found.run_id}  {stamp(found.time)}  {who}{found.text}"


def has_several_ranks(lines: Iterable[RunLine]) -> bool:
    """Whether some node has more than one rank, so that lines must tell which."""
    ranks = Counter(node for node, _ in {(said.node, said.rank) for said in lines if said.rank is not None})
    return any(number > 1 for number in ranks.values())


@dataclass
class _Shown:
    """A line, and the nodes that wrote it."""

    line: RunLine
    nodes: list[str]
    seconds: float
    context: bool


class SameLines:
    """Holds each line for a moment, so that the same line of several nodes is shown once."""

    def __init__(self) -> None:
        self._held: deque[_Shown] = deque()
        self._by_text: dict[str, list[_Shown]] = {}

    def hear(self, said: RunLine, *, context: bool) -> Iterator[_Shown]:
        seconds = timestamp(said.time)
        while self._held and (len(self._held) >= MOST_HELD or abs(seconds - self._held[0].seconds) > HELD_S):
            yield self._first()
        for shown in self._by_text.get(said.text, ()) if said.event is None else ():
            if said.node not in shown.nodes:
                shown.nodes.append(said.node)
                shown.context &= context
                return
        new = _Shown(said, [said.node], seconds, context)
        self._held.append(new)
        self._by_text.setdefault(said.text, []).append(new)

    def rest(self) -> Iterator[_Shown]:
        while self._held:
            yield self._first()

    def _first(self) -> _Shown:
        first = self._held.popleft()
        same = self._by_text[first.line.text]
        same.remove(first)
        if not same:
            del self._by_text[first.line.text]
        return first


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
    ) -> None:
        """`fold`: who has which address, where what follows from another rank's end is to be a line, and the same line
        of several nodes is to be shown once; None: all is shown."""
        self._fold = None if fold is None else Consequences(fold)
        self._same = None if fold is None else SameLines()
        self._names = names
        self._width = max(map(len, names), default=0)
        self._as_json = as_json
        self._several_ranks = several_ranks
        self._timestamps = timestamps
        self._console = stdout() if takes_colour() and not as_json else None

    def print(self, said: RunLine, *, context: bool = False) -> None:
        """`context`: the line is shown because of one beside it."""
        for line in self._fold.hear(said) if self._fold else [said]:
            self._show(line, context=context)

    def rest(self) -> None:
        """Nothing comes for now: what was held back is shown."""
        for line in self._fold.rest() if self._fold else ():
            self._show(line, context=False)
        for shown in self._same.rest() if self._same else ():
            self._write(shown.line, shown.nodes, context=shown.context)

    def _show(self, line: RunLine, *, context: bool) -> None:
        if self._same is None:
            self._write(line, [line.node], context=context)
            return
        for shown in self._same.hear(line, context=context):
            self._write(shown.line, shown.nodes, context=shown.context)

    def _write(self, said: RunLine, nodes: Sequence[str], *, context: bool) -> None:
        if self._as_json:
            write_plain(log_json(said, context=context))
            return
        if said.event is not None:  # `--json` shows events
            return
        several = f"[{self._of(nodes)}]" if len(nodes) > 1 else ""
        time = f"{printable(stamp(said.time))} " if self._timestamps else ""
        if self._console is None:
            writer = several or _writer(said, self._width, self._several_ranks)
            write_plain(f"{time}{writer} {printable(said.text)}")
            return
        from rich.text import Text

        line = log_line(said, width=self._width, several_ranks=self._several_ranks)
        if several:
            line = Text.assemble((several, "bold"), " ", printable(said.text))
        if context:
            line.stylize("dim")
        self._console.print(Text.assemble(time, line))

    def _of(self, nodes: Sequence[str]) -> str:
        """The nodes in the order of the run's, `all N nodes` where no other wrote the line."""
        if len(nodes) > 2 and set(nodes) == set(self._names):
            return f"all {len(nodes)} nodes"
        return ", ".join(sorted(nodes, key=lambda name: self._names.index(name) if name in self._names else len(nodes)))
