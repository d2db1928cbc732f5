"""Nodes and pairs of nodes that are far slower than the others."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from orchestrator.specs.connectivity import ConnectivityResult

HALF = 0.5
LATE_MS = 1.0
"""Milliseconds above the usual latency from which a pair is late: 0.3 ms in place of 0.1 ms is no fault."""


@dataclass(frozen=True, kw_only=True)
class SlowLinks:
    """Slow nodes and pairs, by rank; empty where all are alike."""

    nodes: tuple[int, ...] = ()
    """Ranks whose best link carries less than half of what the others' best links do."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Pairs of other ranks that carry less than half of that between them."""
    late: tuple[tuple[int, int], ...] = ()
    """Pairs whose latency is more than twice the usual one."""
    typical_mbit_s: float = 0.0
    typical_ms: float = 0.0


def slow_links(result: ConnectivityResult) -> SlowLinks:
    """A node counts by its best link: one slow node makes every pair with it slow, and is the one to look at."""
    pairs = result.pairs()
    if not pairs:
        return SlowLinks()
    ranks = range(len(result.nodes))
    of = {rank: [pair for pair in pairs if rank in pair] for rank in ranks}
    best = {rank: max(result.rate(*pair) for pair in of[rank]) for rank in ranks}
    quickest = [min(result.latency(*pair) for pair in of[rank]) for rank in ranks]
    typical, usual = median(best.values()), median(quickest)
    nodes = tuple(rank for rank in ranks if best[rank] < HALF * typical)
    others = [pair for pair in pairs if not set(nodes) & set(pair)]
    return SlowLinks(
        nodes=nodes,
        pairs=tuple(pair for pair in others if result.rate(*pair) < HALF * typical),
        late=tuple(pair for pair in pairs if result.latency(*pair) > max(usual / HALF, usual + LATE_MS)),
        typical_mbit_s=typical,
        typical_ms=usual,
    )
