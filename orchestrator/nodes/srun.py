"""A node of a Slurm allocation as a `Node`: its commands are steps beside the job, started by srun."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.nodes.cluster_nodes import JobEngine, Roster
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Completed, Node, resolved
from orchestrator.nodes.slurm import SlurmCarrier
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError
from orchestrator.specs.facts import EngineFacts
from orchestrator.specs.numbers import whole
from orchestrator.specs.run import ContainerFacts

_LOST = re.compile(
    r"srun: (?:error: )?(?:.*(?:Unable to (?:confirm allocation|create step|allocate)|Invalid job id|has been revoked"
    r"|already completing|Unable to contact slurm).*|Force Terminated .*|.*Job step aborted.*)$",
    re.MULTILINE,
)
_ENDED = re.compile(r"^srun: error: \S+: task 0: .*\n?", re.MULTILINE)
"""Slurm's own line about a command that exited non-zero."""
_NOT_STARTED = re.compile(
    r"^slurmstepd\S*: error: execve\(\): .*?(?P<absent>No such file or directory)?$", re.MULTILINE
)
"""Slurm's line about a program that it could not start; its exit code is errno, a shell's is 127 or 126."""
_TORCH = r"""
import importlib.metadata as packages, json, os, platform
try:
    torch = packages.version("torch")
except packages.PackageNotFoundError:
    torch = ""
memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
print(json.dumps({"torch": torch, "machine": platform.machine(), "system": platform.platform(), "memory": memory}))
"""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A job that holds nodes of a cluster."""

    carrier: SlurmCarrier
    job: str
    names: tuple[str, ...]

    def nodes(self) -> tuple[SrunNode, ...]:
        """Its nodes in Slurm's order. Nothing is asked yet."""
        return tuple(SrunNode(self, name, self._address(name)) for name in self.names)

    def _address(self, name: str) -> str:
        """IPv4 address by the login node's resolver; the name itself where it has none."""
        answer = self.carrier.login.run(["getent", "ahostsv4", name])
        found = re.match(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b", answer.stdout) if answer.exit_code == 0 else None
        return found.group() if found else name


class SrunNode:
    """One node of an allocation. Files are those of the shared storage, read and written on the login node."""

    def __init__(self, allocation: Allocation, name: str, address: str) -> None:
        self.name, self.host, self._allocation = name, address, allocation
        self.engine = NoContainers(self)

    @property
    def carrier(self) -> SlurmCarrier:
        return self._allocation.carrier

    @property
    def address(self) -> str:
        return resolved(self.host, node=self.name)

    def open(self) -> None:
        self._login.open()

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        answer = self._login.run([*self._step(), *argv], stdin=stdin, timeout_s=timeout_s)
        if answer.exit_code and (lost := _LOST.search(answer.stderr)):
            raise self._lost(lost.group())
        code = answer.exit_code
        if code and (refused := _NOT_STARTED.search(answer.stderr)):
            code = 127 if refused["absent"] else 126
        stderr = _ENDED.sub("", answer.stderr) if answer.exit_code else answer.stderr
        return replace(answer, node=self.name, exit_code=code, argv=tuple(argv), stderr=stderr)

    def stream(
        self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> Iterator[bytes]:
        try:
            yield from self._login.stream([*self._step(), *argv], stdin=stdin, timeout_s=timeout_s)
        except CommandFailedError as error:
            if lost := _LOST.search(error.message):
                raise self._lost(lost.group()) from error
            raise

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        self._login.put(source, target, only=only)

    def get(self, source: str, target: Path) -> None:
        self._login.get(source, target)

    def close(self) -> None:
        """Nothing: the connection is the login node's, which its owner closes."""

    @property
    def _login(self) -> Node:
        return self.carrier.login

    def _step(self) -> tuple[str, ...]:
        return (
            "srun", "--overlap", f"--jobid={self._allocation.job}", "--nodes=1", "--ntasks=1",
            f"--cpus-per-task={self.carrier.cluster.cpus}", "--mem=0", "--quiet", f"--nodelist={self.name}",
        )  # fmt: skip

    def _lost(self, output: str) -> NodeUnreachableError:
        job = self._allocation.job
        return NodeUnreachableError(
            f"job {job}, which holds the node, no longer runs: {output.removeprefix('srun: ').removeprefix('error: ')}",
            node=self.name,
            hint=self.carrier.on_login(f"scontrol show job {job}"),
        )


class NoContainers(JobEngine):
    """The engine of a node whose ranks are processes of the cluster's Python."""

    def __init__(self, node: SrunNode) -> None:
        super().__init__(Roster(node.carrier, ()), node.name)
        self._on = node

    def facts(self) -> EngineFacts:
        """Facts of the node; the version is that of torch, which replaces the image; empty if not installed."""
        cluster = self._on.carrier.cluster
        answer = self._on.run([cluster.python, "-c", _TORCH])
        text = answer.check(f"asking {cluster.python} for torch", hint=f"`python:` of cluster {cluster.name}")
        try:
            found = {key: str(value)[:200] for key, value in json.loads(text.strip().rpartition("\n")[2]).items()}
            return EngineFacts(
                kind="process", version=found["torch"], id=f"slurm:{self._on.name}", architecture=found["machine"],
                operating_system=found["system"], cpus=cluster.cpus, memory_mib=whole(found["memory"]) or 0,
            )  # fmt: skip
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            raise CommandFailedError(f"{cluster.python} gave no facts: {text[:80]!r}", node=self._on.name) from error

    def containers(self, labels: Mapping[str, str]) -> list[ContainerFacts]:  # noqa: ARG002  # of the interface
        return []
