"""Choices for the nodes of a run: node_rank, nproc_per_node, device, backend, interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.specs.errors import ConfigError, PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_CUDA


def rank_order(nodes: Sequence[NodeSpec], facts: Mapping[str, NodeFacts], master: str) -> tuple[NodeSpec, ...]:
    """Nodes by node_rank: the master first, then the inventory's order.

    The master is the one asked for; else the holder of the newest checkpoint, so that a resumed run finds it; else the
    first of the inventory.
    """
    names = [node.name for node in nodes]
    if master and master not in names:
        raise ConfigError(f"--master {master} is not among the nodes of this run: {', '.join(names)}")
    steps = {name: facts[name].newest_checkpoint for name in names}
    holders = [name for name in names if steps[name] is not None]
    newest = max(holders, key=lambda name: steps[name] or 0, default=names[0])
    first = master or newest
    return tuple(sorted(nodes, key=lambda node: node.name != first))


def device_of(node: NodeSpec, facts: NodeFacts) -> str:
    """`cuda` where the inventory says so, or leaves it open and the node shows a GPU."""
    if node.device == "cuda" and not facts.gpus and not facts.assumed:
        raise PreflightError(
            "the inventory says device: cuda, but nvidia-smi shows no GPU", node=node.name, hint="orch check-gpus"
        )
    return "cuda" if node.device == "cuda" or (node.device == "auto" and facts.gpus) else "cpu"


def nproc_of(node: NodeSpec, facts: NodeFacts) -> int:
    """Ranks on this node: what the inventory says, else one for each GPU, else one."""
    gpus = len(facts.gpus) if device_of(node, facts) == "cuda" else 0
    if not isinstance(node.nproc_per_node, int):
        return max(1, gpus)
    if 0 < gpus < node.nproc_per_node:
        raise PreflightError(
            f"the inventory says nproc_per_node: {node.nproc_per_node}, but nvidia-smi shows {gpus}"
            f" GPU{'s' * (gpus > 1)}: at most one rank for each",
            node=node.name,
            hint=f"in the inventory: nproc_per_node: {gpus} (or auto) at {node.name}",
        )
    return node.nproc_per_node


def backend_of(nodes: Sequence[NodeSpec], facts: Sequence[NodeFacts]) -> str:
    """One backend serves all ranks: nccl only if all of them have CUDA, and the same build of it, so the same NCCL."""
    builds = {own.image.labels.get(LABEL_CUDA, "") for own in facts if own.image} - {""}
    all_cuda = all(device_of(node, own) == "cuda" for node, own in zip(nodes, facts, strict=True))
    return "nccl" if nodes and all_cuda and len(builds) <= 1 else "gloo"


def interface_of(node: NodeSpec, facts: NodeFacts, peers: Sequence[NodeFacts]) -> str:
    """The interface that carries this node's traffic to its peers: as in the inventory, otherwise by route.

    Guessing by name failed others twice in both directions (ray-project/ray#28633, #30333, #31824, #42652). Empty where
    the node was not asked.
    """
    if node.interface:
        return node.interface
    if facts.assumed:
        return ""
    # The route to a peer is unknown where its name has no address (`--dry-run`).
    others = [
        peer.address
        for peer in peers
        if peer.name != node.name
        and not (peer.assumed and peer.address not in facts.routes and not peer.address.startswith("127."))
    ]
    if not others and len(peers) > 1:
        return ""
    if not others or all(address.startswith("127.") for address in others):
        return "lo"
    used = {facts.routes[address].interface for address in others if address in facts.routes}
    unknown = [address for address in others if address not in facts.routes]
    if unknown:
        raise PreflightError(
            f"it knows no way to {', '.join(unknown)}", node=node.name, hint=f"on it, try: ip route get {unknown[0]}"
        )
    if len(used) > 1:
        ways = ", ".join(f"{address} by {facts.routes[address].interface}" for address in others)
        raise PreflightError(
            f"it reaches its peers by different interfaces ({ways}); gloo and NCCL use one",
            node=node.name,
            hint=f"choose one in the inventory: nodes.{node.name}.interface",
        )
    return used.pop()
