"""A run, read from the labels of its containers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""A name, and so no way out of a folder: ids come from labels and plans of other machines."""


def short_id(container: str) -> str:
    """The first characters of a container's id, fit for the name of a file: a record names it so."""
    return re.sub(r"[^\w-]", "-", container[:12], flags=re.ASCII)


class State(StrEnum):
    """State of a container, and of a run by its worst member."""

    CREATED = "created"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """The node does not answer, or holds no container where the run's labels say there is one."""
    QUEUED = "queued"
    """A job that its scheduler has not started yet, or will start again."""
    STOPPED = "stopped"
    """A job whose ranks were asked to stop, and did."""


ACTIVE = (State.RUNNING, State.CREATED, State.QUEUED)
"""States of a container that has not ended."""


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """One container as its engine reports it."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str]
    status: str
    """Docker's own word: created, running, restarting, exited, dead; of a job also queued, stopped."""
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: str = ""
    finished_at: str = ""
    error: str = ""
    restarts: int = 0

    @property
    def state(self) -> State:
        """Docker's status and exit code in one word."""
        if self.status in ("running", "restarting", "paused"):
            return State.RUNNING
        if self.status in ("created", "queued", "stopped"):
            return State(self.status)
        return State.SUCCEEDED if self.exit_code == 0 else State.FAILED


@dataclass(frozen=True, kw_only=True)
class Member:
    """One node's part of a run; `container` is None where the node is lost."""

    node: str
    node_rank: int
    state: State
    container: ContainerFacts | None = None
    reason: str = ""
    out_of_reach: bool = False
    """True if it may be on a node that did not answer."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, put together from all nodes that answered."""

    run_id: str
    project: str
    attempt: int
    user: str
    started_at: str
    nnodes: int
    command: str
    master: str
    members: tuple[Member, ...]
    """Members of the current attempt: of the one on record, otherwise of the one that most nodes show."""
    earlier: tuple[tuple[int, Member], ...] = ()
    """Containers of earlier attempts, each with its attempt."""
    foreign: tuple[tuple[int, Member], ...] = ()
    """Containers with the run's label that are no part of it, each with its attempt: of a later attempt that few nodes
    show, or with another claim. They count for nothing but a stop."""

    @property
    def state(self) -> State:
        """State of the worst member; a group without members is lost, not successful."""
        states = {member.state for member in self.members}
        for worst in (State.FAILED, State.LOST, State.RUNNING, State.CREATED, State.QUEUED, State.STOPPED):
            if worst in states:
                return worst
        return State.SUCCEEDED if states else State.LOST

    @property
    def is_going(self) -> bool:
        """True if a container of the run is running, was created, or waits in the queue of a scheduler."""
        return any(member.state in ACTIVE for member in self.members)

    @property
    def containers(self) -> tuple[Member, ...]:
        """Members of all attempts that have a container."""
        others = (member for _, member in (*self.earlier, *self.foreign))
        return tuple(member for member in (*self.members, *others) if member.container is not None)

    @property
    def active_nodes(self) -> tuple[str, ...]:
        """Nodes with a container of the run that has not ended, of whatever attempt."""
        return tuple(dict.fromkeys(member.node for member in self.containers if member.state in ACTIVE))

    @property
    def half_launched(self) -> bool:
        """True if a launch was interrupted or is in progress: a container is missing, or created and not started."""
        states = {member.state for member in self.members}
        is_incomplete = any(member.container is None and not member.out_of_reach for member in self.members)
        return State.CREATED in states or (State.RUNNING in states and is_incomplete)
