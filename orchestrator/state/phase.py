"""Phase of a run."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Phase of a run: the words on every screen, in JSON and in the record."""

    QUEUED = "queued"
    """A job that its scheduler has not started yet."""
    LAUNCHING = "launching"
    """Claimed, and its containers are being made."""
    STARTING = "starting"
    """Containers run, and no rank has started yet."""
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    """A stop was requested, and a container has not ended yet."""
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """No node that has a part of the run answers."""
    UNKNOWN = "unknown"
    """Its end was not seen from here."""

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended, as far as is known."""
        return self in ACTIVE_PHASES


ACTIVE_PHASES = (Phase.QUEUED, Phase.LAUNCHING, Phase.STARTING, Phase.RUNNING, Phase.RESTARTING, Phase.STOPPING)
