"""What lets a machine fall asleep, slow down or go away during a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.node_report import Examined

THROTTLED = 100
"""Events since boot: single ones occur while a machine starts."""
_QUIET = ("", "ignore", "lock")
"""Actions of logind that leave a machine running."""


def sleeps(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A laptop, or a machine with a desktop, goes to sleep when nobody touches it: a run does not count."""
    for node in fleet:
        host = node.host
        if host is None or not host.sleeps:
            continue
        why = "a laptop" if host.on_battery is not None else "a machine with a desktop" if host.desktop else ""
        if host.idle_action not in _QUIET:
            why = f"set to {host.idle_action} when idle"
        if why:
            targets = tuple(f"{name}.target" for name in host.sleeps)
            yield Finding(
                id="power.sleep",
                severity=Severity.WARNING,
                node=node.name,
                message=f"it may fall asleep during a run: it is {why}, and sleeping is not switched off",
                cause="desktops suspend an idle machine, and training counts as idle: nobody touches the keyboard",
                fix=f"on it: sudo systemctl mask {' '.join(targets)} (undo: unmask)",
                auto_fix=Fix(
                    what=f"keep {node.name} from sleeping (undo: sudo systemctl unmask {' '.join(targets)})",
                    on_node=("sudo", "-n", "systemctl", "mask", *targets),
                ),
            )


def lid(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A laptop that sleeps when somebody closes it."""
    for node in fleet:
        host = node.host
        if host and host.lid_action not in _QUIET and host.sleeps:
            yield Finding(
                id="power.lid",
                severity=Severity.WARNING,
                node=node.name,
                message=f"closing its lid makes it {host.lid_action}",
                cause="logind's HandleLidSwitch",
                fix="leave it open; or on it, in /etc/systemd/logind.conf: HandleLidSwitch=ignore, then:"
                " sudo systemctl kill -s HUP systemd-logind",
            )


def battery(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """On battery a machine is slow, and soon off."""
    for node in fleet:
        if node.host and node.host.on_battery:
            yield Finding(
                id="power.on_battery",
                severity=Severity.WARNING,
                node=node.name,
                message="it runs on battery: slower, and off within hours",
                cause="processor and GPU are held to a fraction of their power, and every step waits for the slowest",
                fix="plug in the mains",
            )


def reboot(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Updates wait for a reboot: some of them happen by themselves, at night."""
    for node in fleet:
        if node.host and node.host.reboot_required:
            yield Finding(
                id="power.reboot_pending",
                severity=Severity.WARNING,
                node=node.name,
                message="updates wait for a reboot",
                cause="unattended upgrades may do it by themselves; an updated GPU driver fails until then",
                fix="on it, before a long run: sudo reboot",
            )


def throttling(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A processor that gets too hot."""
    for node in fleet:
        events = node.host.throttle_events if node.host else None
        if events is not None and events >= THROTTLED:
            yield Finding(
                id="power.throttled",
                severity=Severity.WARNING,
                node=node.name,
                message=f"its processor was slowed down by heat {events} times since it was started",
                cause="dust, a blocked vent, or a power limit above what its cooling can carry away",
                fix="clean the fans, give it air; on it: sudo dmesg | grep -i thrott",
            )


CHECKS = (sleeps, lid, battery, reboot, throttling)
