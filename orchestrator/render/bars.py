"""Bars of a terminal: a plot that needs nothing but letters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import fsum

from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉"
WIDTH = 40


def bar(value: float, most: float, *, width: int = WIDTH, style: str = "") -> Text:
    """Draw a bar as long as `value` is of `most`, to an eighth of a letter."""
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


def sparkline(
    values: Sequence[float], width: int, *, scale: tuple[float, float] | None = None, ascii_only: bool = False
) -> str:
    """The course of values in one line of at most `width` letters, means of equal parts. `scale`: values of the lowest
    and the highest letter (default: the least and the most)."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    letters = "_.-~^" if ascii_only else "▁▂▃▄▅▆▇█"
    width = min(width, len(finite))
    parts = [finite[len(finite) * n // width : len(finite) * (n + 1) // width] for n in range(width)]
    means = [fsum(part) / len(part) for part in parts]
    least, most = scale or (min(means), max(means))
    if not math.isfinite(most - least) or most == least:
        return letters[0] * width
    return "".join(
        letters[min(len(letters) - 1, int(len(letters) * (mean - least) / (most - least)))] for mean in means
    )
