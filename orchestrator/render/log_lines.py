"""Merged logs: `[2 gamma] text`, padded and coloured by node_rank."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from contract.events import kind_of
from orchestrator.render.consequences import Consequences
from orchestrator.render.console import colour_of, stdout
from orchestrator.render.printable import printable
from orchestrator.render.times import stamp
from orchestrator.specs.run_events import RunLine


def log_line(said: RunLine, *, width: int, several_ranks: bool = False) -> Text:
    """One line; `width` is that of the longest node name. The rank is shown where nodes have several."""
    who = f"{said.node_rank} {said.node:<{width}}"
    if several_ranks:
        who += f" r{said.rank}" if said.rank is not None else "   "
    return Text.assemble((f"[{who}]", colour_of(said.node_rank)), " ", printable(said.text))


def log_json(said: RunLine) -> str:
    """One line as JSON in ASCII, safe for every terminal; an event comes parsed, under `event`."""
    extra = {"event": {"kind": kind_of(said.event), **said.event.values()}} if said.event else {}
    return json.dumps({**said.values(), **extra})


def has_several_ranks(lines: Iterable[RunLine]) -> bool:
    """Whether some node has more than one rank, so that lines must tell which."""
    ranks = Counter(node for node, _ in {(said.node, said.rank) for said in lines if said.rank is not None})
    return any(number > 1 for number in ranks.values())


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
        """`fold`: who has which address, where what follows from another rank's end is to be a line; None: all is
        shown."""
        self._fold = None if fold is None else Consequences(fold)
        self._width = max(map(len, names), default=0)
        self._as_json = as_json
        self._several_ranks = several_ranks
        self._timestamps = timestamps
        self._console = stdout()

    def print(self, said: RunLine) -> None:
        for shown in self._fold.hear(said) if self._fold else [said]:
            self._print(shown)

    def rest(self) -> None:
        """Nothing comes for now: what was held back is shown."""
        for shown in self._fold.rest() if self._fold else ():
            self._print(shown)

    def _print(self, said: RunLine) -> None:
        if self._as_json:
            self._console.out(log_json(said), highlight=False)
        elif said.event is None:  # `--json` shows events
            line = log_line(said, width=self._width, several_ranks=self._several_ranks)
            self._console.print(Text.assemble(printable(stamp(said.time)), " ", line) if self._timestamps else line)
