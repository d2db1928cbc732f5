"""Carry out what a finding proposes, once somebody has agreed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.nodes.interface import Node
from orchestrator.specs.finding import Finding, Mend
from orchestrator.specs.node_report import Examined

SUDO = ("sudo", "-n")
TIMEOUT_S = 60.0


def mendable(findings: Sequence[Finding]) -> tuple[tuple[Finding, Mend], ...]:
    """Findings that something can be done about, and what; the same deed once, for the first that asks for it."""
    by_deed: dict[tuple[str, ...], tuple[Finding, Mend]] = {}
    for finding in findings:
        if mend := finding.mend:
            by_deed.setdefault(mend.orch or (finding.node, *mend.on_node), (finding, mend))
    return tuple(by_deed.values())


def mend_on_node(finding: Finding, mend: Mend, nodes: Mapping[str, Node], seen: Mapping[str, Examined]) -> None:
    """Run the finding's command on its node. Where its user is root already, sudo need not be there.

    Raises `CommandFailedError` where it fails, such as where sudo wants a password, with the line to paste instead.
    """
    argv, facts = mend.on_node, seen[finding.node].facts
    if facts and facts.uid == 0 and argv[: len(SUDO)] == SUDO:
        argv = argv[len(SUDO) :]
    answer = nodes[finding.node].run(argv, timeout_s=TIMEOUT_S)
    answer.check(f"to {mend.what}", hint=finding.fix)
