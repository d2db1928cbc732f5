"""Frames of Docker's log stream into lines, and the way back into a log that was read before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from orchestrator.nodes.interface import LogLine

LONGEST_LINE = 1024 * 1024
"""Characters of a line; what goes on longer without a newline comes as several lines."""
WINDOW = 1000
"""Newest lines among which the last one known is looked for first."""

Ask = Callable[[bool, "int | None"], Iterator[LogLine]]
"""Gives a log's lines: whether to follow it, and how many of the newest (None: all)."""


def rejoin_lines(frames: Iterable[bytes]) -> Iterator[LogLine]:
    """One `LogLine` per line written.

    Each frame is `TIME TEXT`; a line longer than 16 KiB comes as several frames, of which only the last ends with a
    newline, and each with a time of its own.
    """
    time, pieces, size = "", list[str](), 0
    for frame in frames:
        stamp, _, text = frame.decode(errors="replace").partition(" ")
        time = time or stamp
        pieces.append(text)
        size += len(text)
        if text.endswith("\n") or not text or size >= LONGEST_LINE:
            yield LogLine(time=time, text="".join(pieces).rstrip("\r\n"))
            time, pieces, size = "", [], 0
    if pieces:
        yield LogLine(time=time, text="".join(pieces).rstrip("\r\n"))


def after(past: Sequence[LogLine], since: str) -> Sequence[LogLine]:
    """What was written after the line of this time, by place and not by time: a clock that is set back loses no line.
    Where no line has this time, from the first later one on."""
    for index in range(len(past) - 1, -1, -1):
        if past[index].time == since:
            return past[index + 1 :]
    return list(_later(past, since))


def resumed(ask: Ask, since: str, *, follow: bool) -> Iterator[LogLine]:
    """A log from where it was left, as `after` has it. An engine's own choice by time leaves out what was written under
    a clock that was set back, so the newest lines are asked for, and all of them where the last one known is not
    among those."""
    last = since
    while True:
        past = list(ask(False, WINDOW))
        met = any(line.time == last for line in past)
        for line in after(past, last) if met or len(past) < WINDOW else _later(ask(False, None), last):
            met, last = True, line.time
            yield line
        if not follow:
            return
        in_log, met, seen = met, False, 0
        with closing(ask(True, WINDOW)) as lines:  # type: ignore[type-var]  # a generator can be closed
            for line in lines:
                if met or (line.time > last and not in_log):
                    met, last = True, line.time
                    yield line
                    continue
                met, seen = line.time == last, seen + 1
                if not met and seen >= WINDOW:
                    break  # more lines than that were written since the log was asked for
            else:
                return


def _later(lines: Iterable[LogLine], since: str) -> Iterator[LogLine]:
    """From the line of this time, or the first later one, to the end, whatever their times are then."""
    met = False
    for line in lines:
        if (met and line.time != since) or line.time > since:
            met = True
            yield line
        met = met or line.time == since
