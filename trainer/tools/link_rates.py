"""How long a word takes between each two ranks, how much goes over each link, and what all reach at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from trainer.engine.group import Group
from trainer.tools.pairing import rounds

LONG_ENOUGH_S = 0.2
"""Minimum duration of a transfer: shorter ones are absorbed by buffers."""
SMALLEST, LARGEST = 1 << 14, 1 << 25
"""Bytes of a transfer."""
TRIES = 3
"""Transfers of the largest message; the best counts, as a busy processor makes a link look slow, never fast."""
REPEATS = 10
"""Transfers of a small message; the median counts, as the first ones open connections."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Between each two ranks, while no other pair used the links of either."""

    rates: list[list[float]]
    """Bytes per second from row's rank to column's, both directions at once; 0 to itself."""
    latencies_s: list[list[float]]
    """Seconds of one exchange of 4 bytes."""


@dataclass(frozen=True, kw_only=True)
class AllReduceRate:
    """One all-reduce of all ranks."""

    barrier_s: float
    """Seconds of one of a few bytes."""
    sent_bytes: int
    seconds: float
    rate: float
    """Bytes per second that each rank sent, and received: 2 (k-1)/k of the message, for k ranks."""


def measure_links(group: Group) -> Links:
    """Round by round, each rank with one peer. To be called by all ranks."""
    ranks, rank = group.place.world_size, group.place.rank
    rates = torch.zeros(ranks, ranks, dtype=torch.float64)
    latencies = torch.zeros(ranks, ranks, dtype=torch.float64)
    for pairs in rounds(ranks):
        group.barrier()
        peer = next((second if first == rank else first for first, second in pairs if rank in (first, second)), None)
        if peer is not None:
            latencies[rank, peer] = _latency_s(group, peer)
            rates[peer, rank] = _rate(group, peer)
    group.all_reduce(rates)
    group.all_reduce(latencies)
    return Links(rates=rates.tolist(), latencies_s=latencies.tolist())


def of_all_at_once(group: Group, links: Links) -> AllReduceRate:
    """To be called by all ranks, with the same `links`: the slowest decides how much is sent."""
    ranks = group.place.world_size
    copies = 2 * (ranks - 1) / ranks
    slowest = min((rate for row in links.rates for rate in row if rate), default=LARGEST / LONG_ENOUGH_S)
    values = int(min(LARGEST, max(SMALLEST, 2 * LONG_ENOUGH_S * slowest)) / 4)
    barrier_s = _all_reduce_s(group, 1)
    seconds = max(group.all_gather_scalar(_all_reduce_s(group, values, repeats=3)))
    return AllReduceRate(
        barrier_s=barrier_s, sent_bytes=4 * values, seconds=seconds, rate=copies * 4 * values / seconds
    )


def _latency_s(group: Group, peer: int) -> float:
    word = torch.zeros(1)
    return median(group.swap(word, peer)[1] for _ in range(REPEATS))


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


def _all_reduce_s(group: Group, values: int, repeats: int = REPEATS) -> float:
    tensor, taken = torch.zeros(values, device=group.device), []
    for _ in range(repeats):
        began = time.perf_counter()
        group.all_reduce(tensor)
        float(tensor[0])  # waits for it, on a GPU too
        taken.append(time.perf_counter() - began)
    return median(taken)
