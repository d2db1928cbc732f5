"""Result of the connectivity test, as rank 0 reports it when all values were right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

Matrix = tuple[tuple[float | None, ...], ...]
"""Values from the row's rank to the column's; None to itself."""


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """One all-reduce of all ranks, as large as fits into half a second."""

    bytes: int
    seconds: float
    mbit_s: float
    """Rate that each rank sent, and received."""


@dataclass(frozen=True, kw_only=True)
class ConnectivityResult:
    """A `tested` event."""

    nodes: tuple[str, ...]
    """Names in order of rank; one of several ranks of a node is called `alpha.1`."""
    backend: str
    device: str
    checks: tuple[str, ...]
    """Collectives that gave the known values on every rank."""
    lacking: tuple[str, ...] = ()
    """Collectives that this backend does not have."""
    barrier_ms: float
    all_reduce: AllReduce
    mbit_s: Matrix
    latency_ms: Matrix

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Each two ranks, the smaller first."""
        ranks = range(len(self.nodes))
        return tuple((first, second) for first in ranks for second in ranks if first < second)

    def rate(self, first: int, second: int) -> float:
        """Mbit/s of the slower direction."""
        return min(self.mbit_s[first][second] or 0.0, self.mbit_s[second][first] or 0.0)

    def latency(self, first: int, second: int) -> float:
        """Milliseconds of one exchange, by the one that waited longer."""
        return max(self.latency_ms[first][second] or 0.0, self.latency_ms[second][first] or 0.0)


def read_connectivity_result(values: Mapping[str, Any]) -> ConnectivityResult | None:
    """The values of an event; None where they are not those of a test. What a newer trainer adds is ignored."""
    try:
        result = TypeAdapter(ConnectivityResult).validate_python(values)  # made here: most commands read none
    except ValidationError:
        return None
    square = all(
        len(matrix) == len(result.nodes) == len(row)
        for matrix in (result.mbit_s, result.latency_ms)
        for row in (matrix or ((),))
    )
    return result if square else None
