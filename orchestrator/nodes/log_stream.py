"""Log lines of a container: from Docker's frames or the file of a process, and resumed after the last known line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from orchestrator.nodes.interface import LogLine
from orchestrator.nodes.processes.files import POLL_S, ProcessFiles

LONGEST_LINE = 1024 * 1024
"""Maximum characters of a line; a longer one is split into several lines."""
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
    """Lines written after the line of this time, by position and not by time: a clock that is set back loses no line.
    If no line has this time, from the first later one on."""
    places = [place for place, line in enumerate(past) if line.time == since]
    return past[places[-1] + 1 :] if places else list(later(past, since))


def resumed(ask: Ask, since: str, *, follow: bool) -> Iterator[LogLine]:
    """A log from where it was left, as `after` has it. An engine's own choice by time leaves out what was written under
    a clock that was set back, so the newest lines are asked for, and all of them where the last one known is not
    among those."""
    last = since
    while True:
        past = list(ask(False, WINDOW))
        met = any(line.time == last for line in past)
        for line in after(past, last) if met or len(past) < WINDOW else later(ask(False, None), last):
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


def later(lines: Iterable[LogLine], since: str) -> Iterator[LogLine]:
    """Lines from that of this time, or the first later one, to the end, regardless of their times."""
    met = False
    for line in lines:
        if (met and line.time != since) or line.time > since:
            met = True
            yield line
        met = met or line.time == since


def read_lines(files: ProcessFiles, *, follow: bool = False) -> Iterator[LogLine]:
    """One `LogLine` per line written, pieces put together again; with `follow`, until the supervisor is gone."""
    begun: dict[str, tuple[str, str]] = {}
    for entry in _entries(files, follow=follow):
        stamp, text = begun.pop(entry["stream"], (entry["time"], ""))
        text += entry["text"]
        if not text.endswith("\n") and len(text) < LONGEST_LINE:
            begun[entry["stream"]] = (stamp, text)
        else:
            yield LogLine(time=stamp, text=text.rstrip("\r\n"))
    for stamp, text in sorted(begun.values()):
        yield LogLine(time=stamp, text=text.rstrip("\r\n"))


def read_stream(files: ProcessFiles, stream: str) -> str:
    """All that went to stdout, or to stderr, as it was written."""
    return "".join(entry["text"] for entry in _entries(files, follow=False) if entry["stream"] == stream)


def _entries(files: ProcessFiles, *, follow: bool) -> Iterator[dict[str, Any]]:
    if not files.log.exists():
        return
    with files.log.open("rb") as log:
        half = b""
        while True:
            ended = not follow or not files.is_running()  # before reading: what comes after the end is read too
            while line := log.readline():
                half += line
                if half.endswith(b"\n"):
                    yield json.loads(half)
                    half = b""
            if ended:
                return
            time.sleep(POLL_S)
