"""Who holds the port that a launch asks for by its number."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import host_probe
from orchestrator.specs import run as labels
from orchestrator.specs.errors import OrchError, PortTakenError
from orchestrator.specs.run import ContainerFacts, State


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
