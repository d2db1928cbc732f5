"""Keep a run's newest checkpoint on more than one machine, so that the loss of one costs at most one interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.fleet.checkpoints.copy import best_of, copy_best, copy_checkpoint, remove
from orchestrator.fleet.checkpoints.survey import Survey, places_of, survey
from orchestrator.fleet.fan_out import Notify
from orchestrator.nodes.interface import Node
from orchestrator.plan.checkpoints import candidates, outlived
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """Result of a replication."""

    step: int | None
    """Step of the newest checkpoint on the node of rank 0; None if it has none yet or was not among the given nodes."""
    sha256: str = ""
    """Hash of its manifest."""
    holders: tuple[str, ...] = ()
    """Other nodes that have a copy now; `copied` are those to which it was sent."""
    copied: tuple[str, ...] = ()
    failed: tuple[OrchError, ...] = ()
    """Errors of the nodes that have none; each names its node."""


def replicate(
    nodes: Sequence[Node], plan: Plan, *, copies: int = 1, notify: Notify = lambda _node, _progress: None
) -> Replicated:
    """Copy the newest checkpoint, and the best one, from the node of rank 0 to `copies` others, in order of rank.

    Call it after each `checkpoint` event, on a thread that training does not wait for: it touches no container. A node
    that fails is passed over for the next. Copies that rank 0's node has removed are removed. `nodes` may be those that
    still answer.

    OrchError: the node of rank 0 does not answer, or its checkpoint is damaged. Errors of other nodes are in `failed`.
    """
    places = places_of(plan)
    by_name = {node.name: node for node in nodes if node.name in places}
    found = survey(list(by_name.values()), places, plan.run_id)
    origin = _of(found, plan.master, plan.run_id)
    newest = next((group[0] for group in candidates(origin, None)), None)
    if newest is None:
        return Replicated(step=None)
    best = best_of(origin, newest.step)
    holders, copied, failed = list[str](), list[str](), list[OrchError]()
    for part in plan.nodes:
        if part.node == plan.master or part.node not in by_name or len(holders) == copies:
            continue
        target = by_name[part.node]
        try:
            there = _of(found, part.node, plan.run_id)
            root = f"{part.folder}/runs/{plan.run_id}/checkpoints"
            if not any(one.identity == newest.identity and not one.problem for one in there):
                copy_checkpoint(by_name[plan.master], newest, target, root, notify)
                copied.append(part.node)
            if best:
                copy_best(by_name[plan.master], best, target, there, root, notify)
            remove(target, outlived(there, origin, newest))
            holders.append(part.node)
        except OrchError as error:
            if error.node == plan.master:
                raise
            failed.append(error)
    step, sha256 = newest.identity
    return Replicated(step=step, sha256=sha256, holders=tuple(holders), copied=tuple(copied), failed=tuple(failed))


def _of(found: Survey, node: str, run_id: str) -> list[CheckpointCopy]:
    if node in found.unreachable:
        raise found.unreachable[node]
    return [one for one in found.held if one.node == node and one.run_id == run_id]
