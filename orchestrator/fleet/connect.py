"""Nodes of the inventory as connections."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from orchestrator.nodes.call_log import logged
from orchestrator.nodes.interface import Node
from orchestrator.nodes.processes.files import processes_folder
from orchestrator.specs.errors import OrchError
from orchestrator.specs.labels import LABEL_RUN
from orchestrator.specs.replaced import replaced
from orchestrator.store.run_names import matching
from orchestrator.store.run_record import RunRecord, known_records, records_meant

if TYPE_CHECKING:  # a command that reads a record alone needs neither the models of the inventory nor an engine
    from orchestrator.nodes.carrier import Carried, CarriedAttempt
    from orchestrator.nodes.slurm import SlurmCarrier
    from orchestrator.specs.cluster import ClusterSpec
    from orchestrator.specs.inventory import NodeSpec
    from orchestrator.specs.plan import Plan

    Holder = NodeSpec | ClusterSpec
    """A machine, or a cluster with a scheduler: both may hold runs."""


def connect(spec: NodeSpec) -> Node:
    """The node of this spec. Nothing is opened yet: the first use does that."""
    from orchestrator.nodes.local import LocalNode
    from orchestrator.nodes.processes.engine import ProcessEngine

    if spec.engine == "process":
        return LocalNode(spec.name, spec.address, ProcessEngine(spec.name))
    if spec.connection == "local":
        return LocalNode(spec.name, spec.address)
    from orchestrator.nodes.ssh import SshNode  # with paramiko, which no node on this computer needs

    return SshNode(spec)


def login_node(cluster: ClusterSpec) -> NodeSpec:
    """The login node of a cluster as a machine; its workspace is the shared storage."""
    from orchestrator.specs.cluster import LOCAL, login_words
    from orchestrator.specs.inventory import NodeSpec

    keys = {"name": cluster.name, "workspace": cluster.workspace}
    if cluster.login == LOCAL:
        return NodeSpec.model_validate({**keys, "address": "127.0.0.1", "connection": "local"})
    user, host, port = login_words(cluster.login)
    given = {"user": user, "port": port, "identity": cluster.identity, "jump": cluster.jump}
    return NodeSpec.model_validate({**keys, "address": host, **{key: one for key, one in given.items() if one}})


_connect: ContextVar[Callable[[NodeSpec], Node]] = ContextVar("connect", default=connect)


def connecting_by(other: Callable[[NodeSpec], Node]) -> AbstractContextManager[None]:
    """Let `connected` use `other` to make its nodes: tests pass fake machines."""
    return replaced(_connect, other)


@contextmanager
def connected_for(specs: Sequence[Holder], run: str | None) -> Iterator[tuple[Node, ...]]:
    """The nodes to ask about a run, or about the newest that this controller launched if none is named.

    A run of `orch launch --engine process` is held by processes of this computer: no machine is asked about it. A run
    of a cluster is held by that cluster alone, and any other run on record by machines.
    """
    meant = records_meant(run)
    wanted = run or next((record.run_id for record in meant), None)
    plans = [record.plan() for record in meant]
    if plans and (plan := plans[0]) and all(one and one.cluster == plan.cluster for one in plans):
        clusters, machines = clusters_of(specs), machines_of(specs)
        if run or clusters or not plan.cluster:  # who shows machines alone shows them beside a cluster's run, too
            specs = [spec for spec in clusters if spec.name == plan.cluster] if plan.cluster else machines
    if holders := holding(stand_ins(specs), wanted) if wanted else ():
        yield tuple(holders)
        return
    with connected(specs) as nodes:
        yield nodes


def holding(nodes: Sequence[Node], run: str) -> list[Node]:
    """Those with a container of a run with this id, this name, or an id that begins so."""
    shown = [[held.labels[LABEL_RUN] for held in node.engine.containers({LABEL_RUN: ""})] for node in nodes]
    meant = matching(run, (*(one for ids in shown for one in ids), *(one.run_id for one in known_records())))
    return [node for node, ids in zip(nodes, shown, strict=True) if any(one in meant for one in ids)]


def stand_ins(specs: Sequence[Holder]) -> list[Node]:
    """Nodes that hold a run and are processes of this computer, other than those that the inventory declares."""
    declared = {spec.name for spec in machines_of(specs) if spec.engine == "process"}
    folders = sorted(processes_folder().glob("*/"))
    if not folders:
        return []
    from orchestrator.nodes.local import LocalNode
    from orchestrator.nodes.processes.engine import ProcessEngine

    nodes = [LocalNode(folder.name, engine=ProcessEngine(folder.name)) for folder in folders]
    return [node for node in nodes if node.name not in declared and node.engine.containers({LABEL_RUN: ""})]


def others_here(holders: Sequence[Node], plan: Plan | None) -> list[Node]:
    """Stand-ins for the other nodes of a run whose nodes are all processes of this computer; none for any other run.
    They hold nothing of it any more."""
    from orchestrator.nodes.local import LocalNode
    from orchestrator.nodes.processes.engine import ProcessEngine

    if plan is None or not holders or not all(isinstance(node.engine, ProcessEngine) for node in holders):
        return []
    held = {node.name for node in holders}
    names = [part.node for part in plan.nodes if part.node not in held]
    return [LocalNode(name, engine=ProcessEngine(name)) for name in names]


FILES_PER_NODE, OTHER_FILES = 6, 256
"""Open files of a node: the connection, the user's ssh-agent, the log of its container; twice that."""


def allow_files(nodes: int) -> None:
    """Raise this process's limit of open files, usually 1,024, as far as so many nodes need and the system allows."""
    with suppress(ValueError, OSError):  # the first connection that does not fit says so
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OTHER_FILES + FILES_PER_NODE * nodes
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def connected(specs: Sequence[Holder]) -> Iterator[tuple[Node, ...]]:
    """Nodes in the order of the specs, closed at the end. After the machines come, for each cluster, its login node and
    the nodes of its runs; the login node alone where it does not answer."""
    machines = machines_of(specs)
    taken = [spec.name for spec in machines]
    nodes = list[Node]()
    allow_files(len(specs))
    try:
        nodes += (logged(_connect.get()(spec)) for spec in machines)
        for cluster in clusters_of(specs):
            nodes += map(logged, cluster_nodes(carrier_of(cluster), taken))
        yield tuple(nodes)
    finally:
        for node in nodes:
            node.close()


def machines_of(specs: Sequence[Holder]) -> list[NodeSpec]:
    """Those that are machines; their models are loaded where there are any."""
    if not specs:
        return []
    from orchestrator.specs.inventory import NodeSpec

    return [spec for spec in specs if isinstance(spec, NodeSpec)]


def clusters_of(specs: Sequence[Holder]) -> list[ClusterSpec]:
    """Those that are clusters."""
    if not specs:
        return []
    from orchestrator.specs.cluster import ClusterSpec

    return [spec for spec in specs if isinstance(spec, ClusterSpec)]


def carrier_of(cluster: ClusterSpec) -> SlurmCarrier:
    """The scheduler of a cluster. Nothing is opened yet."""
    from orchestrator.nodes.slurm import SlurmCarrier

    return SlurmCarrier(logged(_connect.get()(login_node(cluster))), cluster)


def cluster_nodes(carrier: SlurmCarrier, taken: Sequence[str] = (), run: str = "") -> list[Node]:
    """The login node and the nodes of the cluster's runs; plans on record get the names of their nodes."""
    from orchestrator.nodes.cluster_nodes import lone_login, nodes_of

    try:
        nodes = nodes_of(carrier, run_id=run, taken=taken)
    except OrchError:  # each question to the login node says so
        return [lone_login(carrier)]
    note_places(carrier.runs(run), carrier.name)
    return nodes


def note_places(known: Carried, cluster: str) -> None:
    """Write the nodes of the newest attempt of each run on record into its plan."""
    for run_id in {one.run_id for one in known.attempts}:
        newest, record = known.newest(run_id), RunRecord(run_id)
        plan = record.plan()
        if newest and plan and plan.cluster == cluster:
            note_place(record, plan, newest)


def note_place(record: RunRecord, plan: Plan, attempt: CarriedAttempt) -> Plan:
    """Return the plan with the nodes of this attempt, and keep it. Unchanged: they are known, or not chosen yet."""
    if not attempt.names or attempt.attempt < plan.attempt:
        return plan
    from orchestrator.plan.bound_nodes import bound_plan

    bound = bound_plan(plan, attempt.attempt, attempt.names, attempt.addresses, attempt.bound_at)
    if bound == plan:
        return plan
    record.rename_nodes(bound)
    return bound
