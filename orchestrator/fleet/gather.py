"""Facts of the machines that a plan needs, asked once and in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.fleet.fan_out import Outcome, begin, fan_out
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import probe
from orchestrator.plan.ranks import device_of
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.request import LaunchRequest

TIMEOUT_S = 30.0


def gather_facts(
    nodes: Sequence[Node], request: LaunchRequest, *, resume: str = ""
) -> tuple[Outcome[Node, NodeFacts], ...]:
    """One outcome per node, in order: its facts, or why there are none. `resume` names a run to resume."""
    specs = {spec.name: spec for spec in request.nodes}
    # resolved here once; a name that has no address becomes an outcome when its node is asked
    addresses = [outcome.result for outcome in fan_out(nodes, lambda node: node.address, timeout_s=TIMEOUT_S)]

    def ask(node: Node) -> NodeFacts:
        own = node.address
        node.open()  # first, so that the clock's round trip is a short one

        engine = begin(node.engine.facts)
        host = probe.ask(
            node,
            workspace=specs[node.name].workspace,
            project=request.project,
            peers=[peer for peer in addresses if peer and peer != own],
            resume=resume,
        )
        tag = request.image_tag(device_of(specs[node.name], host))
        return replace(host, engine=engine.result(), image=node.engine.image(tag))

    return fan_out(nodes, ask, timeout_s=TIMEOUT_S)


def assumed_facts(node: NodeSpec) -> NodeFacts:
    """Facts of a machine that was not asked, from the inventory alone."""
    return NodeFacts(name=node.name, address=node.address, user=node.user or "", assumed=True)
