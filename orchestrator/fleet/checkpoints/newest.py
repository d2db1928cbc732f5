"""Choose the checkpoint that a run resumes from and copy it to the node of rank 0, the only rank that reads it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.fleet.checkpoints.copy import best_of, copy_best, copy_checkpoint
from orchestrator.fleet.checkpoints.survey import Places, newest_sound, survey
from orchestrator.fleet.fan_out import Notify, copy_from_first
from orchestrator.fleet.runs.progress import last_checkpoint
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes.interface import Node, Progress
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.errors import ConfigError, OrchError, PreflightError
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
    """All checkpoints of the run, judged by their sizes alone."""
    silent: tuple[str, ...] = ()
    """Nodes that did not answer."""

    @property
    def step(self) -> int | None:
        return self.copies[0].step if self.copies else None


def newest_anywhere(nodes: Sequence[Node], places: Places, run_id: str) -> Newest:
    """Find the newest undamaged checkpoint of a run. Nodes that do not answer are left out."""
    found = survey(nodes, places, run_id)
    held, spoilt = tuple(one for one in found.held if one.run_id == run_id), list[CheckpointCopy]()
    copies = newest_sound(nodes, held, damaged=spoilt.append)
    lowest = copies[0].step if copies else 0
    broken = [one for one in held if one.problem and one.step >= lowest]
    return Newest(copies=copies, damaged=(*spoilt, *broken), held=held, silent=tuple(found.unreachable))


def holding(facts: Mapping[str, NodeFacts], newest: Newest) -> Mapping[str, NodeFacts]:
    """Facts for a plan in which only the nodes that hold that checkpoint have one, so that rank 0 is placed there.
    Unchanged where none is sound: the trainer then refuses, and lists those that it read."""
    if newest.step is None:
        return facts
    holders = {one.node for one in newest.copies}
    return {
        name: replace(own, newest_checkpoint=newest.step if name in holders else None) for name, own in facts.items()
    }


def bring_newest(nodes: Mapping[str, Node], plan: Plan, newest: Newest, notify: Notify) -> None:
    """Copy the checkpoint that the run resumes from, and the best one, to the node of rank 0 if it lacks them.

    `notify` gets the damaged ones. Raises the last error if no copy succeeded.
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
        copy_from_first(
            newest.copies,
            lambda held: copy_checkpoint(nodes[held.node], held, nodes[master.node], root, notify),
            master.node,
            lambda held, error: notify(held.node, Progress(text=error.message)),
        )
    best = best_of(newest.held, newest.step)
    if best and best.node != master.node:
        copied = replace(newest.copies[0], node=master.node, best=False)
        there = [*(one for one in newest.held if one.node == master.node), copied]
        try:
            copy_best(nodes[best.node], best, nodes[master.node], there, root, notify)
        except OrchError as error:  # the run does not need it
            notify(master.node, Progress(text=f"best.json was not copied from {best.node}: {error}"))


SAYS_WHERE = ("--from-scratch", "--resume")
"""Trainer options that select the first step."""


def steps_lost(record: RunRecord, newest: Newest, command: Sequence[str]) -> str:
    """Compare the checkpoints that a run reported with those still available: a sentence, empty where no step is lost.

    ConfigError: every checkpoint that is left is damaged. PreflightError: no node that answers has one. A run never
    restarts from step 0 unasked.
    """
    if any(word.partition("=")[0] in SAYS_WHERE for word in command):
        return ""
    pulled = f"with one that you have pulled: orch checkpoints push {record.run_id}"
    fresh_start = f"to start from the beginning: orch resume {record.run_id} -- {shlex.join(command)} --from-scratch"
    if newest.step is None and newest.damaged:
        raise ConfigError(
            f"no sound checkpoint of run {record.run_id} is left",
            problems=[f"{one.node}: {one.folder}: {one.problem}" for one in newest.damaged],
            hint=f"the files stay as they are; {pulled}; {fresh_start}",
        )
    reported, node = last_checkpoint(record) or (0, "")
    if newest.step is None and reported:
        silent = f"{', '.join(newest.silent)} did not answer; once it does, try again; or " if newest.silent else ""
        raise PreflightError(
            f"the run's checkpoint of step {reported} was on {node}, and no node that answers has one",
            hint=f"{silent}{pulled}; {fresh_start}",
        )
    if newest.step is not None and reported > newest.step and not newest.damaged:
        return f"the checkpoint of step {reported} was on {node} alone: continuing from step {newest.step}"
    return ""
