"""Choose the checkpoint that a run resumes from and copy it to the node of rank 0, the only rank that reads it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.checkpoint import StartPoint
from orchestrator.fleet.checkpoints.copy import best_of, copy_best, copy_checkpoint
from orchestrator.fleet.checkpoints.survey import Places, newest_sound, survey, verify
from orchestrator.fleet.fan_out import Notify, copy_from_first
from orchestrator.nodes.interface import Node, Progress
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.errors import ConfigError, OrchError, PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.plan import Plan
from orchestrator.store.run_record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Newest:
    """Checkpoints of a run on the nodes that answered."""

    copies: tuple[CheckpointCopy, ...] = ()
    """Copies of the newest checkpoint with correct hashes, one for each node that holds it; empty if there is none."""
    damaged: tuple[CheckpointCopy, ...] = ()
    """Damaged checkpoints of the same step or a later one."""
    held: tuple[CheckpointCopy, ...] = ()
    """All checkpoints of the run that are on record, judged by their sizes alone."""
    unreported: tuple[CheckpointCopy, ...] = ()
    """Those that are not: no rank has reported them to this computer, or the run has left their branch. A person may
    choose one."""
    silent: tuple[str, ...] = ()
    """Nodes that did not answer."""

    @property
    def step(self) -> int | None:
        return self.copies[0].step if self.copies else None

    @property
    def resumes(self) -> StartPoint | None:
        """The checkpoint that the next attempt resumes from; None: there is none."""
        return StartPoint(step=self.copies[0].step, sha256=self.copies[0].identity[1]) if self.copies else None

    @property
    def in_question(self) -> tuple[CheckpointCopy, ...]:
        """Those not on record that a run would resume from if it believed the nodes: the newest first."""
        least = -1 if self.step is None else self.step
        return tuple(sorted((one for one in self.unreported if one.step >= least), key=lambda one: -one.step))


def newest_anywhere(
    nodes: Sequence[Node], places: Places, run_id: str, lineage: Collection[tuple[int, str]] | None = None
) -> Newest:
    """Find the newest undamaged checkpoint of a run. Nodes that do not answer are left out.

    `lineage`: step and hash of the checkpoints that count; None: all count, as on the shared storage of a cluster.
    """
    found = survey(nodes, places, run_id)
    every, spoilt = tuple(one for one in found.held if one.run_id == run_id), list[CheckpointCopy]()
    held = tuple(one for one in every if lineage is None or one.identity in lineage)
    copies = newest_sound(nodes, held, damaged=spoilt.append)
    lowest = copies[0].step if copies else 0
    steps = None if lineage is None else {step for step, _ in lineage}  # a manifest that is damaged has another hash
    broken = [one for one in every if one.problem and one.step >= lowest and (steps is None or one.step in steps)]
    return Newest(
        copies=copies,
        damaged=(*spoilt, *broken),
        held=held,
        unreported=tuple(one for one in every if one not in held and not one.problem),
        silent=tuple(found.unreachable),
    )


def chosen_checkpoint(nodes: Sequence[Node], newest: Newest, step: int, sha256: str) -> Newest:
    """The same with the checkpoint that a person has chosen, on record or not; `sha256` may be the beginning of its
    hash. ConfigError: no node that answers has it, or it is damaged."""
    every = (*newest.held, *newest.unreported)
    group = [one for one in every if one.step == step and one.identity[1].startswith(sha256) and not one.problem]
    looked = verify(nodes, group)
    sound = tuple(one for one in looked if not one.problem)
    found = {one.identity for one in sound}
    if len(found) != 1:
        damaged = [f"{one.node}: {one.folder}: {one.problem}" for one in looked if one.problem]
        raise ConfigError(
            f"{len(found) or 'no'} intact checkpoint{'s' * (len(found) > 1)} {step}:{sha256}",
            problems=[*damaged, *sorted({f"there is {name_of(one)}, on {one.node}" for one in every})],
            hint="choose one of these",
        )
    left = tuple(one for one in newest.unreported if one.identity not in found)
    return replace(newest, copies=sound, unreported=left)


def name_of(held: CheckpointCopy) -> str:
    """The name of a checkpoint on the command line."""
    return f"{held.step}:{held.identity[1][:8]}"


def unreported_lines(newest: Newest, run_id: str) -> list[tuple[str, str]]:
    """Node and text for each checkpoint that is newer than the one to be used, and not on record."""
    return [
        (
            one.node,
            f"step {one.step} is not on record: not used; to use it: orch resume {run_id} --checkpoint {name_of(one)}",
        )
        for one in newest.in_question
    ]


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
    for node, text in unreported_lines(newest, plan.run_id):
        notify(node, Progress(text=text))
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


def _reported(record: RunRecord) -> tuple[int, str]:
    """Step and node of the newest checkpoint that the run has reported; 0 where there is none."""
    known = next(((one.step, one.node or "another node") for one in record.journal.lineage()), None)
    return known or record.last_checkpoint() or (0, "")


SAYS_WHERE = ("--from-scratch", "--resume")
"""Trainer options that select the first step."""


def says_where(command: Sequence[str]) -> bool:
    """Return whether the words of the command select the first step."""
    return any(word.partition("=")[0] in SAYS_WHERE for word in command)


def steps_lost(record: RunRecord, newest: Newest, command: Sequence[str], *, unattended: bool = False) -> str:
    """Compare the checkpoints that a run reported with those still available: a sentence, empty where no step is lost.

    `unattended`: by a supervisor, which has read all reports. Where there was none, a checkpoint that only a node knows
    is no reason to end the run.

    ConfigError: every checkpoint that is left is damaged. PreflightError: no node that answers has one. A run never
    restarts from step 0 unasked.
    """
    if says_where(command):
        return ""
    pulled = f"with one that you have pulled: orch checkpoints push {record.run_id}"
    fresh_start = f"to start from the beginning: orch resume {record.run_id} -- {shlex.join(command)} --from-scratch"
    if newest.step is None and newest.damaged:
        raise ConfigError(
            f"no sound checkpoint of run {record.run_id} is left",
            problems=[f"{one.node}: {one.folder}: {one.problem}" for one in newest.damaged],
            hint=f"the files stay as they are; {pulled}; {fresh_start}",
        )
    reported, node = _reported(record)
    if newest.step is None and newest.in_question and (reported or not unattended):
        raise ConfigError(
            f"no checkpoint of run {record.run_id} that is on record on this computer is left",
            problems=[f"{node}: {text}" for node, text in unreported_lines(newest, record.run_id)],
            hint=f"if you know where it is from, choose it with --checkpoint; {pulled}; {fresh_start}",
        )
    if newest.step is None and reported:
        silent = f"{', '.join(newest.silent)} did not answer; once it does, try again; or " if newest.silent else ""
        raise PreflightError(
            f"the run's checkpoint of step {reported} was on {node}, and no node that answers has one",
            hint=f"{silent}{pulled}; {fresh_start}",
        )
    if newest.step is not None and reported > newest.step and not newest.damaged:
        return f"the checkpoint of step {reported} was on {node} alone: continuing from step {newest.step}"
    return ""
