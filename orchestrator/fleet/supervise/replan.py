"""Continue a run with other nodes: collect new facts, and launch the next attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from orchestrator.fleet.checkpoints.newest import bring_newest, holding, newest_anywhere, steps_lost
from orchestrator.fleet.checkpoints.survey import places_in
from orchestrator.fleet.fan_out import Notify, begin, fan_out
from orchestrator.fleet.gather import gather_facts
from orchestrator.fleet.readiness.quick_look import quick_look
from orchestrator.fleet.runs.find_runs import find_runs, must_be_over
from orchestrator.fleet.runs.launch import RunningContainer, discard, launch
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes.interface import Node, Progress
from orchestrator.plan.command import same_step
from orchestrator.plan.launch import plan_launch
from orchestrator.specs import labels
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Severity
from orchestrator.specs.labels import understood
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity

CLEAR_S = 30.0


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """All nodes that a run may use, whether they answer or not, and the launch request."""

    nodes: Mapping[str, Node]
    request: LaunchRequest
    """The request, with all these nodes."""
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    @property
    def min_nodes(self) -> int:
        return self.request.min_nodes or len(self.nodes)


def resume_run(
    pool: NodePool, plan: Plan, notify: Notify = lambda _node, _progress: None
) -> tuple[Plan, tuple[RunningContainer, ...]]:
    """Launch the next attempt of an ended run on the nodes of the pool, from its newest intact checkpoint.

    ConflictError: the run is still active. Other errors are those of `start_next_attempt`.
    """
    must_be_over(find_runs(list(pool.nodes.values())), plan.run_id)
    return start_next_attempt(pool, plan, list(pool.nodes), None, notify)


def start_next_attempt(
    pool: NodePool, plan: Plan, names: Sequence[str], samples_per_step: int | None, notify: Notify
) -> tuple[Plan, tuple[RunningContainer, ...]]:
    """Launch the next attempt on those of `names` that answer and are fit; a step keeps its number of samples.

    It resumes from the newest intact checkpoint on one of them, with the code and data of the launch. PreflightError:
    too few nodes are fit. Other errors are those of the launch, which was undone.
    """
    record = RunRecord(plan.run_id)
    wanted = [pool.nodes[name] for name in names]
    fan_out(wanted, lambda node: _clear(node, record), timeout_s=CLEAR_S)
    places = places_in(pool.request.nodes, pool.request.project)
    looking = begin(lambda: newest_anywhere(wanted, places, plan.run_id))
    facts, refused = fit(pool, names, plan.run_id)
    if len(facts) < min(pool.min_nodes, len(names)):
        raise PreflightError(
            f"only {len(facts)} of the remaining nodes are fit: {'; '.join(refused)}",
            hint=f"fix that, then: orch resume {plan.run_id}",
        )
    request = replace(
        pool.request,
        nodes=tuple(spec for spec in pool.request.nodes if spec.name in facts),
        command=same_step(plan.command, samples_per_step),
        master="",
        exact_port=False,  # requested for another node
        away=tuple(name for name in pool.nodes if name not in facts),
    )
    identity = RunIdentity(
        run_id=plan.run_id,
        user=plan.user,
        started_at=pool.now().isoformat(timespec="seconds"),
        attempt=plan.attempt + 1,
    )
    newest = looking.result()
    lost = steps_lost(record, newest, request.command)
    next_plan = plan_launch(request, holding(facts, newest), identity)
    if lost:
        notify(next_plan.master, Progress(text=lost))
    bring_newest(pool.nodes, next_plan, newest, notify)

    def on_step(node: str, step: str) -> None:
        notify(node, Progress(text=step))

    elsewhere = {name: places[name] for name in next_plan.away}
    return next_plan, launch(pool.nodes, next_plan, elsewhere=elsewhere, on_step=on_step)


def fit(pool: NodePool, names: Sequence[str], run_id: str) -> tuple[dict[str, NodeFacts], list[str]]:
    """Facts of the nodes that can take part, and why the others cannot."""
    request = replace(pool.request, nodes=tuple(spec for spec in pool.request.nodes if spec.name in names))
    outcomes = gather_facts([pool.nodes[spec.name] for spec in request.nodes], request, resume=run_id)
    refused = [str(outcome.error) for outcome in outcomes if outcome.error]
    facts = {outcome.item.name: outcome.result for outcome in outcomes if outcome.result}
    for spec in request.nodes:
        if spec.name in facts:
            found = quick_look([spec], facts, {})
            errors = [finding for finding in found if finding.severity is Severity.ERROR]
            if errors or not facts[spec.name].image:
                refused.append(f"{spec.name}: {errors[0].message if errors else 'it lacks the image'}")
                del facts[spec.name]
    return facts, refused


def require_fit(pool: NodePool, name: str, run_id: str) -> None:
    """Raise PreflightError, or the connection's error, as long as the node cannot take part."""
    facts, refused = fit(pool, [name], run_id)
    if not facts:
        raise PreflightError("; ".join(refused), node=name)


def _clear(node: Node, record: RunRecord) -> None:
    """Remove containers of an earlier attempt that started again with their node: they hold the node's lock."""
    for facts in node.engine.containers({labels.LABEL_RUN: record.run_id}):
        says = understood(facts.labels)
        if says is None:
            continue
        container = RunningContainer.of(node, says.node_rank, facts)
        node.engine.stop(facts.id, 0)
        collect_logs([container], record)
        discard(container)
