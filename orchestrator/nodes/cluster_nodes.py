"""A cluster as nodes: the login node, and each compute node that a run was given.

Every command that asks machines about a run (status, logs, why, wait, stop) asks these: what a container is on a
machine, one node's part of a job is here. Files are those of the shared storage, through the login node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from orchestrator.nodes.carrier import Carried, CarriedAttempt
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Completed, LogLine, Node
from orchestrator.nodes.processes.engine import WithoutImages
from orchestrator.nodes.slurm import POLL_S, SlurmCarrier
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import EngineFacts
from orchestrator.specs.run import ContainerFacts, State

Held = tuple[CarriedAttempt, int]
"""An attempt and one of its node ranks."""


class Roster:
    """The nodes of a cluster that one command talks to, and the part of a job that each of them shows.

    A part stays with the node that showed it first, also when its job gets its nodes meanwhile. What no node of the
    roster has, such as a job that was started again on other nodes, the login node shows.
    """

    def __init__(self, carrier: SlurmCarrier, names: Sequence[str], run_id: str = "") -> None:
        """`run_id`: a run that is shown although it was forgotten."""
        self.carrier = carrier
        self._names, self._run_id = frozenset(names), run_id
        self._owners: dict[str, str] = {}

    def held_by(self, node: str) -> tuple[Carried, list[Held]]:
        known, held = self.carrier.runs(self._run_id), list[Held]()
        for attempt in known.attempts:
            for rank in range(attempt.nnodes):
                name = node_name(self.carrier.name, attempt, rank)
                owner = name if name in self._names else self.carrier.name
                if self._owners.setdefault(attempt.container(rank).id, owner) == node:
                    held.append((attempt, rank))
        return known, held


class JobEngine(WithoutImages):
    """The parts of jobs on one node, as an `Engine` shows containers. A scheduler starts them, so `create` refuses."""

    def __init__(self, roster: Roster, node: str) -> None:
        super().__init__(node)
        self._roster, self._carrier = roster, roster.carrier

    def facts(self) -> EngineFacts:
        return EngineFacts(kind="slurm", version="", id=f"slurm:{self._carrier.name}", architecture="")

    def create(self, spec: ContainerSpec) -> str:
        self._refuse(f"create {spec.name}")

    def start(self, container: str) -> None:
        self._refuse(f"start {container}")

    def rename_and_keep(self, container: str, name: str) -> None:
        self._refuse(f"rename {container} to {name}")

    def disable_restart(self, container: str) -> None:
        self._refuse(f"change the restart policy of {container}")

    def container(self, container: str) -> ContainerFacts | None:
        return next((facts for facts in self.containers({}) if facts.id == container), None)

    def containers(self, labels: Mapping[str, str]) -> list[ContainerFacts]:
        known, held = self._roster.held_by(self._node)
        if known.silence and self._node == self._carrier.name:
            raise self._carrier.silent(known)
        shown = [attempt.container(rank) for attempt, rank in held]
        return [
            facts
            for facts in shown
            if all(key in facts.labels and value in ("", facts.labels[key]) for key, value in labels.items())
        ]

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        return self._carrier.lines(*self._held(container), follow=follow, since=since, tail=tail)

    def wait(self, container: str) -> ContainerFacts:
        while True:
            facts = self.container(container)
            if facts is None:
                raise EngineError(f"job {container} was forgotten while it was waited for", node=self._node)
            if facts.state not in (State.RUNNING, State.QUEUED):
                return facts
            self._carrier.rest(POLL_S)

    def signal(self, container: str, signal: str) -> None:
        self._refuse(f"send {signal} to {container}")

    def stop(self, container: str, timeout_s: int) -> None:
        facts = self.container(container)
        if facts and facts.state in (State.RUNNING, State.QUEUED):
            self._carrier.stop(self._held(container)[0], timeout_s)

    def remove(self, container: str) -> None:
        if self.container(container):
            self._carrier.forget(self._held(container)[0])

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        return self._carrier.execute(*self._held(container), argv)

    def run_once(self, spec: ContainerSpec, *, timeout_s: float = 60.0) -> Completed:  # noqa: ARG002  # of the interface
        self._refuse(f"run {spec.name}")

    def _held(self, container: str) -> Held:
        for attempt, rank in self._roster.held_by(self._node)[1]:
            if attempt.container(rank).id == container:
                return attempt, rank
        raise EngineError(f"no job {container}", node=self._node)

    def _refuse(self, what: str) -> NoReturn:
        raise EngineError(
            f"cannot {what}: the scheduler of the cluster starts its jobs",
            node=self._node,
            hint=f"orch launch --on {self._carrier.name}",
        )


class ClusterNode:
    """The login node (`name` is the cluster's), or a compute node of a run: commands and files are the login node's."""

    def __init__(self, carrier: SlurmCarrier, name: str, engine: JobEngine, address: str = "") -> None:
        self.name, self.engine = name, engine
        self._carrier, self._address = carrier, address

    @property
    def carrier(self) -> SlurmCarrier:
        return self._carrier

    @property
    def address(self) -> str:
        return self._address or self._carrier.login.address

    def open(self) -> None:
        self._carrier.login.open()

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        return self._carrier.login.run(argv, stdin=stdin, timeout_s=timeout_s)

    def stream(
        self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> Iterator[bytes]:
        return self._carrier.login.stream(argv, stdin=stdin, timeout_s=timeout_s)

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        self._carrier.login.put(source, target, only=only)

    def get(self, source: str, target: Path) -> None:
        self._carrier.login.get(source, target)

    def close(self) -> None:
        self._carrier.login.close()


def node_name(cluster: str, attempt: CarriedAttempt, rank: int) -> str:
    """Name of a node of an attempt: the scheduler's, or one by its rank while the job has none."""
    return attempt.names[rank] if attempt.names else f"{cluster}-{rank}"


def cluster_of(node: Node) -> str:
    """The cluster that shows this node; empty for a machine of the inventory."""
    return node.carrier.name if isinstance(node, ClusterNode) else ""


def lone_login(carrier: SlurmCarrier) -> Node:
    """The login node of a cluster whose runs are not known."""
    return _login(Roster(carrier, ()))


def _login(roster: Roster) -> Node:
    carrier = roster.carrier
    return ClusterNode(carrier, carrier.name, JobEngine(roster, carrier.name))


def nodes_of(carrier: SlurmCarrier, *, run_id: str = "", taken: Sequence[str] = ()) -> list[Node]:
    """The login node, then the nodes of the cluster's runs. A name in `taken` is a machine of the inventory's: what has
    the same name on the cluster is shown by the login node."""
    known = carrier.runs(run_id)
    addresses = {
        node_name(carrier.name, one, rank): one.addresses[rank] if one.addresses else ""
        for one in known.attempts
        for rank in range(one.nnodes)
    }
    names = [name for name in addresses if name not in taken]
    roster = Roster(carrier, names, run_id)
    return [_login(roster), *(ClusterNode(carrier, name, JobEngine(roster, name), addresses[name]) for name in names)]
