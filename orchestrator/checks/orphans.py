"""What runs that are over, or half over, have left on the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from orchestrator.specs import run as labels
from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.node_report import Examined
from orchestrator.specs.run import ContainerFacts, State
from orchestrator.specs.run_labels import read_labels, understood

MANY = 20


def orphans(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A rank that goes on while another of its run is gone: it waits, and holds its machine."""
    for run_id, held in _runs(fleet).items():
        going = [name for name, facts in held if facts.state is State.RUNNING]
        over = [name for name, facts in held if facts.state in (State.FAILED, State.SUCCEEDED)]
        if going and over:
            yield Finding(
                id="resources.orphan",
                severity=Severity.WARNING,
                node=", ".join(going),
                message=f"run {run_id} goes on, and has ended on {', '.join(over)}",
                cause="the ranks that are left wait for the others until a deadline passes, and hold their machines",
                fix=f"orch stop {run_id}",
                auto_fix=Fix(what=f"stop what is left of run {run_id}", orch=("stop", run_id)),
            )


def busy(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A run in health holds these nodes: no fault, but a launch would be refused."""
    for run_id, held in _runs(fleet).items():
        going = [(name, facts) for name, facts in held if facts.state is State.RUNNING]
        if going and len(going) == len(held):
            first = going[0][1].labels
            yield Finding(
                id="resources.busy",
                severity=Severity.INFO,
                node=", ".join(name for name, _ in going),
                message=f"run {run_id} by {first.get(labels.LABEL_USER, '?')} holds {', '.join(n for n, _ in going)}"
                f" since {first.get(labels.LABEL_STARTED, '?')}",
                fix=f"orch status {run_id}",
            )


def ended(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Containers of many runs that are over."""
    for node in fleet:
        over = [facts for facts in node.held if facts.state in (State.FAILED, State.SUCCEEDED)]
        if len(over) >= MANY:
            yield Finding(
                id="resources.leftovers",
                severity=Severity.INFO,
                node=node.name,
                message=f"{len(over)} containers of ended runs are kept there",
                cause="they keep their logs until they are removed",
                fix="orch clean",
                auto_fix=Fix(what="remove what ended runs left on the nodes", orch=("clean",)),
            )


def strange(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Containers that bear a run's label, and others that no run has: every command leaves them out."""
    for node in fleet:
        for facts in node.held:
            try:
                read_labels(facts.labels)
            except ValueError as error:
                yield Finding(
                    id="resources.labels",
                    severity=Severity.WARNING,
                    node=node.name,
                    message=f"container {facts.name} is not understood: {error}",
                    cause="it was made by hand, by another tool, or by another version of orch",
                    fix=f"on it: docker rm -f {shlex.quote(facts.name)}",
                )


def _runs(fleet: Sequence[Examined]) -> dict[str, list[tuple[str, ContainerFacts]]]:
    """By run: the newest attempt's containers, with their nodes."""
    found: dict[str, list[tuple[str, ContainerFacts, int]]] = {}
    for node in fleet:
        for facts in node.held:
            if says := understood(facts.labels):
                found.setdefault(says.run_id, []).append((node.name, facts, says.attempt))
    newest = {run_id: max(attempt for _, _, attempt in held) for run_id, held in found.items()}
    return {
        run_id: [(name, facts) for name, facts, attempt in held if attempt == newest[run_id]]
        for run_id, held in found.items()
    }


CHECKS = (orphans, busy, ended, strange)
