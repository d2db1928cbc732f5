"""Bring a checkpoint that lies with the controller to a node: the way back of `pull`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.fleet.checkpoints.copy import Notify, copy_checkpoint
from orchestrator.fleet.checkpoints.pull import HERE
from orchestrator.fleet.checkpoints.survey import newest_sound, survey, verify
from orchestrator.nodes.interface import Node
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.checkpoints import run_meant
from orchestrator.specs.checkpoint import Held
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError, RunFailedError


def kept_here(
    folder: Path, run: str, step: int | None, passed_over: Callable[[OrchError], object] = lambda _error: None
) -> Held:
    """The newest checkpoint in `folder`/runs/RUN/checkpoints that is sound by its hashes, or that of `step`.

    `run`: its id or its beginning; empty: that of the youngest checkpoint. What is newer and damaged is told to
    `passed_over`. `ConfigError`: no checkpoint lies there. `RunFailedError`: all that do are damaged.
    """
    here = LocalNode(HERE)
    found = survey([here], {HERE: str(folder.resolve())}, run)
    if HERE in found.unreachable:
        raise found.unreachable[HERE]
    if not found.held:
        of = f"of a run {run} " if run else ""
        raise ConfigError(
            f"{folder.resolve()}: no checkpoint {of}lies under runs in this folder",
            hint="orch checkpoints pull RUN --to FOLDER   # and then push with --from FOLDER",
        )
    chosen = run_meant(found.held, run)
    held = [one for one in found.held if one.run_id == chosen and step in (None, one.step)]
    spoilt = [one for one in held if one.problem]
    sound = newest_sound([here], held, damaged=spoilt.append)
    for one in spoilt:
        if not sound or one.step >= sound[0].step:
            passed_over(RunFailedError(f"{one.folder}: {one.problem}"))
    if not sound:
        which = f" of step {step}" if step is not None else ""
        raise RunFailedError(f"no sound checkpoint{which} of run {chosen} in {folder.resolve()}")
    return sound[0]


def push(
    kept: Held, to: Node, place: str, there: Sequence[Held], *, notify: Notify = lambda _node, _progress: None
) -> bool:
    """Copy it under `place`, the project's folder on the node. False: it was there already, sound by its hashes.

    `there`: what the node holds of the run. `ConflictError`: another checkpoint of this step, and a sound one.
    """
    looked = verify([to], [one for one in there if one.node == to.name and one.step == kept.step])
    sound = [one for one in looked if not one.problem]
    if any(one.identity == kept.identity for one in sound):
        return False
    if sound:
        raise ConflictError(
            f"another checkpoint of step {kept.step} lies there, and is sound: {sound[0].folder}",
            node=to.name,
            hint="another node: --to NODE; or move that one away",
        )
    copy_checkpoint(LocalNode(HERE), kept, to, f"{place}/runs/{kept.run_id}/checkpoints", notify)
    return True


def newer(held: Sequence[Held], kept: Held) -> Held | None:
    """What nodes hold of its run that a resume would take rather; None where there is no such."""
    usable = [one for one in held if one.run_id == kept.run_id and one.step > kept.step and not one.problem]
    return max(usable, key=lambda one: one.step, default=None)
