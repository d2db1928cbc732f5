"""Frames of Docker's log stream into lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.nodes.seam import LogLine


def rejoin_lines(frames: Iterable[bytes]) -> Iterator[LogLine]:
    """One `LogLine` per line written.

    Each frame is `TIME TEXT`; a line longer than 16 KiB comes as several frames, of which only the last ends with a
    newline, and each with a time of its own.
    """
    time, pieces = "", list[str]()
    for frame in frames:
        stamp, _, text = frame.decode(errors="replace").partition(" ")
        time = time or stamp
        pieces.append(text)
        if text.endswith("\n") or not text:
            yield LogLine(time=time, text="".join(pieces).rstrip("\r\n"))
            time, pieces = "", []
    if pieces:
        yield LogLine(time=time, text="".join(pieces).rstrip("\r\n"))
