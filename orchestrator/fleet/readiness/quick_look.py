"""Checks before a launch: fresh facts, the network as the last `orch doctor` saw it, and who holds the master port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from orchestrator.checks.doctor import quick
from orchestrator.checks.firewall import open_to_outsiders
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import host_probe
from orchestrator.specs import labels
from orchestrator.specs.errors import OrchError, PortTakenError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.node_report import Examined
from orchestrator.specs.program import Program
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.run import State
from orchestrator.store.doctor_record import SeenNetwork, load_doctor_record, save_doctor_record


def check_before_launch(
    nodes: Sequence[Node], request: LaunchRequest, facts: Mapping[str, NodeFacts], *, now: datetime, suffix: str
) -> tuple[Finding, ...]:
    """Findings already known of these nodes, as of the doctor, errors first.

    If the record would refuse the launch, the network is probed again first: it may have been fixed since. `suffix`
    makes the names of probe containers unique.
    """
    found = quick_look(request.nodes, facts, load_doctor_record(now))
    fresh = quick_look(request.nodes, facts, {})
    if not any(finding.severity is Severity.ERROR for finding in found if finding not in fresh):
        return found
    from orchestrator.fleet.readiness.doctor import examine, stages_of  # what few launches need

    seen = examine(nodes, request, suffix=suffix, stages=stages_of(["network"])).nodes
    save_doctor_record(seen, now)
    return quick(tuple(replace(node, facts=facts[node.name]) for node in seen))


def quick_look(
    specs: Sequence[NodeSpec], facts: Mapping[str, NodeFacts], record: Mapping[str, SeenNetwork]
) -> tuple[Finding, ...]:
    """The doctor's findings on what is known of these nodes, errors first; those that depend on the record say so."""
    asked = tuple(Examined(spec=spec, facts=facts[spec.name]) for spec in specs if not facts[spec.name].assumed)
    fresh = quick(asked)
    oldest = min((record[node.name].at for node in asked if node.name in record), default=None)
    if oldest is None:
        return fresh
    return tuple(
        finding
        if finding in fresh
        else replace(
            finding,
            message=f"{finding.message} (as of {oldest.astimezone():%H:%M, %d %b}, orch doctor)",
            fix=f"{finding.fix}; fixed since? orch doctor",
        )
        for finding in quick(tuple(_with_network(asked, record)))
    )


def open_ports(specs: Sequence[NodeSpec], facts: Mapping[str, NodeFacts], now: datetime, program: Program) -> str:
    """Line on the ranks' ports that answer to machines outside the run; empty: as far as the record says, there are
    none. torch's store is behind the agents, except where a shell script starts torchrun itself (ADR 65)."""
    asked = [Examined(spec=spec, facts=facts[spec.name]) for spec in specs if not facts[spec.name].assumed]
    open_nodes = open_to_outsiders(tuple(_with_network(asked, load_doctor_record(now))))
    if not open_nodes:
        return ""
    whose = "torch's store, gloo, NCCL and" if program.is_shell else "gloo, NCCL and"
    return (
        f"the ports of {whose} the script answer to any machine that reaches {', '.join(open_nodes)}: "
        "no firewall is on there; allow SSH in one, turn it on, then: orch firewall apply"
    )


def _with_network(asked: Sequence[Examined], record: Mapping[str, SeenNetwork]) -> Iterator[Examined]:
    """Add what the record says of the network of nodes that have the same address still."""
    names = {node.name for node in asked}
    for node in asked:
        seen = record.get(node.name)
        if seen and node.facts and seen.address == node.facts.address:
            paths = tuple(path for path in seen.paths if path.peer in names)
            node = replace(node, network=seen.network, paths=paths)
        yield node


def with_holder(error: PortTakenError, node: Node) -> PortTakenError:
    """The same error with the holder of the port, as far as the node's user may see it: a program of another user has
    no name, a run with rank 0 on this node has."""
    with suppress(OrchError):
        led = node.engine.containers({labels.LABEL_MASTER: node.name})
        known = [
            f"run {one.labels.get(labels.LABEL_RUN, '?')} by {one.labels.get(labels.LABEL_USER, '?')}"
            for one in led
            if one.state is State.RUNNING
        ]
        known += [str(holder) for holder in host_probe.holders(node, error.port)]
        return PortTakenError(error.port, holder=known[0] if known else "", node=node.name)
    return error
