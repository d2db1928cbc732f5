"""Names of files in a run's folder on a node that both sides know."""

from __future__ import annotations

import re

AGENTS_TOKEN = "agents.token"  # noqa: S105  # the name of a file
"""File with the token that the agents of an attempt prove to have; new for each attempt, mode 0600."""
PROGRESSED = "progressed"
"""File with `JOB.RESTART` of the newest life of a job that has written a checkpoint beyond the one it began with: only
such a life is followed by another when its time is over."""
STOPPED = "stopped"
"""File that `orch stop` writes: no agent begins to train while it is there. A user's resume removes it."""
ATTEMPTS = "attempts"
"""Folder with a folder for each attempt of the run that was begun, named by its number."""
LEFT = "left"
"""File with `JOB.RESTART CODE`: the exit code with which the agent of rank 0 has ended in a job."""
COPIED = "copied-files.json"
"""File with the result files that were copied from another node: such a file may be replaced by a newer one."""
CODE_FOLDER = "code"
"""Folder with the user's code; a script starts in it."""

_OWN_FOLDERS = frozenset({"attempts", "checkpoints", "profile", "ranks", "secrets", "stopped", "tensorboard"})
_OWN_FILES = re.compile(
    r"agents\.token|progressed|left|stopped.*|best\.json|metrics\.jsonl|memory\.json|copied-files\.json|code-.*\.list"
    r"|(?:over|place)-.*\.json|resources-.*\.jsonl"
)


def place_file(attempt: int) -> str:
    """Name of the file with the nodes that a scheduler gave to this attempt."""
    return f"place-{attempt}.json"


def is_own_file(path: str) -> bool:
    """Return whether a path in the run's folder is one of this project's, not of the user's script."""
    first, _, rest = path.partition("/")
    return first in _OWN_FOLDERS if rest else first in _OWN_FOLDERS or _OWN_FILES.fullmatch(first) is not None
