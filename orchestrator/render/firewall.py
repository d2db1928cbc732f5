"""Firewalls as people read them: how each node is, and every command before it is run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.plan.firewall import FirewallPlan


def firewall_lines(plan: FirewallPlan) -> Iterator[str]:
    """`beta: ufw is active; open to 10.0.0.11; …`, then its commands."""
    yield f"{plan.node}: {'; '.join(_state(plan))}"
    yield from (f"    {line}" for line in command_lines(plan))


def command_lines(plan: FirewallPlan) -> list[str]:
    """List the commands as a person would type them on the node."""
    return [f"sudo {shlex.join(argv)}" for argv in plan.commands]


def firewall_dict(plan: FirewallPlan) -> dict[str, Any]:
    """Build the object for `--json`."""
    return {
        "node": plan.node,
        "tool": plan.wall.tool,
        "active": plan.wall.active,
        "mark": plan.mark,
        "open_to": list(plan.open_to),
        "missing": list(plan.missing),
        "stale": list(plan.stale),
        "commands": [list(argv) for argv in plan.commands],
        "unknown": plan.unknown,
    }


def lost_at_restart(plans: Sequence[FirewallPlan]) -> Iterator[str]:
    """Rules of nftables and iptables live in the kernel alone; what a machine loads at its start is its owner's."""
    for tool, keep in (("nftables", "/etc/nftables.conf"), ("iptables", "what iptables-persistent loads")):
        names = [plan.node for plan in plans if plan.wall.tool == tool and plan.missing]
        if names:
            yield f"{', '.join(names)}: {tool} forgets its rules at the next start; to keep them, add them to {keep}"


def _state(plan: FirewallPlan) -> Iterator[str]:
    tool = plan.wall.tool
    if plan.wall.active is False:
        yield f"{tool} is installed and not active: it blocks nothing" if tool else "no firewall"
    elif plan.wall.active:
        yield f"{tool} is active"
    if plan.unknown:
        yield plan.unknown
        return
    if plan.open_to and plan.wall.active:
        yield f"open to {', '.join(plan.open_to)}"
    if plan.missing:
        yield f"no rule for {', '.join(plan.missing)}"
    if plan.stale:
        yield f"to be closed to {', '.join(plan.stale)}"
    if not plan.commands:
        yield "nothing to be done"
