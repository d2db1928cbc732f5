"""Checks of settings and states that let a machine suspend, slow down or shut down during a run."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined

THROTTLED = 100
"""Events since boot: single ones occur while a machine starts."""
_QUIET = ("", "ignore", "lock")
"""Actions of logind that leave a machine running."""


def sleeps(node: Examined) -> Iterator[Finding]:
    """A laptop, or a machine with a desktop, suspends without user input: a run does not count as activity."""
    host = node.host
    if host is None or not host.sleeps:
        return
    why = "a laptop" if host.on_battery is not None else "a machine with a desktop" if host.desktop else ""
    if host.idle_action not in _QUIET:
        why = f"set to {host.idle_action} when idle"
    if why:
        targets = tuple(f"{name}.target" for name in host.sleeps)
        yield Finding.of("power.sleep", node.name, why=why, targets=targets)


def lid(node: Examined) -> Iterator[Finding]:
    """A laptop that sleeps when somebody closes it."""
    host = node.host
    if host and host.lid_action not in _QUIET and host.sleeps:
        yield Finding.of("power.lid", node.name, lid_action=host.lid_action)


def battery(node: Examined) -> Iterator[Finding]:
    """Report nodes on battery: such a machine is slow, and soon off."""
    if node.host and node.host.on_battery:
        yield Finding.of("power.on_battery", node.name)


def reboot(node: Examined) -> Iterator[Finding]:
    """Updates wait for a reboot: some of them happen by themselves, at night."""
    if node.host and node.host.reboot_required:
        yield Finding.of("power.reboot_pending", node.name)


def throttling(node: Examined) -> Iterator[Finding]:
    """A processor that gets too hot."""
    events = node.host.throttle_events if node.host else None
    if events is not None and events >= THROTTLED:
        yield Finding.of("power.throttled", node.name, events=events)


NODE_CHECKS = (sleeps, lid, battery, reboot, throttling)
