"""The node that holds a run back, and why: its computing, its data, its link, or a machine that is slowed down."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Literal

from contract.events import ProgressEvent
from contract.resources import ResourceUsage
from orchestrator.checks.slow_ranks import slow_ranks

WAITING, EXCHANGING = 0.2, 0.3
"""Shares of the time from which waiting for data, or for the exchange between nodes, is worth a look."""
SLOW_LINK = 0.7
"""Times the other links' speed."""
SWAP_MIB = 512
"""Swapped memory from which a slow node counts as swapping: systems swap out some of what is never used."""

Reason = Literal["compute", "data", "link", "throttled", "swapping"]


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The others wait for it in every step."""

    node: str
    """Empty: all nodes alike."""
    reason: Reason
    text: str
    """In words, without the node."""


def straggler(
    last: ProgressEvent | None,
    nodes: Collection[str],
    used: Mapping[str, ResourceUsage] = MappingProxyType({}),
    links: Mapping[str, float] = MappingProxyType({}),
) -> Straggler | None:
    """The node that holds the others back, by the newest figures of the run; None: there is none, or it is not known.

    `used`: resources in use, by node; `links`: measured speed in Mbit/s, by node. Shares of the time are those of the
    rank that reports: where it waits for data, it is the slow one.
    """
    if last is None:
        return None
    if slow := slow_ranks(last, nodes):
        return _why_slow(slow[0].node, slow[0].ratio, used.get(slow[0].node))
    waiting, exchanging = share_of(last, "waiting"), share_of(last, "exchanging")
    if waiting is not None and waiting >= WAITING:
        where = last.node if last.node in nodes else ""
        return Straggler(node=where or "", reason="data", text=f"waits {waiting:.0%} of the time for data")
    if exchanging is not None and exchanging >= EXCHANGING:
        return _slow_link(exchanging, {name: speed for name, speed in links.items() if speed > 0})
    return None


def share_of(event: ProgressEvent, name: str) -> float | None:
    """A share of the time (`waiting`, `exchanging`) that a step reports, from 0 to 1; None without a valid one."""
    value = event.others.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1 else None


def _why_slow(node: str, ratio: float, used: ResourceUsage | None) -> Straggler:
    times = f"takes {ratio:.1f} x the others' time"
    slowed = next((gpu.slowed_by for gpu in used.gpus if gpu.slowed_by), "") if used else ""
    if slowed:
        return Straggler(node=node, reason="throttled", text=f"{times}; its GPU is slowed by {slowed}")
    if used and used.swap_used_mib >= SWAP_MIB:
        swapped = f"{used.swap_used_mib / 1024:.1f} GiB of its memory is swapped out"
        return Straggler(node=node, reason="swapping", text=f"{times}; {swapped}")
    return Straggler(node=node, reason="compute", text=times)


def _slow_link(exchanging: float, links: Mapping[str, float]) -> Straggler:
    spent = f"the exchange takes {exchanging:.0%} of the time"
    if len(links) > 1:
        slowest = min(links, key=lambda name: links[name])
        others = median(speed for name, speed in links.items() if name != slowest)
        if links[slowest] < SLOW_LINK * others:
            text = f"{spent}; its link carries {links[slowest]:,.0f} Mbit/s, the others' {others:,.0f}"
            return Straggler(node=slowest, reason="link", text=text)
    return Straggler(node="", reason="link", text=f"{spent}; all links are about equally fast")
