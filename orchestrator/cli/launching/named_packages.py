"""Packages that a project names: in its requirements, with the files that they include, and in its own Dockerfile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contract.import_names import package_of
from orchestrator.plan.packages import REQUIREMENTS, included_in, named_in, pip_commands

if TYPE_CHECKING:
    from orchestrator.specs.request import LaunchRequest

MOST_FILES, MOST_BYTES = 50, 2_000_000
"""Files of requirements that are read, and the size of the largest."""


def own_requirements(request: LaunchRequest) -> Path | None:
    """Return the user's own requirements.txt, in the folder of the code; None where the inventory names a file."""
    file = (request.workdir or Path()) / REQUIREMENTS
    return file if request.workdir is not None and not request.requirements and file.is_file() else None


def named_packages(request: LaunchRequest) -> list[str]:
    """Return the packages that the project names: in its requirements with the files that they include, and in the
    commands of its Dockerfile."""
    dockerfile = Path(request.dockerfile) if request.dockerfile else None
    commands = pip_commands(_text(dockerfile)) if dockerfile else []
    lists = [dockerfile.parent / name for words in commands for name in included_in(words)] if dockerfile else []
    own = Path(request.requirements) if request.requirements else own_requirements(request)
    return [*names_of(own), *names_of(*lists), *(name for words in commands for name in named_in(words))]


def names_of(*files: Path | None) -> list[str]:
    """Return the packages that files of requirements name, and those that they include."""
    waiting, read, names = [file for file in files if file], set[Path](), list[str]()
    while waiting and len(read) < MOST_FILES:
        file = waiting.pop(0)
        if file in read or file.suffix == ".toml":
            continue
        read.add(file)
        text = _text(file)
        names += named_in(text)
        waiting += [file.parent / name for name in included_in(text)]
    return names


def _text(file: Path) -> str:
    """Text of a file; empty where it is none or too large: the build will say so."""
    try:
        return file.read_text("utf-8") if file.stat().st_size <= MOST_BYTES else ""
    except (OSError, ValueError):
        return ""


def is_named(module: str, named: Sequence[str]) -> bool:
    """Return whether one of these packages brings the module."""
    return package_of(module, named) in named
