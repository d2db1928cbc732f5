"""The interface to a scheduler: submit a run as one job, find its attempts, read their lines, stop and forget it.

A run on a cluster is what its folder on the shared storage says (who submitted it, which nodes each attempt had, how it
ended); the scheduler adds what only it knows while it knows it: whether a job waits, and for what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.nodes.interface import Completed, LogLine
from orchestrator.specs import labels
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run import State as RunState


@dataclass(frozen=True, kw_only=True)
class CarriedAttempt:
    """One attempt of a run on a cluster: one life of its job."""

    run_id: str
    attempt: int
    job: str
    restart: int
    """Number of times that the scheduler had queued the job again before this life."""
    labels: Mapping[str, str]
    """Labels of the run, as its containers on machines have them; without those of one node."""
    nnodes: int
    names: tuple[str, ...] = ()
    """Nodes in order of node_rank; empty until the agents have bound them."""
    addresses: tuple[str, ...] = ()
    bound_at: str = ""
    """ISO 8601 with zone."""
    status: str
    """`queued`, `running`, `exited`, `stopped`, or `dead`: it is over, and left no exit code."""
    exit_code: int | None = None
    oom_killed: bool = False
    reason: str = ""
    """Reason why it waits, or how the scheduler ended it."""

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "running")

    def container(self, rank: int) -> ContainerFacts:
        """The part of one node."""
        nproc = int(self.labels.get(labels.LABEL_NPROC, "1"))
        own = {
            labels.LABEL_ATTEMPT: str(self.attempt),
            labels.LABEL_NODE_RANK: str(rank),
            labels.LABEL_FIRST_RANK: str(rank * nproc),
            labels.LABEL_NNODES: str(self.nnodes),
            **({labels.LABEL_NODE: self.names[rank], labels.LABEL_MASTER: self.names[0]} if self.names else {}),
        }
        return ContainerFacts(
            id=f"{self.job}_{self.restart}_{rank}",
            name=f"job {self.job}",
            image="",
            labels={**self.labels, **own},
            status=self.status,
            exit_code=self.exit_code,
            oom_killed=self.oom_killed,
            started_at=self.bound_at,
            error=self.reason,
            restarts=self.restart,
        )

    @property
    def state(self) -> RunState:
        return self.container(0).state


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Everything that a cluster holds of runs."""

    attempts: tuple[CarriedAttempt, ...] = ()
    """Attempts in order of run and number."""
    silence: str = ""
    """Reason why the scheduler did not answer: attempts without a recorded end are left out then."""
    strange: tuple[str, ...] = ()
    """Files that no run of orch has written so."""

    def newest(self, run_id: str) -> CarriedAttempt | None:
        found = [one for one in self.attempts if one.run_id == run_id]
        return max(found, key=lambda one: (one.attempt, int(one.job), one.restart), default=None)


class Carrier(Protocol):
    """A cluster's scheduler, reached through its login node. Every method raises as `Node.run` does."""

    @property
    def name(self) -> str: ...

    def submit(self, run_folder: str, attempt: int, script: str, labels: Mapping[str, str]) -> str:
        """Submit a batch script as this attempt of the run with this folder; the id of its job."""

    def runs(self, run_id: str = "", *, fresh: bool = False) -> Carried:
        """The runs of this user's project; `run_id`: one that is wanted although it was forgotten. An answer that is
        younger than a second is given again, unless `fresh`."""

    def lines(
        self, attempt: CarriedAttempt, rank: int, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        """Lines of one node, oldest first; with `follow`, until the attempt is over. `since` and `tail`: as in
        `Engine.logs`."""

    def stop(self, attempt: CarriedAttempt, timeout_s: float) -> None:
        """Ask the agents to stop; cancel the job if it has not ended after `timeout_s`, or if it waits in the queue."""

    def forget(self, attempt: CarriedAttempt) -> None:
        """Cancel the job if it has not ended, and show its run no more. Its folder stays."""

    def execute(self, attempt: CarriedAttempt, rank: int, argv: Sequence[str]) -> Completed:
        """Run a command on one node of a running job, beside its ranks."""
