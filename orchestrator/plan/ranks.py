"""Ranks of a run: node_rank, nproc_per_node, device, backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.specs.errors import ConfigError, PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec


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


def backend_of(devices: Sequence[str]) -> str:
    """One backend serves all ranks: nccl only where every one of them has CUDA."""
    return "nccl" if devices and all(device == "cuda" for device in devices) else "gloo"
