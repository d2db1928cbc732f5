"""Kernel log lines of a node about memory, disks and GPUs since a run began."""

from __future__ import annotations

from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import OrchError

TIMEOUT_S = 10.0
# Kernels before 5.0 write "Kill process", newer ones "Killed process".
# A constant; $1 is the moment, in seconds since 1970. Without the right to read the journal it says nothing.
SCRIPT = r"""
said='NVRM: Xid|Out of memory: Kill|Memory cgroup out of memory: Kill|fallen off the bus|I/O error'
journalctl -k -q --no-pager -o cat --since "@$1" -g "$said" 2>/dev/null | tail -n 20
exit 0
"""


def kernel_lines(node: Node, since_s: int) -> tuple[str, ...]:
    """Oldest first; none where the node does not answer or has no journal."""
    try:
        answer = node.run(["sh", "-c", SCRIPT, "sh", str(since_s)], timeout_s=TIMEOUT_S)
    except OrchError:
        return ()
    return tuple(line for line in answer.stdout.splitlines() if line.strip())
