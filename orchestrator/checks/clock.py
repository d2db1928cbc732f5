"""Checks of the clocks: a skew that breaks what compares times, and a clock that no time service sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined

CLOCK_WARN_S = 1.0
CLOCK_ERROR_S = 30.0
"""Liveness in torch's stores compares wall clocks."""


def clock_skew(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A clock that is off. Where all nodes agree with each other, it is this computer's, which no rank reads."""
    offsets = [facts.clock_offset_s for facts in fleet]
    if len(fleet) > 1 and max(offsets) - min(offsets) <= CLOCK_WARN_S < min(map(abs, offsets)):
        yield Finding.of("clock.controller", "", off=_off(-offsets[0]))
        return
    for facts in fleet:
        off = facts.clock_offset_s
        if abs(off) > CLOCK_WARN_S:
            case = "far" if abs(off) > CLOCK_ERROR_S else "near"
            yield Finding.of("clock.skew", facts.name, case=case, off=_off(off))


def clock_unsynchronized(node: Examined) -> Iterator[Finding]:
    """A clock that no time service sets drifts by seconds a week."""
    if node.host and node.host.ntp == "no":
        yield Finding.of("clock.not_kept", node.name)


def _off(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"


LAUNCH_CHECKS = (clock_skew,)
NODE_CHECKS = (clock_unsynchronized,)
