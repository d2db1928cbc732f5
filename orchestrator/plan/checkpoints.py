"""Which checkpoints are meant, and which may go. Pure: what the nodes hold in, a choice out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.plan.command import CONTAINER_WORKSPACE
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import Limits
from orchestrator.specs.labels import LABEL_PURPOSE

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Checkpoints that a user wants to keep of a run."""

    newest: int
    """How many steps."""
    younger_than_s: float = 0.0
    """Checkpoints up to this age are kept, whatever their number."""


def run_meant(held: Iterable[CheckpointCopy], wanted: str) -> str:
    """The run of this id, else the one whose id begins so; where none is named, that of the youngest checkpoint."""
    every = sorted(held, key=lambda one: one.age_s)
    known = list(dict.fromkeys(one.run_id for one in every))
    matching = [wanted] if wanted in known else [run for run in known if run.startswith(wanted)]
    if not matching:
        said = f"of a run {wanted}" if wanted else "of any run"
        raise ConfigError(f"no node that answered holds a checkpoint {said}", hint="orch checkpoints ls")
    if wanted and len(matching) > 1:
        raise ConfigError(
            f"{len(matching)} runs begin with {wanted}: {', '.join(sorted(matching))}", hint="say more of its id"
        )
    return matching[0]


def candidates(held: Sequence[CheckpointCopy], step: int | None) -> list[list[CheckpointCopy]]:
    """Those of one run that may be used, by checkpoint, newest step first: each a list of its copies,
    in the order given.

    Of two that share a step and differ, the one written later comes first. With `step`, that one alone.
    """
    groups: dict[tuple[int, str], list[CheckpointCopy]] = {}
    for one in held:
        if not one.problem and step in (None, one.step):
            groups.setdefault(one.identity, []).append(one)
    return sorted(groups.values(), key=lambda group: (-group[0].step, min(one.age_s for one in group)))


def copies(held: Iterable[CheckpointCopy]) -> Mapping[tuple[int, str], int]:
    """On how many nodes each checkpoint lies, sound as far as was looked."""
    found: dict[tuple[int, str], set[str]] = {}
    for one in held:
        if not one.problem:
            found.setdefault(one.identity, set()).add(one.node)
    return {identity: len(nodes) for identity, nodes in found.items()}


def to_prune(held: Sequence[CheckpointCopy], keep: Keeping, newest_sound: int) -> list[CheckpointCopy]:
    """Copies of one run that may be deleted, from all its nodes.

    What stays: the newest `keep.newest` steps of which some node has a copy that looks sound, all above them (one that
    is damaged may be wanted for a look), the newest that was found sound, and the one that best.json names anywhere.
    """
    steps = sorted({one.step for one in held if not one.problem}, reverse=True)[: max(1, keep.newest)]
    lowest = min(steps, default=0)
    stays = {newest_sound, *(one.step for one in held if one.best)}
    return [one for one in held if one.step < lowest and one.step not in stays and one.age_s >= keep.younger_than_s]


def outlived(
    there: Sequence[CheckpointCopy], origin: Sequence[CheckpointCopy], copied: CheckpointCopy
) -> list[CheckpointCopy]:
    """Copies that a node need not keep now that it has `copied` too.

    It keeps as many as the node that they came from, and whatever that one has or best.json names.
    """
    wanted = {one.step for one in (*origin, copied)} | {one.step for one in there if one.best}
    newest = sorted({copied.step, *(one.step for one in there)}, reverse=True)[: len(origin)]
    return [one for one in there if one.step not in wanted and one.step not in newest]


def export_container(held: CheckpointCopy, *, image: str, user: str, limits: Limits, scratch: str) -> ContainerSpec:
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
        cpus=min(1.0, limits.cpus),
        memory_mib=limits.memory_mib,
        memory_reservation_mib=limits.memory_reservation_mib,
        shm_mib=limits.shm_mib,
    )


EXPORTED = "model.safetensors"
"""The file that a container writes; the user's own name for it stays here."""
