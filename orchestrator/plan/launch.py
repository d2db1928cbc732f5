"""The plan of a run from the request and the facts of the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from orchestrator.plan.container import Placement, plan_node
from orchestrator.plan.memory import fit_memory
from orchestrator.plan.ports import choose_ports
from orchestrator.plan.ranks import backend_of, device_of, interface_of, nproc_of, rank_order
from orchestrator.specs.container_limits import container_limits
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import Limits, NodeSpec
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity


def plan_launch(request: LaunchRequest, facts: Mapping[str, NodeFacts], identity: RunIdentity) -> Plan:
    """The plan. Same input, same plan: clock, user and run id are in `identity`.

    Raises `PreflightError` where the facts forbid the run, `ConfigError` where the request contradicts itself.
    """
    if request.cluster:  # its scheduler makes the attempts
        identity = replace(identity, claim="")
    order = rank_order(request.nodes, facts, request.master)
    request, memory_note = fit_memory(request, order, facts)
    first = facts[order[0].name]
    attempt = f"{identity.run_id}.{identity.attempt}"
    port, supervisor_port, note = choose_ports(first, request.master_port, attempt, exactly=request.exact_port)
    nodes = _node_plans(request, identity, [facts[node.name] for node in order], order, (port, supervisor_port))
    return Plan(
        **request.settings(),
        run_id=identity.run_id,
        project=request.project,
        attempt=identity.attempt,
        claim=identity.claim,
        resumes=identity.resumes,
        user=identity.user,
        started_at=identity.started_at,
        backend=backend_of(order, [facts[node.name] for node in order]),
        master=order[0].name,
        master_addr=first.address,
        master_port=port,
        supervisor_port=supervisor_port,
        nnodes=len(order),
        world_size=sum(part.nproc_per_node for part in nodes),
        command=request.command,
        attempt_options=request.attempt_options,
        data=request.data,
        own_code=request.own_code,
        code_digest=request.code_digest,
        code_origin=request.code_origin,
        one_computer=_is_one_computer([facts[node.name] for node in order]),
        cluster=request.cluster,
        agent_digest=request.agent_digest,
        away=request.away,
        nodes=nodes,
        notes=(
            *_of_nodes(request.cluster, order, facts, note),
            *([memory_note] if memory_note else []),
            *_of_request(request),
        ),
    )


def _node_plans(
    request: LaunchRequest,
    identity: RunIdentity,
    facts: Sequence[NodeFacts],
    order: Sequence[NodeSpec],
    ports: tuple[int, int],
) -> tuple[NodePlan, ...]:
    """Every node's part, in order of node_rank; `ports` are the master's and its supervisor's."""
    devices = [device_of(node, own) for node, own in zip(order, facts, strict=True)]
    nprocs = [nproc_of(node, own) for node, own in zip(order, facts, strict=True)]
    *first_ranks, world_size = accumulate(nprocs, initial=0)
    # Computed once, not for each node: they depend on all nodes.
    names, backend = tuple(each.name for each in order), backend_of(order, facts)
    parts = []
    for node_rank, (node, own) in enumerate(zip(order, facts, strict=True)):
        place = Placement(
            node_rank=node_rank,
            first_rank=first_ranks[node_rank],
            nproc_per_node=nprocs[node_rank],
            world_size=world_size,
            device=devices[node_rank],
            interface=interface_of(node, own, facts),
            names=names,
            master_addr=facts[0].address,
            master_port=ports[0],
            supervisor_port=ports[1],
            backend=backend,
            has_cpu_ranks="cpu" in devices,
        )
        parts.append(plan_node(request, identity, node, own, place))
    return tuple(parts)


def _is_one_computer(facts: Sequence[NodeFacts]) -> bool:
    """Return whether the nodes share a kernel; one node alone has no others to share it with."""
    return len(facts) > 1 and len({one.boot_id for one in facts}) == 1 and facts[0].boot_id != ""


def _of_nodes(
    cluster: str, order: tuple[NodeSpec, ...], facts: Mapping[str, NodeFacts], port_note: str
) -> Iterator[str]:
    if cluster:
        yield f"{cluster} names the nodes when the job starts; ranks and addresses are bound by the agents in it"
        return
    if port_note:
        yield port_note
    assumed = [node.name for node in order if facts[node.name].assumed]
    if assumed:
        yield f"not asked: {', '.join(assumed)}; their lines are a guess from the inventory (user id, interface, GPUs)"
    loopback = [node.name for node in order if facts[node.name].address.startswith("127.")]
    if 0 < len(loopback) < len(order):
        others = ", ".join(node.name for node in order if node.name not in loopback)
        yield f"{', '.join(loopback)}: the address 127.… leads {others} to themselves; write the one on the LAN"
    devices = {device_of(node, facts[node.name]) for node in order}
    if len(devices) > 1:
        yield "nodes with and without GPU in one run: gloo serves both"
    elif devices == {"cuda"} and backend_of(order, [facts[node.name] for node in order]) == "gloo":
        yield "images with different CUDA in one run, so with different NCCL: gloo serves both"
    for node in order:
        cpus, limit = facts[node.name].cpus, node.limits.cpus
        if cpus and limit and limit > cpus:
            yield f"{node.name} has {cpus} CPUs, fewer than its limit of {limit:g}"
    yield from _unused_cores(order, facts)


def _of_request(request: LaunchRequest) -> Iterator[str]:
    if request.hang_timeout_s:
        yield f"all ranks restart if they are stuck for {request.hang_timeout_s} s"
    for source in request.downloads:
        yield f"{source.text}: before the start, what is missing is downloaded on one node and copied to the others"
    parts = {name for one in request.data for name in one.parts}
    if lost := sorted(parts - {node.name for node in request.nodes}):
        yield f"the training samples of {', '.join(lost)} are not in this run; resume with --shard to divide all again"


def _unused_cores(order: Sequence[NodeSpec], facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """Nodes of which the inventory gives the run less than half, one line for those with the same numbers."""
    names: dict[tuple[float, int], list[str]] = {}
    for node in order:
        if node.limits.cpus and node.limits.cpus * 2 < facts[node.name].cpus:
            names.setdefault((node.limits.cpus, facts[node.name].cpus), []).append(node.name)
    for (limit, cpus), nodes in names.items():
        offered = container_limits(Limits(), cpus=cpus).cpus
        yield (
            f"{', '.join(nodes)}: {limit:g} of {cpus} cores;"
            f" to use {offered:g}, remove limits.cpus ({limit:g}) from the inventory"
        )
