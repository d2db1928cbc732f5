"""Runs, found again by the labels on their containers: from any machine, with nothing remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.launch import Seated
from orchestrator.fleet.runs.records import recorded_runs
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.nodes.seam import Node
from orchestrator.specs import run as labels
from orchestrator.specs.errors import ConfigError, ConflictError, OrchError
from orchestrator.specs.run import ContainerFacts, Member, Run, State

TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """All runs that the nodes know of, newest first, and the nodes that gave no answer."""

    runs: tuple[Run, ...]
    unreachable: Mapping[str, OrchError]


def find_runs(nodes: Sequence[Node]) -> Found:
    """Ask every node for the containers that bear a run's label."""
    outcomes = fan_out(nodes, lambda node: node.engine.containers({labels.LABEL_RUN: ""}), timeout_s=TIMEOUT_S)
    unreachable = {outcome.item.name: outcome.error for outcome in outcomes if outcome.error}
    held = [(outcome.item.name, facts) for outcome in outcomes for facts in outcome.result or ()]
    runs = [
        _assemble(run_id, [(node, facts) for node, facts in held if facts.labels[labels.LABEL_RUN] == run_id])
        for run_id in {facts.labels[labels.LABEL_RUN] for _, facts in held}
    ]
    return Found(
        runs=tuple(
            sorted((_with_lost(run, unreachable) for run in runs), key=lambda run: run.started_at, reverse=True)
        ),
        unreachable=unreachable,
    )


def choose_run(found: Found, wanted: str | None) -> Run:
    """The run of this id, or of the one id that begins so; the newest where none is named."""
    if wanted is None:
        if not found.runs:
            silent = f" ({', '.join(found.unreachable)} did not answer)" if found.unreachable else ""
            raise ConfigError(f"no node knows of a run{silent}", hint="start one: orch launch --nodes 5")
        return found.runs[0]
    matching = [run for run in found.runs if run.run_id == wanted] or [
        run for run in found.runs if run.run_id.startswith(wanted)
    ]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(run.run_id for run in matching or found.runs) or "none"
    if not matching and found.unreachable:
        silent = ", ".join(found.unreachable)
        raise ConfigError(
            f"no run {wanted} on the nodes that answered, {silent} did not: it may be there",
            hint=f"once {silent} can be reached, the same again; {_recorded_hint(wanted)}",
        )
    problem = f"{len(matching)} runs begin with {wanted}" if matching else f"no run {wanted} on any node"
    raise ConfigError(f"{problem}: {known}", hint=_recorded_hint(wanted))


def must_be_over(found: Found, run_id: str) -> None:
    """ConflictError where a run still goes on: two who write its checkpoints would spoil them."""
    members = [one for run in found.runs if run.run_id == run_id for one in run.members]
    going_on = [member.node for member in members if member.state in (State.RUNNING, State.CREATED)]
    if going_on:
        raise ConflictError(
            f"run {run_id} still runs on {', '.join(going_on)}",
            hint=f"to stop it and go on: orch restart {run_id}; to end it: orch stop {run_id}",
        )


def seats_of(run: Run, nodes: Mapping[str, Node]) -> tuple[Seated, ...]:
    """The run's containers that can be talked to."""
    return tuple(
        Seated(
            node=nodes[member.node],
            node_rank=member.node_rank,
            container=member.container.id,
            secrets=secrets_of(member.container.labels),
        )
        for member in run.members
        if member.container is not None
    )


def _assemble(run_id: str, held: Sequence[tuple[str, ContainerFacts]]) -> Run:
    attempt = max(int(facts.labels.get(labels.LABEL_ATTEMPT, 0)) for _, facts in held)
    newest = [(node, facts) for node, facts in held if int(facts.labels.get(labels.LABEL_ATTEMPT, 0)) == attempt]
    first = newest[0][1].labels
    members = [
        Member(
            node=node, node_rank=int(facts.labels.get(labels.LABEL_NODE_RANK, 0)), state=facts.state, container=facts
        )
        for node, facts in newest
    ]
    return Run(
        run_id=run_id,
        project=first.get(labels.LABEL_PROJECT, ""),
        attempt=attempt,
        user=first.get(labels.LABEL_USER, ""),
        started_at=first.get(labels.LABEL_STARTED, ""),
        nnodes=int(first.get(labels.LABEL_NNODES, len(members))),
        command=first.get(labels.LABEL_COMMAND, ""),
        master=first.get(labels.LABEL_MASTER, ""),
        members=tuple(sorted(members, key=lambda member: member.node_rank)),
    )


def _with_lost(run: Run, unreachable: Mapping[str, OrchError]) -> Run:
    """Ranks that the labels promise and nobody showed are lost; one that does not answer may be where they are."""
    missing = sorted(set(range(run.nnodes)) - {member.node_rank for member in run.members})
    reason = f"{', '.join(unreachable)} did not answer" if unreachable else "no node holds its container"
    lost = [
        Member(node="?", node_rank=rank, state=State.LOST, reason=reason, out_of_reach=bool(unreachable))
        for rank in missing
    ]
    members = sorted((*run.members, *lost), key=lambda member: member.node_rank)
    return replace(run, members=tuple(members))


def _recorded_hint(wanted: str) -> str:
    recorded = any(record.run_id.startswith(wanted) for record in recorded_runs())
    return "this controller kept its logs: orch logs " + wanted if recorded else "orch runs"
