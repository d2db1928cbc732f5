"""The files of the agent on this computer: copied to the nodes for an image that orch has not built."""

from __future__ import annotations

from pathlib import Path

from orchestrator.specs.image import OUR_PACKAGES

PACKAGES = Path(__file__).parents[3]
"""Folder of the agent's packages: the repository, or where they are installed with this one."""


def agent_entries() -> tuple[str, ...]:
    """Paths of folders and files, parents before what they hold."""
    found = [path for name in OUR_PACKAGES for path in (PACKAGES / name, *sorted((PACKAGES / name).rglob("*")))]
    return tuple(str(path.relative_to(PACKAGES)) for path in found if "__pycache__" not in path.parts)


def agent_names() -> tuple[str, ...]:
    """Paths of the files alone."""
    return tuple(entry for entry in agent_entries() if (PACKAGES / entry).is_file())
