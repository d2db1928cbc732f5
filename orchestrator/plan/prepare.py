"""The container that prepares training data on the controller, once, for all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.plan.command import CONTAINER_DATA, CONTAINER_WORKSPACE
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.labels import LABEL_PURPOSE

NAME = "orch-prepare"
SOURCES = f"{CONTAINER_WORKSPACE}/sources"


@dataclass(frozen=True, kw_only=True)
class SourcePath:
    """A word of the command line that is a file or folder of the user's, by its absolute path."""

    path: str
    option: str = ""
    """Option in front of the path in the same word: `--images=`."""
    typed: str = ""
    """The path as the user wrote it."""


def prepare_container(
    *,
    image: str,
    workload: str,
    words: Sequence[str | SourcePath],
    data_dir: str,
    user: str,
    environment: Mapping[str, str],
) -> ContainerSpec:
    """`words` as for the trainer's `WORKLOAD prepare`; sources are seen read-only, under their own names."""
    inside_data = CONTAINER_DATA  # absolute, so that a process in place of a container finds it too
    inside, mounts = list[str](), [Mount(source=data_dir, target=inside_data)]
    for number, word in enumerate(words):
        if isinstance(word, SourcePath):
            target = f"{SOURCES}/{number}/{word.path.rstrip('/').rpartition('/')[2]}"
            mounts.append(Mount(source=word.path, target=target, read_only=True))
            inside.append(f"{word.option}{target}")
        else:
            inside.append(word)
    return ContainerSpec(
        name=NAME,
        image=image,
        command=("python", "-m", "trainer", workload, "prepare", *inside, "--data-dir", inside_data),
        environment=environment,
        labels={LABEL_PURPOSE: "prepare"},
        mounts=tuple(mounts),
        user=user,
    )


def user_paths(text: str, spec: ContainerSpec, data: Path, words: Sequence[str | SourcePath]) -> str:
    """Return output of the container with the paths that the user typed in place of those inside."""
    typed = {word.path: word.typed or word.path for word in words if isinstance(word, SourcePath)}
    for mount in sorted(spec.mounts, key=lambda mount: len(mount.target), reverse=True):
        shown = str(data) if mount.target == CONTAINER_DATA else typed.get(mount.source, mount.source)
        text = text.replace(mount.target, shown)
    return text
