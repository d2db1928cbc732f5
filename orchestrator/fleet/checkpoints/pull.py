"""Bring a run's checkpoint to the controller, into a folder that a run can go on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.fleet.checkpoints.copy import Notify, copy_checkpoint
from orchestrator.fleet.checkpoints.survey import survey, verify
from orchestrator.nodes.interface import Node
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.checkpoints import candidates
from orchestrator.specs.checkpoint import Held
from orchestrator.specs.errors import OrchError, RunFailedError

HERE = "controller"


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What came."""

    held: Held
    """The copy that it was taken from, or would have been."""
    folder: Path
    moved: bool
    """False where it was here already, sound."""


def pull(
    nodes: Sequence[Node],
    held: Sequence[Held],
    to: Path,
    *,
    step: int | None = None,
    notify: Notify = lambda _node, _progress: None,
    passed_over: Callable[[OrchError], object] = lambda _error: None,
) -> Pulled:
    """The newest sound checkpoint among those of one run (or that of `step`) as `to`/runs/RUN/checkpoints/step-N.

    As on the nodes, so that `--resume to/runs/RUN` finds it. A copy that turns out to be damaged, or whose node breaks
    off, is told to `passed_over`; the next copy, then the next older checkpoint, is tried. Raises `RunFailedError`
    where none is left.
    """
    by_name, here = {node.name: node for node in nodes}, LocalNode(HERE)
    for group in candidates(held, step):
        root = to.resolve() / "runs" / group[0].run_id / "checkpoints"
        if _is_here(here, to, group[0]):
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


def _is_here(here: LocalNode, to: Path, wanted: Held) -> bool:
    found = survey([here], {HERE: str(to.resolve())}, wanted.run_id).held
    same = [one for one in found if one.run_id == wanted.run_id and one.identity == wanted.identity]
    return any(not one.problem for one in verify([here], same))
