"""Conditions of a run: the closed list of what people may want to act upon, or to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

Severity = Literal["ok", "info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "info", "warning", "error")
"""Severities from the least to the most severe: "nothing is wrong" is one of the first two."""


class Code(StrEnum):
    """Code of a condition: the closed list. Words for people stand in one place elsewhere."""

    RANK_STUCK = "rank_stuck"
    """Ranks make no progress and are the cause: stopped, blocked in the kernel, idle."""
    RUN_BLOCKED = "run_blocked"
    """All wait for one another, and it cannot end by itself: a deadlock, the network, a rank that has ended."""
    WAITING_FOR_RANK = "waiting_for_rank"
    """Ranks wait for others that work: an evaluation, a checkpoint, an import."""
    QUIET = "quiet"
    """No progress, without a fault: all sleep."""
    NO_EXCHANGE = "no_exchange"
    """The ranks exchange no gradients: each trains its own model."""
    LOSS_NOT_FINITE = "loss_not_finite"
    NODE_SILENT = "node_silent"
    """No answer to this computer."""
    NODE_ABSENT = "node_absent"
    """The coordinator waits for it before a start."""
    PEER_SILENT = "peer_silent"
    """No message to the coordinator."""
    CONTAINER_FAILED = "container_failed"
    CONTAINER_MISSING = "container_missing"
    """The node answers, and has no container of the run."""
    SLOW_COMPUTE = "slow_compute"
    SLOW_LINK = "slow_link"
    SLOW_DATA = "slow_data"
    THROTTLED = "throttled"
    SWAPPING = "swapping"
    RESTARTED = "restarted"
    STILL_RUNNING = "still_running"
    """The run has ended, and containers of it run: on nodes that did not answer then."""
    FOREIGN_CONTAINER = "foreign_container"
    """A container with the run's label that is no part of it."""
    UNREPORTED_CHECKPOINT = "unreported_checkpoint"
    """A node other than the leading rank's reports a checkpoint: it does not count."""
    SUPERSEDED = "superseded"
    """Most nodes show a later attempt than the recorded one."""
    DATA_DAMAGED = "data_damaged"
    """Files of a node's copy of the data are not what was sent."""
    LINES_NOT_STORED = "lines_not_stored"
    NO_SUPERVISOR = "no_supervisor"
    """No process of this computer, which has launched the run, supervises it."""
    NO_RECORD = "no_record"
    """All that is known is what nodes report: the run has no record on this computer."""


BESIDE_THE_RECORD = (Code.NO_RECORD, Code.FOREIGN_CONTAINER, Code.SUPERSEDED, Code.STILL_RUNNING)
"""Conditions about what nodes show, and the record on this computer does not know or has ended."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One thing about a run that people may want to act upon, or to know."""

    code: Code
    severity: Severity
    node: str = ""
    """Empty: about the run."""
    rank: int | None = None
    since: float | None = None
    """Seconds since 1970."""
    values: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))
    """Figures for its sentence, and text of nodes, which is to be made printable. Of a decision on liveness: `rule`,
    `text`, `fix`, `seconds`, `ranks` and `nodes` with commas."""
