"""New lines of some containers, read from their segments as another process writes them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.specs.run_events import RunLine
from orchestrator.store.segments import SEGMENT_BYTES, Ends, Segment, ends_of, parse_line, read_some, segments_in

SETTLED_NS = 10**9
"""Age of a change of the folder from which its time is trusted: two changes within a tick of the clock have one."""


class Tail:
    """Reads on from these ends, or from those that the segments have at first."""

    def __init__(self, lines: Path, stems: Iterable[str], ends: Ends | None = None) -> None:
        self._lines, self._changed = lines, -1
        self._listed: dict[tuple[str, int], Segment] = {}
        self._look()
        stems = set(stems)
        nodes = {stem.partition("@")[0] for stem in stems}
        own = (segment for segment in self._listed.values() if segment.node in nodes)
        self._ends = ends_of(own) if ends is None else ends
        self._at = {stem: self._ends.get(stem, (1, 0)) for stem in stems}

    def add(self, stem: str) -> None:
        """Read another container of these nodes too, from its end on."""
        self._at.setdefault(stem, self._ends.get(stem, (1, 0)))

    def new(self) -> list[RunLine]:
        """Lines since the last call, in order of time."""
        found = [line for stem in self._at for line in self._of(stem)]
        return sorted(found, key=lambda line: (line.time, line.node_rank))

    def _of(self, stem: str) -> list[RunLine]:
        found = list[RunLine]()
        while content := self._read(stem):
            number, offset = self._at[stem]
            self._at[stem] = number, offset + len(content)
            found += filter(None, (parse_line(raw, stem) for raw in content.split(b"\n")[:-1]))
        return found

    def _read(self, stem: str) -> bytes:
        """Whole lines from the position on; of the next segment where this one is full."""
        number, offset = self._at[stem]
        if offset >= SEGMENT_BYTES:
            self._at[stem] = number, offset = number + 1, 0
        with suppress(OSError):
            content = read_some(self._lines / f"{stem}.{number:04}.jsonl", offset)
            return content[: content.rfind(b"\n") + 1]
        self._look()
        packed = self._listed.get((stem, number))
        return packed.content()[offset:] if packed else b""

    def _look(self) -> None:
        """List the segments again if some came or went."""
        with suppress(OSError):
            changed = self._lines.stat().st_mtime_ns
            if changed != self._changed or time.time_ns() - changed < SETTLED_NS:
                self._changed = changed
                self._listed = {(one.stem, one.number): one for one in segments_in(self._lines)}
