"""A run goes on with other nodes: what still runs is stopped, fresh facts are asked, the next attempt is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from orchestrator.fleet.checkpoints.copy import Notify
from orchestrator.fleet.checkpoints.newest import bring_newest, holding, newest_anywhere
from orchestrator.fleet.checkpoints.survey import places_in
from orchestrator.fleet.fan_out import begin, fan_out
from orchestrator.fleet.gather import gather_facts
from orchestrator.fleet.readiness.quick_look import quick_look
from orchestrator.fleet.runs.launch import RunningContainer, discard, launch
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import secrets_of
from orchestrator.fleet.supervise.lost_steps import steps_lost
from orchestrator.nodes.interface import Node, Progress
from orchestrator.plan.global_batch import same_step
from orchestrator.plan.launch import plan_launch
from orchestrator.specs import run as labels
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Severity
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity
from orchestrator.specs.run_labels import understood

CLEAR_S = 30.0


def _utc() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Company:
    """All the nodes that a run may have, whether they answer or not, and what was asked for."""

    nodes: Mapping[str, Node]
    request: LaunchRequest
    """With all these nodes."""
    now: Callable[[], datetime] = _utc

    @property
    def enough(self) -> int:
        return self.request.min_nodes or len(self.nodes)


def stop_here(seated: Sequence[RunningContainer], record: RunRecord, *, timeout_s: int) -> None:
    """End an attempt wherever it can be ended; its lines are kept, and its containers go."""
    outcomes = fan_out(seated, lambda seat: seat.node.engine.stop(seat.container, timeout_s), timeout_s=timeout_s + 30)
    ended = [outcome.item for outcome in outcomes if outcome.error is None]
    collect_logs(ended, record)
    fan_out(ended, discard, timeout_s=CLEAR_S)


def go_on(
    company: Company, plan: Plan, names: Sequence[str], samples_per_step: int | None, notify: Notify
) -> tuple[Plan, tuple[RunningContainer, ...]]:
    """The next attempt, on those of `names` that answer and are fit; a step of the training keeps its samples.

    It begins with the newest sound checkpoint that one of them has, and with the code and data that the run was
    launched with. PreflightError: they are too few. Any other error of the launch, which has left nothing behind then.
    """
    record = RunRecord(plan.run_id)
    wanted = [company.nodes[name] for name in names]
    fan_out(wanted, lambda node: _clear(node, record), timeout_s=CLEAR_S)
    places = places_in(company.request.nodes, company.request.project)
    looking = begin(lambda: newest_anywhere(wanted, places, plan.run_id))
    facts, refused = fit(company, names, plan.run_id)
    if len(facts) < min(company.enough, len(names)):
        raise PreflightError(
            f"only {len(facts)} of the nodes that are left can go on: {'; '.join(refused)}",
            hint=f"mend that, then: orch resume {plan.run_id}",
        )
    request = replace(
        company.request,
        nodes=tuple(spec for spec in company.request.nodes if spec.name in facts),
        command=same_step(plan.command, samples_per_step),
        master="",
        exact_port=False,  # it was asked for on another node
        away=tuple(name for name in company.nodes if name not in facts),
    )
    identity = RunIdentity(
        run_id=plan.run_id,
        user=plan.user,
        started_at=company.now().isoformat(timespec="seconds"),
        attempt=plan.attempt + 1,
    )
    newest = looking.result()
    lost = steps_lost(record, newest, request.command)
    anew = plan_launch(request, holding(facts, newest), identity)
    if lost:
        notify(anew.master, Progress(text=lost))
    bring_newest(company.nodes, anew, newest, notify)

    def on_step(node: str, step: str) -> None:
        notify(node, Progress(text=step))

    return anew, launch(company.nodes, anew, elsewhere={name: places[name] for name in anew.away}, on_step=on_step)


def fit(company: Company, names: Sequence[str], run_id: str) -> tuple[dict[str, NodeFacts], list[str]]:
    """Facts of those that could take part, and what keeps the others from it."""
    request = replace(company.request, nodes=tuple(spec for spec in company.request.nodes if spec.name in names))
    outcomes = gather_facts([company.nodes[spec.name] for spec in request.nodes], request, resume=run_id)
    refused = [str(outcome.error) for outcome in outcomes if outcome.error]
    facts = {outcome.item.name: outcome.result for outcome in outcomes if outcome.result}
    for spec in request.nodes:
        if spec.name in facts:
            found = quick_look([spec], {spec.name: facts[spec.name]}, None)
            errors = [finding for finding in found if finding.severity is Severity.ERROR]
            if errors or not facts[spec.name].image:
                refused.append(f"{spec.name}: {errors[0].message if errors else 'it lacks the image'}")
                del facts[spec.name]
    return facts, refused


def must_be_fit(company: Company, name: str, run_id: str) -> None:
    """PreflightError, or what keeps the node from answering, until it could take part."""
    facts, refused = fit(company, [name], run_id)
    if not facts:
        raise PreflightError("; ".join(refused), node=name)


def _clear(node: Node, record: RunRecord) -> None:
    """A container of an earlier attempt, come to life with its node, holds the node's lock and waits for nobody."""
    for facts in node.engine.containers({labels.LABEL_RUN: record.run_id}):
        says = understood(facts.labels)
        if says is None:
            continue
        seat = RunningContainer(
            node=node, node_rank=says.node_rank, container=facts.id, secrets=secrets_of(facts.labels)
        )
        node.engine.stop(facts.id, 0)
        collect_logs([seat], record)
        discard(seat)
