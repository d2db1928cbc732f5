"""A whole run from what the user asked for and what the machines answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.plan.container import Seat, plan_node
from orchestrator.plan.network import choose_port, interface_of
from orchestrator.plan.ranks import backend_of, device_of, nproc_of, rank_order
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity


def plan_launch(request: LaunchRequest, facts: Mapping[str, NodeFacts], identity: RunIdentity) -> Plan:
    """The plan. Same input, same plan: clock, user and run id come in by `identity`.

    Raises `PreflightError` where the facts forbid the run, `ConfigError` where the request contradicts itself.
    """
    order = rank_order(request.nodes, facts, request.master)
    first = facts[order[0].name]
    port, note = choose_port(first, request.master_port)
    backend = backend_of([device_of(node, facts[node.name]) for node in order])
    world_size = sum(nproc_of(node, facts[node.name]) for node in order)
    nodes, first_rank = [], 0
    for node_rank, node in enumerate(order):
        own = facts[node.name]
        seat = Seat(
            node_rank=node_rank,
            first_rank=first_rank,
            nproc_per_node=nproc_of(node, own),
            device=device_of(node, own),
            interface=interface_of(node, own, [facts[peer.name] for peer in order]),
            nnodes=len(order),
            world_size=world_size,
            master=order[0].name,
            master_addr=first.address,
            master_port=port,
            backend=backend,
        )
        nodes.append(plan_node(request, identity, node, own, seat))
        first_rank += seat.nproc_per_node
    return Plan(
        run_id=identity.run_id,
        project=request.project,
        attempt=identity.attempt,
        user=identity.user,
        started_at=identity.started_at,
        backend=backend,
        master=order[0].name,
        master_addr=first.address,
        master_port=port,
        nnodes=len(order),
        world_size=world_size,
        command=request.command,
        environment=request.environment,
        mounts=request.mounts,
        data_digest=request.data_digest,
        own_code=request.own_code,
        nodes=tuple(nodes),
        notes=tuple(_notes(order, facts, note)),
    )


def _notes(order: tuple[NodeSpec, ...], facts: Mapping[str, NodeFacts], port_note: str) -> Iterator[str]:
    if port_note:
        yield port_note
    assumed = [node.name for node in order if facts[node.name].assumed]
    if assumed:
        yield f"not asked, so the inventory's word is taken: {', '.join(assumed)}"
    devices = {device_of(node, facts[node.name]) for node in order}
    if len(devices) > 1:
        yield "nodes with and without GPU in one run: gloo serves both"
    for node in order:
        cpus = facts[node.name].cpus
        if cpus and node.limits.cpus > cpus:
            yield f"{node.name} has {cpus} CPUs, fewer than its limit of {node.limits.cpus:g}"
