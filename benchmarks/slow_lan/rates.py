"""Rates of links and processors: parse and format them, scale them to a small model, format for the kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

GPT2_BYTES = 498e6
"""Gradients of GPT-2 124M in float32."""
GPT2_STEP_S = 17.5
"""Seconds that a node computes between two exchanges: its fifth of half a million tokens at 6,000 tokens/s, the
planning estimate for an RTX 3050 laptop."""
COUNTED = 1514 / 1538
"""Share of a full frame on the wire that the kernel counts: without preamble, checksum and gap."""
TCP_SHARE = 1448 / 1538
"""Share of a full frame on the wire that TCP with timestamps carries: 941 Mbit/s of a gigabit."""
_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One direction of a node's link, in the words of `tc … tbf` and `ip link`."""

    bits_per_s: int
    burst_bytes: int
    limit_bytes: int
    packet_bytes: int
    """Largest segment that the sender passes on in one piece. One larger than a burst would be split in every queue on
    its way, which takes more processor time than anything else: 3 nodes then reached 60 %, not 98 %, of 1 Gbit/s."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """CPU limit of a node, as a cgroup's `quota_us` in every `period_us`."""

    quota_us: int
    period_us: int


def bits(text: str) -> float:
    """Bits per second of `100mbit`, `2.5gbit`; raises ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", text.strip().lower())
    if not found or not float(found[1]):
        raise ValueError(f"{text!r} is not a rate; expected something like 100mbit or 2.5gbit")
    return float(found[1]) * _UNITS[found[2]]


def written(bits_per_s: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:.3g} {unit}"
    return f"{bits_per_s / 1e3:.3g} kbit/s"


def equivalent(named_bits_per_s: float, gradient_bytes: float, step_s: float) -> float:
    """Scale a link rate (bits per second) to a small model, so that its ratio of transfer to computing time,
    (bytes / rate) / seconds of a node's step, equals that of GPT-2 124M at the named rate."""
    return named_bits_per_s * (gradient_bytes / GPT2_BYTES) * (GPT2_STEP_S / step_s)


def shape(bits_per_s: float, *, switch: bool) -> Shape:
    """A burst of 2 ms, 6 to 140 KB: small compared with one exchange, large enough for timers to keep up with the rate.

    `switch`: the direction towards the node, where several senders meet. Its buffer is that of a small switch, 512 KiB,
    whatever the rate: a retransmission timeout of 200 ms would matter twelve times more in a scaled step than in a
    real one.
    """
    burst = round(min(max(bits_per_s / 8 * 0.002, 6_000), 140_000))
    return Shape(
        bits_per_s=round(bits_per_s * COUNTED),
        burst_bytes=burst,
        limit_bytes=512 * 1024 if switch else 4 * 1024 * 1024,
        packet_bytes=min(burst // 2, 65_536),
    )


def quota(cores: float) -> Quota:
    """Short periods, so that throttling acts like a slower processor and not like pauses of 64 in 100 ms; but at least
    1.5 ms of work in each, because the kernel allows no quota under 1 ms."""
    if cores <= 0:
        raise ValueError(f"{cores:g} cores; expected more than 0")
    period_us = max(20_000, round(1500 / cores))
    return Quota(quota_us=round(cores * period_us), period_us=period_us)


def parts(speeds: Sequence[float], cores: float) -> tuple[float, ...]:
    """Cores of each node, in proportion to `speeds`, that add up to `cores`; at most what one thread can use."""
    total = sum(speeds)
    if not speeds or min(speeds) <= 0:
        raise ValueError(f"speeds {list(speeds)}: expected numbers above 0")
    shares = [cores * speed / total for speed in speeds]
    scale = min(1.0, 0.95 / max(shares))
    return tuple(share * scale for share in shares)
