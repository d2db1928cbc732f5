"""What a launch looks at before it starts anything: fresh facts, and what the last `orch doctor` saw of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from orchestrator.checks.doctor import quick
from orchestrator.fleet.readiness.doctor import examine
from orchestrator.fleet.readiness.record import DoctorRecord, keep, recall
from orchestrator.nodes.interface import Node
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.node_report import Examined
from orchestrator.specs.request import LaunchRequest


def look_before_launch(
    nodes: Sequence[Node], request: LaunchRequest, facts: Mapping[str, NodeFacts], *, now: datetime, suffix: str
) -> tuple[Finding, ...]:
    """What is known of these nodes, in the doctor's words, errors first.

    Where what is on record would refuse the launch, the ways between the nodes are tried again first: somebody may
    have mended them. `suffix` makes the names of probe containers unique.
    """
    found = quick_look(request.nodes, facts, recall(now))
    fresh = quick_look(request.nodes, facts, None)
    if not any(finding.severity is Severity.ERROR for finding in found if finding not in fresh):
        return found
    seen = examine(nodes, request, suffix=suffix, areas=frozenset({"network"})).nodes
    keep(seen, now)
    return quick(tuple(replace(node, facts=facts[node.name]) for node in seen))


def quick_look(
    specs: Sequence[NodeSpec], facts: Mapping[str, NodeFacts], record: DoctorRecord | None
) -> tuple[Finding, ...]:
    """The doctor's words on what is known of these nodes, errors first. What rests on the record says so."""
    asked = tuple(Examined(spec=spec, facts=facts[spec.name]) for spec in specs if not facts[spec.name].assumed)
    fresh = quick(asked)
    if record is None:
        return fresh
    found = quick(tuple(_with_network(node, record, facts) for node in asked))
    oldest = min((record.nodes[node.name].at for node in asked if node.name in record.nodes), default=None)
    return tuple(finding if oldest is None or finding in fresh else _as_of(finding, oldest) for finding in found)


def _with_network(node: Examined, record: DoctorRecord, facts: Mapping[str, NodeFacts]) -> Examined:
    """With its network as it was seen, if its address is still that; of its paths, those among the nodes wanted."""
    seen = record.nodes.get(node.name)
    if seen is None or node.facts is None or seen.address != node.facts.address:
        return node
    return replace(node, network=seen.network, paths=tuple(path for path in seen.paths if path.peer in facts))


def _as_of(finding: Finding, at: datetime) -> Finding:
    return replace(
        finding,
        message=f"{finding.message} (as of {at.astimezone():%H:%M, %d %b}, orch doctor)",
        fix=f"{finding.fix}; fixed since? orch doctor",
    )
