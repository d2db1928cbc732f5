"""Curves of a run, with a bounded number of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_POINTS = 512
"""Points of a curve: a chart is a few hundred pixels wide."""
Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A figure of a run over its steps or over time.

    It keeps the first and the last point, and of each stretch in between the lowest and the highest.
    """

    name: str
    group: str
    """`train`, `validation` or `resources`."""
    unit: str = ""
    node: str = ""
    """Empty for a figure of the whole run."""
    x: tuple[float, ...]
    """Steps; of `resources`, seconds since the begin of the record. Ascending."""
    y: tuple[float, ...]
    recorded: int
    """Points on record."""
    total: float
    """Sum of `y` over all points on record."""

    @property
    def mean(self) -> float:
        """Mean over all points on record."""
        return self.total / max(1, self.recorded)

    @property
    def last(self) -> float:
        return self.y[-1]

    def thinned(self, most: int) -> tuple[Pair, ...]:
        """Select at most so many points (and at least 4), with the extremes of each stretch."""
        points = tuple(zip(self.x, self.y, strict=True))
        if len(points) <= most:
            return points
        stretches = max(1, most // 2 - 1)
        size = -(-(len(points) - 2) // stretches)
        inner = points[1:-1]
        chosen = [point for start in range(0, len(inner), size) for point in _extremes(inner[start : start + size])]
        return (points[0], *chosen, points[-1])


def _extremes(points: Sequence[Pair]) -> list[Pair]:
    """The lowest and the highest point in order of x; one where they are the same."""
    return sorted({min(points, key=_height), max(points, key=_height)})


class _Stretch:
    """Neighbouring points, of which at most four are kept."""

    __slots__ = ("count", "first", "high", "last", "low", "total")

    def __init__(self, point: Pair) -> None:
        self.first = self.low = self.high = self.last = point
        self.count, self.total = 1, point[1]

    @property
    def points(self) -> list[Pair]:
        return sorted({self.first, self.low, self.high, self.last})

    def add(self, point: Pair) -> None:
        """Add a point behind the last one."""
        self.last = point
        if point[1] < self.low[1]:
            self.low = point
        elif point[1] > self.high[1]:
            self.high = point
        self.count += 1
        self.total += point[1]

    def append(self, other: _Stretch) -> None:
        """Add the stretch behind this one."""
        self.last = other.last
        self.low = min(self.low, other.low, key=_height)
        self.high = max(self.high, other.high, key=_height)
        self.count += other.count
        self.total += other.total

    def until(self, x: float) -> _Stretch | None:
        """The part before `x`; how many points that is, is estimated from those kept. None: there are none."""
        points = self.points
        chosen = [point for point in points if point[0] < x]
        if not chosen:
            return None
        rest = _Stretch(chosen[0])
        for point in chosen[1:]:
            rest.add(point)
        share = len(chosen) / len(points)
        rest.count, rest.total = max(1, round(self.count * share)), self.total * share
        return rest


class CurvePoints:
    """Points of one curve as they are read, in bounded memory: when there are too many, pairs of stretches become one.

    An `x` that is not above the last one replaces all points from there on: the steps after a restart count.
    """

    def __init__(self, *, most: int = MOST_POINTS) -> None:
        self._most = max(2, most // 4)
        self._stretches: list[_Stretch] = []
        self._size = 1
        """Points of a full stretch."""

    def add(self, x: float, y: float) -> None:
        stretches = self._stretches
        while stretches and stretches[-1].last[0] >= x:
            if rest := stretches.pop().until(x):
                stretches.append(rest)
        if stretches and stretches[-1].count < self._size:
            stretches[-1].add((x, y))
            return
        stretches.append(_Stretch((x, y)))
        if len(stretches) > self._most:
            for first, second in zip(stretches[::2], stretches[1::2], strict=False):
                first.append(second)
            self._stretches = stretches[::2]
            self._size *= 2

    def curve(self, **about: Any) -> Curve | None:
        """The curve; `about`: its other fields. None without a point."""
        points = [point for stretch in self._stretches for point in stretch.points]
        if not points:
            return None
        return Curve(
            x=tuple(x for x, _ in points),
            y=tuple(y for _, y in points),
            recorded=sum(stretch.count for stretch in self._stretches),
            total=sum(stretch.total for stretch in self._stretches),
            **about,
        )


def _height(point: Pair) -> float:
    return point[1]
