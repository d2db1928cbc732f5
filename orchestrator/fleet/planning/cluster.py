"""Request and facts of a run on a cluster: its nodes are alike, and have no names before the job starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.fleet.planning.request import build_request
from orchestrator.fleet.runs.code_files import agent_digest
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import probe
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import NodeUnreachableError, UsageError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import Inventory, Limits, NodeSpec
from orchestrator.specs.labels import MOST_NODES
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest

ADDRESS = "192.0.2.1"
"""Stands for an address that the agents look up when the job has started (RFC 5737: no machine has it)."""


def cluster_request(
    inventory: Inventory,
    cluster: ClusterSpec,
    options: LaunchOptions,
    earlier: Plan | None,
    own_environment: Mapping[str, str],
    notify: Callable[[str], object],
) -> LaunchRequest:
    """`build_request` for the nodes of a job. UsageError: `--nodes` is not a number."""
    machines = nodes_alike(cluster, _count(cluster, options, earlier))
    whole = inventory.model_copy(update={"nodes": machines, "image": inventory.image})
    image = options.image or (earlier.image if earlier else "") or cluster.image or ""
    names = ",".join(node.name for node in machines)
    own_image = image if cluster.container != "none" else ""
    asked = replace(options, nodes=names, image=own_image, given=options.given | {"image"})
    if cluster.container == "none" and options.image:
        raise UsageError(
            f"--image {options.image} needs containers, and cluster {cluster.name} has `container: none`",
            hint=f"in the inventory, at {cluster.name}: container: docker",
        )
    request = build_request(whole, asked, earlier, own_environment, notify)
    agent = request.agent_digest or (agent_digest() if cluster.container == "none" else "")
    return replace(request, cluster=cluster.name, agent_digest=agent)


def nodes_alike(cluster: ClusterSpec, count: int) -> tuple[NodeSpec, ...]:
    """The nodes of a job, named by their ranks until the scheduler names them."""
    gpus = cluster.gpus > 0
    own = {
        "address": ADDRESS,
        "engine": "process" if cluster.container == "none" else "docker",
        "device": "cuda" if gpus else "cpu",
        "nproc_per_node": cluster.gpus if gpus and cluster.nproc_per_node == "auto" else cluster.nproc_per_node,
        "workspace": cluster.workspace,
        "interface": cluster.interface,
        "limits": Limits.model_validate(
            {"cpus": float(cluster.cpus), **({"memory": f"{cluster.memory_mib}m"} if cluster.memory_mib else {})}
        ),
    }
    return tuple(NodeSpec.model_validate({"name": f"{cluster.name}-{rank}", **own}) for rank in range(count))


def cluster_facts(login: Node, cluster: ClusterSpec, request: LaunchRequest, *, assume: bool) -> NodeFacts:
    """Facts of a compute node: the user and the home are those of the login node. `assume`: a login node that does not
    answer is no error."""
    try:
        found = probe.ask(login, workspace=cluster.workspace, project=request.project)
    except NodeUnreachableError:
        if not assume:
            raise
        found = NodeFacts(name=cluster.name, address=ADDRESS)
    return NodeFacts(
        name=cluster.name,
        address=ADDRESS,
        uid=found.uid,
        gid=found.gid,
        home=found.home,
        cpus=cluster.cpus,
        memory_mib=cluster.memory_mib or 0,
        has_data=found.has_data,
        assumed=True,
    )


def _count(cluster: ClusterSpec, options: LaunchOptions, earlier: Plan | None) -> int:
    text = options.nodes or (str(len(earlier.nodes)) if earlier else "")
    if not text.isdecimal() or not 1 <= int(text) <= MOST_NODES:
        given = f"--nodes {text}" if text else "no --nodes"
        raise UsageError(
            f"{given}: on a cluster it is the number of nodes, from 1 to {MOST_NODES}",
            hint=f"--on {cluster.name} --nodes 2",
        )
    return int(text)
