"""Copy a checkpoint from the nodes to the controller, or from the controller to a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.fleet.checkpoints.copy import copy_checkpoint
from orchestrator.fleet.checkpoints.survey import newest_sound, run_with_checkpoints, survey, verify
from orchestrator.fleet.fan_out import Notify
from orchestrator.nodes.interface import Node
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.checkpoints import candidates
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError, RunFailedError

HERE = "controller"


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """Result of a pull."""

    held: CheckpointCopy
    """The copy that it was taken from, or would have been."""
    folder: Path
    moved: bool
    """False where it was here already, sound."""


def pull(
    nodes: Sequence[Node],
    held: Sequence[CheckpointCopy],
    to: Path,
    *,
    step: int | None = None,
    notify: Notify = lambda _node, _progress: None,
    passed_over: Callable[[OrchError], object] = lambda _error: None,
) -> Pulled:
    """The newest sound checkpoint among those of one run (or that of `step`) as `to`/runs/RUN/checkpoints/step-N.

    The layout is that of the nodes, so that `--resume to/runs/RUN` finds it. A damaged or failing copy is reported
    to `passed_over`; the next copy, then the next older checkpoint, is tried. RunFailedError: none is left.
    """
    by_name, here = {node.name: node for node in nodes}, LocalNode(HERE)
    for group in candidates(held, step):
        root = to.resolve() / "runs" / group[0].run_id / "checkpoints"
        present = survey([here], {HERE: str(to.resolve())}, group[0].run_id).held
        same = [one for one in present if (one.run_id, one.identity) == (group[0].run_id, group[0].identity)]
        if any(not one.problem for one in verify([here], same)):
            return Pulled(held=group[0], folder=root / group[0].name, moved=False)
        for one in group:
            try:
                copy_checkpoint(by_name[one.node], one, here, str(root), notify)
            except OrchError as error:
                if error.node == HERE:
                    raise
                passed_over(error)
                continue
            return Pulled(held=one, folder=root / one.name, moved=True)
    which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    raise RunFailedError(f"{which} that could be used was found", hint="orch checkpoints verify")


def saved_here(
    folder: Path, run: str, step: int | None, passed_over: Callable[[OrchError], object] = lambda _error: None
) -> CheckpointCopy:
    """The newest checkpoint in `folder`/runs/RUN/checkpoints that is sound by its hashes, or that of `step`.

    `run`: its id or its beginning; empty: that of the youngest checkpoint. Newer, damaged ones are reported to
    `passed_over`. ConfigError: the folder has no checkpoint. RunFailedError: all are damaged.
    """
    here = LocalNode(HERE)
    found = survey([here], {HERE: str(folder.resolve())}, run)
    if HERE in found.unreachable:
        raise found.unreachable[HERE]
    if not found.held:
        of = f"of a run {run} " if run else ""
        raise ConfigError(
            f"{folder.resolve()}: no checkpoint {of}found under runs in this folder",
            hint="orch checkpoints pull RUN --to FOLDER   # and then push with --from FOLDER",
        )
    chosen = run_with_checkpoints(found.held, run)
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
    saved: CheckpointCopy,
    to: Node,
    place: str,
    there: Sequence[CheckpointCopy],
    *,
    notify: Notify = lambda _node, _progress: None,
) -> bool:
    """Copy it under `place`, the project's folder on the node. False: it was there already, sound by its hashes.

    `there`: what the node holds of the run. `ConflictError`: another checkpoint of this step, and a sound one.
    """
    looked = verify([to], [one for one in there if one.node == to.name and one.step == saved.step])
    sound = [one for one in looked if not one.problem]
    if any(one.identity == saved.identity for one in sound):
        return False
    if sound:
        problem = f"the node has a different intact checkpoint of step {saved.step}: {sound[0].folder}"
        raise ConflictError(problem, node=to.name, hint="another node: --to NODE; or move that one away")
    copy_checkpoint(LocalNode(HERE), saved, to, f"{place}/runs/{saved.run_id}/checkpoints", notify)
    return True


def newer(held: Sequence[CheckpointCopy], saved: CheckpointCopy) -> CheckpointCopy | None:
    """The newer checkpoint of the same run on the nodes, which a resume would prefer; None if there is none."""
    usable = [one for one in held if one.run_id == saved.run_id and one.step > saved.step and not one.problem]
    return max(usable, key=lambda one: one.step, default=None)
