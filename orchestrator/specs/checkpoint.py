"""Checkpoints as nodes hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from contract.checkpoint import CheckpointFile, folder_name
from orchestrator.specs.run import RUN_ID


@dataclass(frozen=True, kw_only=True)
class CheckpointCopy:
    """One checkpoint on one node."""

    node: str
    run_id: str
    step: int
    folder: str
    """Absolute, on that node."""
    age_s: float
    """Seconds since it was written, by that node's clock."""
    parts: tuple[CheckpointFile, ...]
    """Files, the manifest last; none if the manifest is not valid."""
    problem: str = ""
    """Reason why it must not be loaded, as far as it was checked; empty for a sound one."""
    hashed: bool = False
    """True if every file's content was compared with the manifest, not its size alone."""
    best: bool = False
    """True if the run's best.json names it."""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(part.size for part in self.parts)

    @property
    def identity(self) -> tuple[int, str]:
        """The same for copies of one checkpoint: its step, and the hash of the manifest, which holds all others."""
        return self.step, self.parts[-1].sha256 if self.parts else ""

    @property
    def name(self) -> str:
        return folder_name(self.step)


def is_run_id(name: str) -> bool:
    """Return whether a folder of this name may be a run's, on this computer too."""
    return bool(re.fullmatch(RUN_ID, name))
