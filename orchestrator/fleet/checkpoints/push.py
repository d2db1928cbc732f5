"""Bring a checkpoint that lies with the controller to a node: the way back of `pull`."""

from __future__ import annotations

from pathlib import Path

from orchestrator.fleet.checkpoints.copy import Notify, copy_checkpoint
from orchestrator.fleet.checkpoints.pull import HERE
from orchestrator.fleet.checkpoints.survey import newest_sound, survey, verify
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.seam import Node
from orchestrator.plan.checkpoints import run_meant
from orchestrator.specs.checkpoint import Held
from orchestrator.specs.errors import ConfigError, RunFailedError


def kept_here(folder: Path, run: str, step: int | None) -> Held:
    """The newest checkpoint in `folder`/runs/RUN/checkpoints that is sound by its hashes, or that of `step`.

    `run`: its id or its beginning; empty: that of the youngest checkpoint. `ConfigError`: no checkpoint lies there.
    `RunFailedError`: all that do are damaged.
    """
    here = LocalNode(HERE)
    found = survey([here], {HERE: str(folder.resolve())}, run)
    if HERE in found.unreachable:
        raise found.unreachable[HERE]
    if not found.held:
        of = f"of a run {run} " if run else ""
        raise ConfigError(f"{folder.resolve()}: no checkpoint {of}lies under runs in this folder",
                          hint="--from: the folder that `orch checkpoints pull --to` was given")  # fmt: skip
    chosen = run_meant(found.held, run)
    held = [one for one in found.held if one.run_id == chosen and step in (None, one.step)]
    spoilt = [one for one in held if one.problem]
    sound = newest_sound([here], held, damaged=spoilt.append)
    if not sound:
        which = f" of step {step}" if step is not None else ""
        raise RunFailedError(
            f"no sound checkpoint{which} of run {chosen} in {folder.resolve()}"
            + "".join(f"\n{one.folder}: {one.problem}" for one in spoilt)
        )
    return sound[0]


def push(kept: Held, to: Node, place: str, *, notify: Notify = lambda _node, _progress: None) -> bool:
    """Copy it under `place`, the project's folder on the node. False: it was there already, sound by its hashes."""
    there = [one for one in survey([to], {to.name: place}, kept.run_id).held if one.identity == kept.identity]
    if any(not one.problem for one in verify([to], [one for one in there if one.run_id == kept.run_id])):
        return False
    copy_checkpoint(LocalNode(HERE), kept, to, f"{place}/runs/{kept.run_id}/checkpoints", notify)
    return True
