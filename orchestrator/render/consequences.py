"""What ranks write that only lost another, folded to a line: of one death every rank would print a traceback.

The record keeps all of it, for `orch why`, `--json` and who asks for one node or rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.specs.event import parse_event
from orchestrator.specs.happening import Said
from orchestrator.specs.plan import Plan

MOST_LINES = 400
"""Of a traceback: one that goes on longer is shown as it comes."""
_LOST = re.compile(
    r"(?P<how>Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|recvValue\w* failed"
    r"|remote process exited|ncclRemoteError|Connection was likely closed)"
)
_ADDRESS = re.compile(r"\[(?:::ffff:)?(?P<address>\d+\.\d+\.\d+\.\d+)\]:\d+|remote=\[(?:::ffff:)?(?P<other>[\d.]+)\]")
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before the lines of an uncaught exception."""
_BEGIN = "Traceback (most recent call last):"
_CPP = re.compile(r"^(?:frame #\d+: |Exception raised from |<omitting python frames>)|^\s*$")
_AGENTS_OWN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
_RULER = re.compile(r"^={8,}$")


def peers(plan: Plan | None) -> dict[str, str]:
    """Nodes by address."""
    return {part.address: part.node for part in plan.nodes} if plan else {}


@dataclass
class _Writer:
    """One rank, or torchrun's agent on a node."""

    held: list[Said] = field(default_factory=list)
    """A traceback that has not come to its message."""
    in_summary: int = 0
    """Rulers of torchrun's summary that are still to come, where it is not shown."""
    after: bool = False
    """Whether the C++ stack of a lost connection may follow."""
    last: str = ""


class Consequences:
    """Hears every line of a run and gives back those to show."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: who has which address."""
        self._names = names
        self._writers: dict[tuple[str, int | None], _Writer] = {}
        self._lost_another = set[str]()
        """Nodes of which a rank has: torchrun's summary there says no more."""

    def hear(self, said: Said) -> Sequence[Said]:
        writer = self._writers.setdefault((said.node, said.rank), _Writer())
        text = _PREFIX.sub("", said.text)
        if text.startswith("@orch "):
            event = parse_event(text, said.rank)
            if event and event.kind == "epoch":
                self._lost_another.discard(said.node)
            return [said]
        if writer.in_summary:
            writer.in_summary -= bool(_RULER.match(text))
            return []
        if writer.held:
            return self._in_traceback(writer, said, text)
        if text.startswith(_BEGIN):
            writer.held.append(said)
            return []
        if writer.after and _CPP.match(text):
            return []
        writer.after, writer.last = bool(_LOST.search(text)), text
        return [said]

    def rest(self) -> Iterator[Said]:
        """What is held and may never come to an end, as it is."""
        for writer in self._writers.values():
            held, writer.held = writer.held, []
            yield from held

    def _in_traceback(self, writer: _Writer, said: Said, text: str) -> Sequence[Said]:
        writer.held.append(said)
        if text.startswith(" ") and len(writer.held) < MOST_LINES:
            return []
        held, writer.held = writer.held, []
        if text == _AGENTS_OWN and said.rank is None and said.node in self._lost_another:
            writer.in_summary = 2
            return []
        if not (lost := _LOST.search(text)) or text.startswith(" "):
            return held
        writer.after = True
        self._lost_another.add(said.node)
        if text in writer.last:  # the trainer has said so in a line before
            return []
        return [replace(said, text=f"lost {self._who(text)}: {lost['how']}")]

    def _who(self, text: str) -> str:
        found = _ADDRESS.search(text)
        address = (found["address"] or found["other"]) if found else ""
        return self._names.get(address, address) or "another rank"
