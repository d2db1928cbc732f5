"""Bars of a terminal: a plot that needs nothing but letters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉"
WIDTH = 40


def bar(value: float, most: float, *, width: int = WIDTH, style: str = "") -> Text:
    """As long as `value` is of `most`, to an eighth of a letter."""
    share = min(1.0, max(0.0, value) / most) if most > 0 else 0.0
    eighths = round(8 * width * share)
    if value > 0:
        eighths = max(1, eighths)
    return Text("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip(), style=style)


def stacked(parts: Sequence[tuple[float, str, str]], most: float, *, width: int = WIDTH) -> Text:
    """Parts one after another, each (value, letter, style), in whole letters: as long as a bar of their sum."""
    text, total, drawn = Text(), 0.0, 0
    for value, letter, style in parts:
        total += value
        end = round(width * min(1.0, total / most)) if most > 0 else 0
        text.append(letter * (end - drawn), style)
        drawn = end
    return text
