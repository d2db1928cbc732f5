"""Choice of checkpoints: those of a run, those to use, those to delete. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from orchestrator.plan.command import CONTAINER_WORKSPACE
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.container_limits import ContainerLimits
from orchestrator.specs.labels import LABEL_PURPOSE

HOUR_S = 3600.0
EXPORTED = "model.safetensors"
"""The file that an export container writes, whatever name the user gives it."""


def candidates(held: Sequence[CheckpointCopy], step: int | None) -> list[list[CheckpointCopy]]:
    """Usable checkpoints of one run, newest step first: each a list of its copies, in the order given.

    Of two that share a step and differ, the one written later comes first. With `step`, only that step.
    """
    groups: dict[tuple[int, str], list[CheckpointCopy]] = {}
    for one in held:
        if not one.problem and step in (None, one.step):
            groups.setdefault(one.identity, []).append(one)
    return sorted(groups.values(), key=lambda group: (-group[0].step, min(one.age_s for one in group)))


def copies(held: Iterable[CheckpointCopy]) -> Mapping[tuple[int, str], int]:
    """Number of nodes with an intact copy, by checkpoint."""
    found: dict[tuple[int, str], set[str]] = {}
    for one in held:
        if not one.problem:
            found.setdefault(one.identity, set()).add(one.node)
    return {identity: len(nodes) for identity, nodes in found.items()}


def to_prune(
    held: Sequence[CheckpointCopy], newest_sound: int, *, keep: int, younger_than_s: float = 0.0
) -> list[CheckpointCopy]:
    """Copies of one run that may be deleted, from all its nodes.

    Kept: the newest `keep` steps with a copy that looks intact, all newer ones (a damaged one may be examined), copies
    younger than `younger_than_s`, the newest step that was verified, and the one that any best.json names.
    """
    steps = sorted({one.step for one in held if not one.problem}, reverse=True)[: max(1, keep)]
    lowest = min(steps, default=0)
    stays = {newest_sound, *(one.step for one in held if one.best)}
    return [one for one in held if one.step < lowest and one.step not in stays and one.age_s >= younger_than_s]


def outlived(
    there: Sequence[CheckpointCopy], origin: Sequence[CheckpointCopy], copied: CheckpointCopy
) -> list[CheckpointCopy]:
    """Copies that a node can delete now that it has `copied` too.

    It keeps as many as the node that they came from, all that this node has, and the one that best.json names.
    """
    wanted = {one.step for one in (*origin, copied)} | {one.step for one in there if one.best}
    newest = sorted({copied.step, *(one.step for one in there)}, reverse=True)[: len(origin)]
    return [one for one in there if one.step not in wanted and one.step not in newest]


def export_container(
    held: CheckpointCopy, *, image: str, user: str, limits: ContainerLimits, scratch: str
) -> ContainerSpec:
    """Container that turns a checkpoint into `scratch`/model.safetensors: it reads untrusted bytes, so it has no
    network and sees the checkpoint read-only."""
    source, out = f"{CONTAINER_WORKSPACE}/{held.name}", f"{CONTAINER_WORKSPACE}/out"
    return ContainerSpec(
        name=f"orch-export-{held.run_id}-{held.step}",
        image=image,
        command=("python", "-m", "trainer", "export", source, "--to", f"{out}/{EXPORTED}"),
        environment={},
        labels={LABEL_PURPOSE: "export"},
        mounts=(Mount(source=held.folder, target=source, read_only=True), Mount(source=scratch, target=out)),
        user=user,
        network="none",
        **asdict(replace(limits, cpus=min(1.0, limits.cpus))),
    )
