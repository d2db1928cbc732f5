"""Checks of containers that finished, or half finished, runs have left on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs import labels
from orchestrator.specs.finding import Finding
from orchestrator.specs.labels import read_labels, understood
from orchestrator.specs.node_report import Examined
from orchestrator.specs.run import ContainerFacts, State

MANY = 20


def orphans(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A rank that keeps running while another of its run is gone: it waits, and holds its machine."""
    for run_id, held in _runs(fleet).items():
        going = [name for name, facts in held if facts.state is State.RUNNING]
        over = [name for name, facts in held if facts.state in (State.FAILED, State.SUCCEEDED)]
        if going and over:
            yield Finding.of("resources.orphan", ", ".join(going), run_id=run_id, over=over)


def busy(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A run in health holds these nodes: no fault, but a launch would be refused."""
    for run_id, held in _runs(fleet).items():
        going = [(name, facts) for name, facts in held if facts.state is State.RUNNING]
        if going and len(going) == len(held):
            first = going[0][1].labels
            yield Finding.of(
                "resources.busy",
                ", ".join((name for name, _ in going)),
                run_id=run_id,
                user=first.get(labels.LABEL_USER, "?"),
                since=first.get(labels.LABEL_STARTED, "?"),
            )


def ended(node: Examined) -> Iterator[Finding]:
    """Report containers of many ended runs."""
    over = [facts for facts in node.held if facts.state in (State.FAILED, State.SUCCEEDED)]
    if len(over) >= MANY:
        yield Finding.of("resources.leftovers", node.name, count=len(over))


def strange(node: Examined) -> Iterator[Finding]:
    """Containers that bear a run's label, and others that no run has: every command leaves them out."""
    for facts in node.held:
        try:
            read_labels(facts.labels)
        except ValueError as error:
            yield Finding.of("resources.labels", node.name, name=facts.name, error=error)


def _runs(fleet: Sequence[Examined]) -> dict[str, list[tuple[str, ContainerFacts]]]:
    """Containers of the newest attempt of each run, with their nodes, by run id."""
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


NODE_CHECKS = (ended, strange)
CHECKS = (orphans, busy)
