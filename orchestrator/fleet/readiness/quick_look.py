"""Checks before a launch: fresh facts, the network as the last `orch doctor` saw it, and who holds the master port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path as File

from platformdirs import user_state_path
from pydantic import TypeAdapter, ValidationError

from orchestrator.checks.doctor import quick
from orchestrator.fleet.readiness.doctor import examine
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import host_probe
from orchestrator.nodes.state_files import replace_file
from orchestrator.specs import labels
from orchestrator.specs.errors import OrchError, PortTakenError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.network import NetworkFacts, Path
from orchestrator.specs.node_report import Examined
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run import ContainerFacts, State


def check_before_launch(
    nodes: Sequence[Node], request: LaunchRequest, facts: Mapping[str, NodeFacts], *, now: datetime, suffix: str
) -> tuple[Finding, ...]:
    """Findings already known of these nodes, in the doctor's words, errors first.

    Where what is on record would refuse the launch, the ways between the nodes are tried again first: somebody may
    have fixed them. `suffix` makes the names of probe containers unique.
    """
    found = quick_look(request.nodes, facts, load_doctor_record(now))
    fresh = quick_look(request.nodes, facts, None)
    if not any(finding.severity is Severity.ERROR for finding in found if finding not in fresh):
        return found
    seen = examine(nodes, request, suffix=suffix, areas=frozenset({"network"})).nodes
    save_doctor_record(seen, now)
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


MAX_AGE_S = 24 * 3600.0
"""Older than that, what was seen of a network says little of it now."""


@dataclass(frozen=True, kw_only=True)
class SeenNetwork:
    """One node's network as it was seen, and when."""

    at: datetime
    address: str
    network: NetworkFacts | None = None
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DoctorRecord:
    """The network of all nodes that were looked at."""

    nodes: Mapping[str, SeenNetwork]


_FORM = TypeAdapter(DoctorRecord)


def record_file() -> File:
    """Where it is kept."""
    return user_state_path("orch") / "doctor.json"


def save_doctor_record(fleet: Sequence[Examined], now: datetime) -> None:
    """Save the network of these nodes; what is on record of other nodes stays."""
    earlier = load_doctor_record(now)
    nodes = dict(earlier.nodes) if earlier else {}
    for node in fleet:
        if node.facts and (node.network or node.paths):
            nodes[node.name] = SeenNetwork(at=now, address=node.facts.address, network=node.network, paths=node.paths)
    replace_file(record_file(), _FORM.dump_json(DoctorRecord(nodes=nodes)))


def load_doctor_record(now: datetime) -> DoctorRecord | None:
    """The doctor's record, without what is too old; None where nothing is left, or it cannot be read."""
    try:
        record = _FORM.validate_json(record_file().read_bytes())
    except (OSError, ValidationError):
        return None
    young = {name: seen for name, seen in record.nodes.items() if 0 <= (now - seen.at).total_seconds() <= MAX_AGE_S}
    return DoctorRecord(nodes=young) if young else None


def with_holder(error: PortTakenError, node: Node) -> PortTakenError:
    """The same, with whoever listens there, as far as the node's user may know: another one's program has no name, but
    a run whose rank 0 is on this node has."""
    with suppress(OrchError):
        led = node.engine.containers({labels.LABEL_MASTER: node.name})
        known = [_run_of(facts) for facts in led if facts.state is State.RUNNING]
        known += [str(holder) for holder in host_probe.holders(node, error.port)]
        return PortTakenError(error.port, holder=known[0] if known else "", node=node.name)
    return error


def _run_of(facts: ContainerFacts) -> str:
    return f"run {facts.labels.get(labels.LABEL_RUN, '?')} by {facts.labels.get(labels.LABEL_USER, '?')}"
