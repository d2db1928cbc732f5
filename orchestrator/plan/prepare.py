"""The container that prepares training data on the controller, once, for all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.plan.command import CONTAINER_WORKSPACE
from orchestrator.specs.plan import ContainerSpec, Mount

SOURCES = f"{CONTAINER_WORKSPACE}/sources"
NAMED_SOURCES = ("spanish",)
"""Texts that the trainer fetches itself; anything else is a file or folder of the user's."""


def prepare_container(
    *,
    image: str,
    texts: Sequence[str],
    data_dir: str,
    user: str,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> ContainerSpec:
    """`texts` are names the trainer knows or absolute paths, which it gets to see read-only."""
    inside_data = f"{CONTAINER_WORKSPACE}/Data"  # absolute, so that a process in place of a container finds it too
    words, mounts = list[str](), [Mount(source=data_dir, target=inside_data)]
    for number, text in enumerate(texts):
        if text in NAMED_SOURCES:
            words += ["--text", text]
            continue
        inside = f"{SOURCES}/{number}/{text.rstrip('/').rpartition('/')[2]}"
        mounts.append(Mount(source=text, target=inside, read_only=True))
        words += ["--text", inside]
    return ContainerSpec(
        name="orch-prepare",
        image=image,
        command=("python", "-m", "trainer", "gpt2", "prepare", *words, "--data-dir", inside_data, *options),
        environment=environment,
        labels={"orch.purpose": "prepare"},
        mounts=tuple(mounts),
        user=user,
    )
