"""States of progress bars in a stream: few of them become lines, the others events.

A bar redraws itself with a carriage return, or prints each state on a line where its output is no terminal: ten states
a second would hide every other line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.agent.output_reader import KEY_CHARS, LONGEST, OutputFigures, searched

BARS = 8
"""Bars of a stream whose states are compared; with one more, the oldest has ended."""
EVERY_S = 30.0
"""A line per bar within this time, whatever it has reached."""
LEAST_S = 3.0
"""Time between two lines of a bar that runs fast."""
SHARE = 10
"""Percent between two lines of a bar."""
TRACEBACK = "Traceback (most recent call last)"
_PERCENT = re.compile(r"(\d{1,3})(?:\.\d{1,4})?\s?%")
_CURSOR_UP = "\x1b[A"
"""Written after a bar that stands below others: it is drawn again."""
_OF_POSTFIX = ("]", ",")


@dataclass(frozen=True, kw_only=True)
class StreamPiece:
    """A part of a stream: a line, or a state of a bar that is none."""

    text: str
    redrawn: bool = False
    bar: str = ""
    """Text before the bar, of a state."""


@dataclass
class _Bar:
    text: str
    percent: int
    line_at: float
    """Time of its newest line, in seconds; that of its first state before."""
    line_percent: int = 0
    is_line: bool = False
    """True if its newest state was a line."""
    redraws: bool = False
    """True if its newest state ended with a carriage return."""


class Redraws:
    """Separates the states of bars from the lines of one stream."""

    def __init__(self) -> None:
        self._bars: dict[str, _Bar] = {}
        self._after_state = False

    def take(self, piece: str, figures: OutputFigures, now: float) -> Iterator[StreamPiece]:
        """`piece` ends with a newline, a carriage return, both, or not at all: at the end of the stream, or where it
        is too long. `figures` are those of its text."""
        text = piece.rstrip("\r\n")
        redraws = piece.endswith("\r")
        if not text or (not text.isprintable() and not searched(text).strip()):
            if not (redraws or text or self._after_state):
                yield StreamPiece(text="")
            return
        bar, rest = self._divided(text, figures, redraws=redraws)
        self._after_state = not rest
        if bar:
            ends = not (redraws or rest) and not text.endswith(_CURSOR_UP)
            yield from self._state(bar, figures, now, redraws=redraws, ends=ends)
        if rest:
            if not bar:
                self._bars.pop(_before(rest), None)  # the last state of what redraws itself, with its newline
            yield StreamPiece(text=rest)

    def rest(self) -> Iterator[StreamPiece]:
        """The last state of each bar, at the end of the stream."""
        for bar in self._bars.values():
            yield from _last(bar)
        self._bars.clear()

    @staticmethod
    def _divided(text: str, figures: OutputFigures, *, redraws: bool) -> tuple[str, str]:
        """A state of a bar and a line after it; either may be empty. An exception begins on the line of the bar that
        it interrupts."""
        if redraws:
            return text, ""
        if not figures.bar or len(text) > LONGEST:
            return "", text
        if figures.end:
            plain = searched(text)
            after = plain[figures.end :].strip()
            return (plain[: figures.end], after) if after and not after.startswith(_OF_POSTFIX) else (text, "")
        return ("", text) if TRACEBACK in text else (text, "")

    def _state(
        self, text: str, figures: OutputFigures, now: float, *, redraws: bool, ends: bool
    ) -> Iterator[StreamPiece]:
        percent, key = _percent(text, figures), figures.before if figures.bar else _before(text)
        known = self._bars.pop(key, None)
        if known and percent < known.percent:  # it begins again
            yield from _last(known)
            known = _Bar(text, percent, line_at=known.line_at)
        bar = known or _Bar(text, percent, line_at=now)
        over = ends and bar.redraws
        due = now - bar.line_at >= EVERY_S
        due |= percent // SHARE > bar.line_percent // SHARE and (known is None or now - bar.line_at >= LEAST_S)
        bar.text, bar.percent, bar.is_line, bar.redraws = text, percent, due or over, redraws
        if bar.is_line:
            bar.line_at, bar.line_percent = now, percent
        yield StreamPiece(text=text, redrawn=not bar.is_line, bar=key)
        if not over:
            self._bars[key] = bar  # the newest last
        if len(self._bars) > BARS:
            yield from _last(self._bars.pop(next(iter(self._bars))))


def _last(bar: _Bar) -> Iterator[StreamPiece]:
    if not bar.is_line:
        yield StreamPiece(text=bar.text)


def _percent(text: str, figures: OutputFigures) -> int:
    if figures.step is not None and figures.steps:
        return min(100, 100 * figures.step // figures.steps)
    found = _PERCENT.search(text[:LONGEST])
    return min(100, int(found[1])) if found else 0


def _before(text: str) -> str:
    """Text before the first number, which is the same for all states of what a program redraws."""
    return re.split(r"\d", searched(text[:LONGEST]), maxsplit=1)[0].strip()[:KEY_CHARS]
