"""Locks of the package manager: a machine that upgrades itself holds them for minutes, a new one for ten."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.nodes.interface import Completed, Node
from orchestrator.specs.errors import CommandFailedError
from orchestrator.specs.setup import Step

PAUSE_S = 5.0
NOTE_S = 30.0
_HELD = re.compile(
    r"Could not get lock (?P<file>[^\s,]+?)\.?(?: It is held by process (?P<pid>\d+) \((?P<name>[^)]*)\))?$"
)
"""apt's own option DPkg::Lock::Timeout shows no progress, and does not cover the lock of `apt-get update`."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Time to wait for a lock, and the clock."""

    now: Callable[[], float] = time.monotonic
    rest: Callable[[float], object] = time.sleep
    limit_s: float = 600.0


PATIENCE = Patience()


def run_unlocked(node: Node, step: Step, on_wait: Callable[[str], None], patience: Patience) -> Completed:
    """Run the step's command; while another process holds a lock of the package manager, try again.

    CommandFailedError: it holds the lock for longer than the limit.
    """
    began = patience.now()
    noted = began - NOTE_S
    while True:
        answer = node.run(step.argv, stdin=step.stdin.encode(), timeout_s=step.timeout_s)
        held = next(filter(None, map(_HELD.search, answer.stderr.splitlines())), None) if answer.exit_code else None
        if held is None:
            return answer
        now = patience.now()
        holder = f"process {held['pid']} ({held['name']})" if held["pid"] else "another process"
        if now - began >= patience.limit_s:
            look = f"ps -fp {held['pid']}" if held["pid"] else f"sudo fuser -v {held['file']}"
            raise CommandFailedError(
                f"{step.why}: {holder} has held {held['file']} for {now - began:.0f} s",
                node=node.name,
                hint=f"on it: {look}   # once it has ended: orch setup --nodes {node.name}",
            )
        if now - noted >= NOTE_S:
            noted = now
            left_s = patience.limit_s - (now - began)
            on_wait(f"waits for {holder}, which holds {held['file']}; {left_s:.0f} s more at most")
        patience.rest(PAUSE_S)
