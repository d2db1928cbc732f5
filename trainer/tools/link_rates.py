"""Latency and bandwidth between each two ranks, and the rate of an all-reduce of all ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from trainer.engine.group import Group

LONG_ENOUGH_S = 0.2
"""Minimum duration of a transfer: shorter ones are absorbed by buffers."""
SMALLEST, LARGEST = 1 << 14, 1 << 25
"""Bytes of a transfer."""
TRIES = 3
"""Transfers of the largest message; the best counts, as a busy processor makes a link look slow, never fast."""
REPEATS = 10
"""Transfers of a small message; the median counts, as the first ones open connections."""

Matrix = list[list[float]]
"""Rates from the row's rank to the column's, measured while no other pair used the links of either; 0 to itself."""


@dataclass(frozen=True, kw_only=True)
class AllReduceRate:
    barrier_s: float
    """Seconds of one all-reduce of 4 bytes."""
    sent_bytes: int
    seconds: float
    rate: float
    """Bytes per second that each rank sent, and received: 2 (k-1)/k of the message, for k ranks."""


def measure_links(group: Group) -> tuple[Matrix, Matrix]:
    """Return bytes per second in both directions at once, and seconds of one exchange of 4 bytes. To be called by all
    ranks: in each round a rank measures with one peer."""
    ranks, rank = group.place.world_size, group.place.rank
    rates = torch.zeros(ranks, ranks, dtype=torch.float64)
    latencies = torch.zeros(ranks, ranks, dtype=torch.float64)
    word = torch.zeros(1)
    for pairs in rounds(ranks):
        group.barrier()
        peer = next((second if first == rank else first for first, second in pairs if rank in (first, second)), None)
        if peer is not None:
            latencies[rank, peer] = median(group.swap(word, peer)[1] for _ in range(REPEATS))
            rates[peer, rank] = _rate(group, peer)
    group.all_reduce(rates)
    group.all_reduce(latencies)
    return rates.tolist(), latencies.tolist()


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs, the smaller rank first, in which each two ranks meet once: ranks - 1 rounds, one more if
    the number is odd and one rank waits. The circle method of round-robin tournaments: one stays, the others rotate."""
    circle: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def _rate(group: Group, peer: int) -> float:
    """Bytes per second from the peer. Both increase the message alike: each sends the other its seconds."""
    size = SMALLEST
    while True:
        message = torch.empty(size, dtype=torch.uint8)
        _, seconds = group.swap(message, peer)
        theirs, _ = group.swap(torch.tensor([seconds], dtype=torch.float64), peer)
        slower = max(seconds, float(theirs))
        if slower >= LONG_ENOUGH_S or size >= LARGEST:
            return size / min(seconds, *(group.swap(message, peer)[1] for _ in range(TRIES - 1)))
        size = min(LARGEST, max(2 * size, int(size * 1.5 * LONG_ENOUGH_S / max(slower, 1e-6))))


def measure_all_reduce(group: Group, rates: Matrix) -> AllReduceRate:
    """Measure on all ranks, with the same `rates`: the slowest decides how much is sent."""
    ranks = group.place.world_size
    slowest = min((rate for row in rates for rate in row if rate), default=LARGEST / LONG_ENOUGH_S)
    values = int(min(LARGEST, max(SMALLEST, 2 * LONG_ENOUGH_S * slowest)) / 4)
    barrier_s = _all_reduce_s(group, 1, REPEATS)
    seconds = max(group.all_gather_scalar(_all_reduce_s(group, values, 3)))
    rate = 2 * (ranks - 1) / ranks * 4 * values / seconds
    return AllReduceRate(barrier_s=barrier_s, sent_bytes=4 * values, seconds=seconds, rate=rate)


def _all_reduce_s(group: Group, values: int, repeats: int) -> float:
    tensor, taken = torch.zeros(values, device=group.device), []
    for _ in range(repeats):
        began = time.perf_counter()
        group.all_reduce(tensor)
        float(tensor[0])  # waits for it, on a GPU too
        taken.append(time.perf_counter() - began)
    return median(taken)
