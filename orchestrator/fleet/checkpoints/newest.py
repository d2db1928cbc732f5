"""Choose the checkpoint that a run resumes from and bring it to the node of rank 0, the only rank that reads it; the
others receive the state from rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.fleet.checkpoints.copy import Notify, best_of, copy_best, copy_checkpoint
from orchestrator.fleet.checkpoints.survey import Places, newest_sound, survey
from orchestrator.nodes.interface import Node, Progress
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.errors import OrchError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Newest:
    """Checkpoints of a run on the nodes that answered."""

    copies: tuple[CheckpointCopy, ...] = ()
    """Copies of the newest checkpoint with correct hashes, one for each node that holds it; empty if there is none."""
    damaged: tuple[CheckpointCopy, ...] = ()
    """Damaged checkpoints of the same step or a later one."""
    held: tuple[CheckpointCopy, ...] = ()
    """All of it, as its sizes show it."""
    silent: tuple[str, ...] = ()
    """Nodes that did not answer."""

    @property
    def step(self) -> int | None:
        return self.copies[0].step if self.copies else None


def newest_anywhere(nodes: Sequence[Node], places: Places, run_id: str) -> Newest:
    """Find the newest undamaged checkpoint of a run. Nodes that do not answer are left out.

    newest = newest_anywhere(nodes, places_in(specs, project), "0102-1504-ab12")
    plan = plan_launch(request, holding(facts, newest), identity)
    bring_newest(by_name, plan, newest, notify)
    """
    found = survey(nodes, places, run_id)
    held, spoilt = tuple(one for one in found.held if one.run_id == run_id), list[CheckpointCopy]()
    copies = newest_sound(nodes, held, damaged=spoilt.append)
    lowest = copies[0].step if copies else 0
    broken = [one for one in held if one.problem and one.step >= lowest]
    return Newest(copies=copies, damaged=(*spoilt, *broken), held=held, silent=tuple(found.unreachable))


def holding(facts: Mapping[str, NodeFacts], newest: Newest) -> Mapping[str, NodeFacts]:
    """Facts for a plan in which only the nodes that hold that checkpoint have one, so that rank 0 is placed there.

    As they are where none is sound: the trainer then refuses, and says which it looked at.
    """
    if newest.step is None:
        return facts
    holders = {one.node for one in newest.copies}
    return {
        name: replace(own, newest_checkpoint=newest.step if name in holders else None) for name, own in facts.items()
    }


def bring_newest(nodes: Mapping[str, Node], plan: Plan, newest: Newest, notify: Notify) -> None:
    """Make sure that the node of rank 0 has the checkpoint that the run resumes from, and the best one.

    What is damaged is named, and from where it comes. Raises the last error where no copy of it could be brought.
    """
    for one in newest.damaged:
        notify(one.node, Progress(text=f"checkpoint of step {one.step} not used: {one.problem}"))
    if newest.step is None:
        return
    master = plan.nodes[0]
    root = f"{master.folder}/runs/{plan.run_id}/checkpoints"
    if newest.damaged:
        holders = ", ".join(one.node for one in newest.copies)
        notify(master.node, Progress(text=f"resuming from step {newest.step}, intact on {holders}"))
    if master.node not in [one.node for one in newest.copies]:
        _copy_any(nodes, newest.copies, nodes[master.node], root, notify)
    best = best_of(newest.held, newest.step)
    if best and best.node != master.node:
        there = [one for one in (*newest.held, *_now_at(newest, master.node)) if one.node == master.node]
        try:
            copy_best(nodes[best.node], best, nodes[master.node], there, root, notify)
        except OrchError as error:  # the run does not need it
            notify(master.node, Progress(text=f"best.json was not copied from {best.node}: {error}"))


def _copy_any(
    nodes: Mapping[str, Node], copies: Sequence[CheckpointCopy], target: Node, root: str, notify: Notify
) -> None:
    for number, held in enumerate(copies):
        try:
            copy_checkpoint(nodes[held.node], held, target, root, notify)
            return
        except OrchError as error:
            if error.node == target.name or number == len(copies) - 1:
                raise
            notify(held.node, Progress(text=error.message))


def _now_at(newest: Newest, node: str) -> tuple[CheckpointCopy, ...]:
    """The newest checkpoint, as held by this node after the copy."""
    return (replace(newest.copies[0], node=node, best=False),)
