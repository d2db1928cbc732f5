"""The end of a run, or of an attempt of it: its phase, and the failure that ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from contract.cost_model.forecast import Forecast
from contract.events import ProgressEvent, RankFailed
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.failure import EndedBadly, Failure, root_cause
from orchestrator.checks.own_files import IsFolder, OwnFiles
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import State
from orchestrator.state.next_step import again, has_checkpoint
from orchestrator.state.phase import Phase, end_of, has_ended, phase_of
from orchestrator.state.postmortem import generation_failure
from orchestrator.state.recovery import AddNodes, Decision, GiveUp, NoNodeAnswers, Replan
from orchestrator.state.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Outcome of a run, or of an attempt of it."""

    phase: Phase
    """succeeded, stopped, failed or lost; of an attempt that the next one follows, restarting."""
    failure: Failure | None = None
    then: Replan | AddNodes | None = None
    """Continuation of the run; None where it ended."""
    state: RunState = field(compare=False, repr=False)
    """The state at the end: it changes with the next attempt."""

    @property
    def last_event(self) -> ProgressEvent | None:
        """The newest report of the node that leads the run."""
        return self.state.leader.part.progress if self.state.leader else None

    @property
    def forecast(self) -> Forecast | None:
        """The predicted speed."""
        return self.state.forecast

    @property
    def of_forecast(self) -> float | None:
        """Last speed divided by the predicted speed."""
        return self.last_event.of_forecast if self.last_event else None

    @property
    def checkpoint(self) -> bool:
        """True if a checkpoint of the trainer is there to resume from."""
        return has_checkpoint(self.state)

    @property
    def note(self) -> str:
        """Sentence of the coordinator about a run that ended well."""
        return (self.state.finished.note or "") if self.state.finished and not self.failure else ""


def outcome_of(
    state: RunState, plan: Plan, last: Decision, ended: Sequence[str] = (), is_folder: IsFolder = lambda _path: None
) -> RunOutcome:
    """The outcome of the attempt. `last`: the decision that ended the following; `ended`: nodes that have ended, or
    could not be stopped, in this order; `is_folder`: as of `OwnFiles`."""
    then = last if isinstance(last, Replan | AddNodes) else None
    failure = None
    if isinstance(last, GiveUp):
        phase, failure = Phase.FAILED, _given_up(state, plan, last)
    elif isinstance(last, NoNodeAnswers):
        phase = Phase.LOST
    else:
        phase = Phase.RESTARTING if then else _phase(state)
    if phase is Phase.FAILED and failure is None:
        failure = _failure(state, plan, ended, OwnFiles(plan=plan, is_folder=is_folder))
    return RunOutcome(phase=phase, failure=failure, then=then, state=state)


def _phase(state: RunState) -> Phase:
    """Return the phase once all visible containers have ended: the others are not waited for."""
    phase = phase_of(state)
    if phase in (Phase.SUCCEEDED, Phase.STOPPED, Phase.FAILED):
        return phase
    return Phase.STOPPED if phase is Phase.STOPPING else end_of(state, [one for one in state.members if has_ended(one)])


def _failure(state: RunState, plan: Plan, ended: Sequence[str], here: OwnFiles) -> Failure:
    failed = [one for name in ended if (one := _ended_badly(state, plan, name))]
    agreed = generation_failure(state.finished)
    if agreed and agreed.node not in [one.node for one in failed]:
        failed.append(_unseen(plan, agreed.node, agreed.exit_code))
    next_try = _again(state, plan)
    found = root_cause(failed, agreed=agreed, run=plan.run_id, again=next_try, job=ClusterJob.of(plan), here=here)
    removed = all(one.is_missing for one in state.members)
    reason = "its containers were removed" if removed else "its agents give no reason"
    return found or Failure(node=plan.master, rank=0, exit_code=None, reason=reason, lines=())


def _ended_badly(state: RunState, plan: Plan, name: str) -> EndedBadly | None:
    """Evidence of a node that has failed, or that could not be stopped; None: it ended well."""
    node = state.nodes[name]
    container = node.container if has_ended(node) else None
    if container and container.state is State.SUCCEEDED:
        return None
    part, report = next(one for one in plan.nodes if one.node == name), node.part.failed
    reported = report or RankFailed()
    return EndedBadly(
        node=name,
        node_rank=part.node_rank,
        first_rank=part.first_rank,
        exit_code=container.exit_code if container else None,
        oom_killed=container.oom_killed if container else False,
        lines=tuple((line.rank, line.text) for line in node.part.tail),
        reported=reported.reason if report else "" if container else node.error,
        cause=reported.cause or "",
        frame=reported.frame or "",
    )


def _given_up(state: RunState, plan: Plan, last: GiveUp) -> Failure | None:
    name, others = last.nodes[0], last.nodes[1:]
    node = state.nodes.get(name)
    reason = (node.error if node else "") or "the others wait for it"
    if last.seconds >= 1:
        reason += f", for {last.seconds:.0f} s" + (f" (as are {', '.join(others)})" if others else "")
    lost = [_unseen(plan, name, None, reason)]
    return root_cause(lost, run=plan.run_id, again=_again(state, plan), job=ClusterJob.of(plan))


def _again(state: RunState, plan: Plan) -> str:
    return again(plan, plan.run_id, from_checkpoint=has_checkpoint(state))


def _unseen(plan: Plan, node: str, exit_code: int | None, reason: str = "") -> EndedBadly:
    """A node of which the end was not seen from here."""
    ranks = next(((part.node_rank, part.first_rank) for part in plan.nodes if part.node == node), (0, 0))
    return EndedBadly(
        node=node, node_rank=ranks[0], first_rank=ranks[1], exit_code=exit_code, oom_killed=False, lines=(),
        reported=reason,
    )  # fmt: skip
