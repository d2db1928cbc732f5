"""Continue a run with other nodes: collect new facts, and launch the next attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from orchestrator.fleet.checkpoints.newest import Newest, bring_newest, holding, newest_anywhere, says_where, steps_lost
from orchestrator.fleet.checkpoints.results import WrittenResults, bring_results, results_of
from orchestrator.fleet.checkpoints.survey import Places, places_in
from orchestrator.fleet.fan_out import Notify, begin, fan_out
from orchestrator.fleet.gather import gather_facts
from orchestrator.fleet.readiness.quick_look import quick_look
from orchestrator.fleet.runs.claims import NodesClaimed, claim_on, release
from orchestrator.fleet.runs.find_runs import FoundRuns, RunningContainer, find_runs, must_be_over
from orchestrator.fleet.runs.launch import discard, launch
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.nodes.interface import Node, Progress
from orchestrator.plan.launch import plan_launch
from orchestrator.specs import labels
from orchestrator.specs.errors import ConflictError, PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Severity
from orchestrator.specs.labels import understood
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity
from orchestrator.specs.run import State
from orchestrator.state.journal_entries import ClaimEntry, Why
from orchestrator.store.run_record import RunRecord

CLEAR_S = 30.0


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """All nodes that a run may use, whether they answer or not, and the launch request."""

    nodes: Mapping[str, Node]
    request: LaunchRequest
    """The request, with all these nodes."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

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
    claim = claim_next(pool, plan, list(pool.nodes), "resume")
    try:
        return start_next_attempt(pool, plan, claim, notify)
    except BaseException as error:
        undo_claim(pool, plan, claim.claim, str(error))
        raise


def claim_next(
    pool: NodePool, plan: Plan, names: Sequence[str], why: Why, samples_per_step: int | None = None
) -> NodesClaimed:
    """Claim the attempt after this plan's for these nodes, on all nodes that answer. Nothing was stopped yet.

    ConflictError: another computer continues the run, or it was stopped. Nothing is claimed then.
    """
    record = RunRecord(plan.run_id)
    claim = record.claim(plan, names, why, samples_per_step)
    try:
        return _claim_on_nodes(pool, plan, claim, pool.nodes)
    except BaseException as error:
        undo_claim(pool, plan, claim, str(error))
        raise


def undo_claim(pool: NodePool, plan: Plan, claim: ClaimEntry, reason: str) -> None:
    """Release the claim on the nodes that answer, and record that the attempt was undone."""
    places = places_in(pool.request.nodes, pool.request.project)
    release(list(pool.nodes.values()), places, plan.run_id, claim)
    RunRecord(plan.run_id).forget_intent(claim.attempt, reason)


def _claim_on_nodes(pool: NodePool, plan: Plan, claim: ClaimEntry, names: Collection[str]) -> NodesClaimed:
    in_turn = [pool.nodes[name] for name in sorted(names, key=lambda name: (name not in claim.nodes, name))]
    return claim_on(in_turn, places_in(pool.request.nodes, pool.request.project), plan.run_id, claim)


def start_next_attempt(
    pool: NodePool, plan: Plan, claimed: NodesClaimed, notify: Notify
) -> tuple[Plan, tuple[RunningContainer, ...]]:
    """Launch the claimed attempt on those of its nodes that answer and are fit; a step keeps its number of samples.

    It resumes from the newest intact checkpoint on one of them, with the code and data of the launch. Nodes that did
    not answer the claim just now are not asked again. PreflightError: too few nodes are fit. Other errors are those of
    the launch, which was undone.
    """
    record, claim, silent = RunRecord(plan.run_id), claimed.claim, claimed.failed
    names = [name for name in claim.nodes if name in pool.nodes]
    answered = [name for name in names if name not in silent]
    claimed = _claim_on_nodes(pool, plan, claim, answered if claimed.held else pool.nodes)
    wanted = [pool.nodes[name] for name in names if name in claimed.held]
    cleared = fan_out(wanted, lambda node: _clear(node, record, claim), timeout_s=CLEAR_S)
    foreign = {outcome.item.name: outcome.error for outcome in cleared if isinstance(outcome.error, ConflictError)}
    wanted = [node for node in wanted if node.name not in foreign]
    places = places_in(pool.request.nodes, pool.request.project)
    newest = begin(lambda: newest_anywhere(wanted, places, plan.run_id, lineage_of(record)))
    results = begin(lambda: results_of({node.name: node for node in wanted}, places, plan))
    previous = PreviousAttempt(
        nodes=pool.nodes, places=places, newest=newest, results=results, unattended=claim.why != "resume"
    )
    facts, refused = fit(pool, [node.name for node in wanted], plan.run_id)
    refused += [f"{name}: it shows {words}" for name, words in claimed.left_out.items() if name in names]
    refused += [str(error) for name, error in {**silent, **claimed.failed, **foreign}.items() if name in names]
    if len(facts) < min(pool.min_nodes, len(names)):
        raise PreflightError(
            f"only {len(facts)} of the remaining nodes are fit: {'; '.join(refused)}",
            hint=f"fix that, then: orch resume {plan.run_id}",
        )
    request = replace(
        pool.request,
        nodes=tuple(spec for spec in pool.request.nodes if spec.name in facts),
        command=plan.program.with_step(claim.samples_per_step),
        master="",
        exact_port=False,  # requested for another node
        away=tuple(name for name in pool.nodes if name not in facts),
    )
    identity = RunIdentity(
        run_id=plan.run_id,
        user=plan.user,
        started_at=pool.now().isoformat(timespec="seconds"),
        attempt=claim.attempt,
        claim=claim.id,
    )
    next_plan = plan_launch(request, previous.holding(facts), previous.continued(identity, request.command))
    return next_plan, previous.launch_next(next_plan, notify)


@dataclass(frozen=True, kw_only=True)
class PreviousAttempt:
    """All nodes of a resumed run, those of its last attempt included, and what they hold of it.

    The nodes are searched in parallel with the facts: one that is off costs its timeout once.
    """

    nodes: Mapping[str, Node]
    places: Places
    newest: Future[Newest]
    results: Future[WrittenResults]
    """Files that its ranks wrote, where it has no checkpoints."""
    runs: Future[FoundRuns] | None = None
    """The runs on these nodes, where the attempt may still be active."""
    unattended: bool = False
    """True if a supervisor continues the run, and so has read all of its lines."""
    frees: frozenset[int] = frozenset()
    """Ports that the last attempt still holds and will have released."""

    def holding(self, facts: Mapping[str, NodeFacts]) -> Mapping[str, NodeFacts]:
        """Return the facts for a plan that places rank 0 on a node with the newest checkpoint."""
        held = holding(facts, self.newest.result())
        return {name: replace(one, ports_in_use=one.ports_in_use - self.frees) for name, one in held.items()}

    def continued(self, identity: RunIdentity, command: Sequence[str]) -> RunIdentity:
        """The identity of an attempt that resumes from the newest checkpoint, unless its command says where from."""
        return identity if says_where(command) else replace(identity, resumes=self.newest.result().resumes)

    def starts_over(self, command: Sequence[str]) -> bool:
        """Return whether the next attempt begins at the first step though its command does not ask for that."""
        return self.newest.result().step is None and not says_where(command)

    def launch_next(
        self, plan: Plan, notify: Notify, fresh: Mapping[str, Path] = MappingProxyType({}), *, large: bool = False
    ) -> tuple[RunningContainer, ...]:
        """Copy the newest checkpoint, or the files that rank 0 of a plain script wrote, to the node of rank 0, and
        launch the next attempt. `large`: copy files of any size.

        Errors are those of `steps_lost`, `bring_newest` and `launch`.
        """
        newest = self.newest.result()
        if lost := steps_lost(RunRecord(plan.run_id), newest, plan.command, unattended=self.unattended):
            notify(plan.master, Progress(text=lost))
        bring_newest(self.nodes, plan, newest, notify)
        bring_results(self.nodes, self.places, plan, self.results.result(), notify, large=large)
        taking = {part.node for part in plan.nodes}
        elsewhere = {name: self.places[name] for name in self.nodes if name not in {*taking, *newest.silent}}
        return launch(self.nodes, plan, fresh=fresh, elsewhere=elsewhere, notify=notify)


def collect_known(containers: Sequence[RunningContainer], record: RunRecord) -> None:
    """Record what the containers of known attempts wrote: a checkpoint that they report counts."""
    journal = record.journal
    collect_logs([one for one in containers if journal.attempt_of(one.id) is not None], record)


def lineage_of(record: RunRecord) -> frozenset[tuple[int, str]]:
    """Step and hash of the checkpoints that count."""
    return frozenset(one.identity for one in record.journal.lineage())


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


def _clear(node: Node, record: RunRecord, claim: ClaimEntry) -> None:
    """Remove containers of earlier attempts that started again with their node, and those of a start of this one that
    was cut short: they hold the node's lock.

    ConflictError: one that runs is of an attempt that this computer does not know, or of a later one. It stays.
    """
    journal = record.journal
    for facts in node.engine.containers({labels.LABEL_RUN: record.run_id}):
        says = understood(facts.labels)
        if says is None:
            continue
        cut_short = facts.state is State.CREATED and (says.attempt, says.claim) == (claim.attempt, claim.id)
        if not cut_short and (says.attempt >= claim.attempt or not journal.knows(says.attempt, says.claim)):
            if facts.state in (State.RUNNING, State.CREATED):
                raise ConflictError(
                    f"it runs a container of attempt {says.attempt}, which this computer did not start",
                    node=node.name,
                    hint=f"orch status {record.run_id}",
                )
            continue
        container = RunningContainer.of(node, says.node_rank, facts)
        node.engine.stop(facts.id, 0)
        collect_logs([container], record)
        discard(container)
