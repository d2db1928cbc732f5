"""Stop a run: choose it, ask if another user launched it, stop it on all nodes, report the outcome."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.cli.consent import agreed
from orchestrator.cli.report import report_errors, say
from orchestrator.fleet.checkpoints.survey import places_in, places_of
from orchestrator.fleet.connect import connected, connected_for, holding, machines_of, others_here, stand_ins
from orchestrator.fleet.runs.find_runs import FoundRuns, find_runs, only_run_of, run_on_nodes, running_containers
from orchestrator.fleet.runs.load_state import state_without_lines
from orchestrator.fleet.runs.stop import stop_run
from orchestrator.nodes.cluster_nodes import cluster_of
from orchestrator.nodes.interface import Node
from orchestrator.render.printable import printable
from orchestrator.render.runs import half_launched_line
from orchestrator.specs.errors import PartialError
from orchestrator.specs.labels import NODE_NAME
from orchestrator.specs.run import Run, State
from orchestrator.state.condition import BESIDE_THE_RECORD
from orchestrator.state.verdict import Verdict, verdict
from orchestrator.store.run_record import RunRecord, spoken_by_nodes
from orchestrator.watch.words import condition_lines

if TYPE_CHECKING:
    from orchestrator.fleet.connect import Holder
    from orchestrator.specs.plan import Plan


@dataclass(frozen=True, kw_only=True)
class StoppedRun:
    """The nodes where a run was stopped, and its last checkpoint."""

    run_id: str
    nodes: tuple[str, ...]
    checkpoint_step: int | None
    left: Mapping[str, str] = field(default_factory=dict)
    """Nodes where it may still run, each with the reason."""
    cluster: str = ""
    """Name of the cluster where it is a job."""
    ended: str = ""
    """State in which it had ended before; empty: it was active."""
    is_recorded: bool = True
    """True if the record could be written; otherwise its newest lines are not known."""

    @property
    def checkpoint_text(self) -> str:
        """The last checkpoint, in words."""
        if self.checkpoint_step is None and not self.is_recorded:
            return "its last checkpoint is not known"
        return "no checkpoint" if self.checkpoint_step is None else f"checkpoint of step {self.checkpoint_step}"

    def require_all(self) -> None:
        """PartialError: the run may still be active on nodes that did not answer."""
        if self.left:
            done = f"stopped on {', '.join(self.nodes)} ({self.checkpoint_text}), but " if self.nodes else ""
            names = ", ".join(self.left)
            reasons = "".join(f"\n  {name}: {printable(reason)}" for name, reason in self.left.items())
            if self.cluster:
                raise PartialError(
                    f"run {self.run_id} {done}may still run on {names}{reasons}",
                    hint=f"once {self.cluster} can be reached: orch stop {self.run_id}",
                )
            raise PartialError(
                f"run {self.run_id} {done}may still run on {names}{reasons}\n"
                "  a container that is left there waits for the others in vain; if its machine was switched off,\n"
                "  Docker starts it again with the machine. It keeps other runs off that node until it is ended",
                hint=f"once {names} can be reached: orch stop {self.run_id}   (or orch clean)",
            )


@dataclass(frozen=True, kw_only=True)
class AtHand:
    """A run to be stopped, and the nodes that were asked for it."""

    nodes: Sequence[Node]
    found: FoundRuns
    run: Run
    places: Mapping[str, str]
    """The project's folder on each node."""

    @property
    def stranger(self) -> str:
        """The user that launched the run; empty for the current user."""
        return "" if self.run.user == getpass.getuser() else self.run.user or "?"

    def agreed(self, what: str, *, yes: bool) -> bool:
        """Return whether the run may be stopped: another user's needs a confirmation."""
        if not self.stranger:
            return True
        began = f" since {self.run.started_at}" if self.run.started_at else ""
        return agreed(f"Run {self.run.run_id} was launched by {self.stranger}{began}. {what}", yes=yes)


@contextmanager
def at_hand(specs: Sequence[Holder], run: str | None) -> Iterator[AtHand]:
    """Yield the run with this id; without an id, the only active run of this user, wherever it is."""
    with connected_for(specs, run) if run else connected(specs) as nodes:
        local = [] if run else stand_ins(specs)
        found = find_runs([*nodes, *local])
        for line in found.not_understood:
            say(f"note: {line}")
        chosen = run_on_nodes(found, run, "end") if run else only_run_of(found, getpass.getuser())
        if line := spoken_by_nodes(chosen.run_id):
            say(f"note: {line}")
        holders = holding(local, chosen.run_id) or nodes  # one name may be that of a machine and of a stand-in
        plan = RunRecord(chosen.run_id).newest_plan()
        yield AtHand(
            nodes=[*holders, *others_here(holders, plan)],
            found=found,
            run=chosen,
            places=_places(specs, chosen, plan),
        )


def _places(specs: Sequence[Holder], run: Run, plan: Plan | None) -> Mapping[str, str]:
    """The project's folder on each machine. The name of a project that comes from a label is used only if it is one."""
    own = places_of(plan) if plan and not plan.cluster else {}
    project = plan.project if plan else run.project
    return {**places_in(machines_of(specs), project), **own} if re.fullmatch(NODE_NAME, project) else own


def stop_everywhere(at_hand: AtHand, *, timeout_s: int) -> StoppedRun:
    """Stop the run on every node that answers; report the errors of the others."""
    chosen, found = at_hand.run, at_hand.found
    record = RunRecord(chosen.run_id)
    containers = running_containers(chosen, {node.name: node for node in at_hand.nodes})
    if not (ended := _ended(chosen, record)):
        say(f"stopping run {chosen.run_id} on {', '.join(dict.fromkeys(one.node for one in chosen.containers))}")
    try:
        done = stop_run(
            [node for node in at_hand.nodes if node.name not in found.unreachable],
            record,
            timeout_s=timeout_s,
            silent=found.unreachable,
            places=at_hand.places,
        )
    except KeyboardInterrupt:
        say(f"\nthe nodes have the request, and continue stopping\n  → at once: orch stop {chosen.run_id} --timeout 0")
        raise
    report_errors(outcome.error for outcome in done.outcomes)
    if done.not_recorded:
        say(
            f"! the record of run {chosen.run_id} on this computer cannot be written ({done.not_recorded}): it does not"
            f" say that the run was stopped; its nodes do\n  → free space: {record.folder}"
        )
    done_on = (outcome.item.node.name for outcome in done.outcomes if not outcome.error)
    return StoppedRun(
        run_id=chosen.run_id,
        nodes=tuple(name for name in dict.fromkeys(done_on) if name not in done.left),
        checkpoint_step=done.checkpoint_step,
        left=done.left,
        cluster=next((cluster_of(one.node) for one in containers), ""),
        ended=ended,
        is_recorded=not done.not_recorded,
    )


def recorded_end(run_id: str) -> StoppedRun | None:
    """Return the end of a run that no node shows, as it is on record; None: there is none."""
    record = RunRecord(run_id)
    end, checkpoint = record.outcome(), record.last_checkpoint()
    if end is None or record.journal.is_lost:
        return None
    return StoppedRun(run_id=run_id, nodes=(), checkpoint_step=checkpoint[0] if checkpoint else None, ended=end[0])


def _ended(run: Run, record: RunRecord) -> str:
    """The state in which the run has ended, which is recorded if it was not; empty: it has not.

    Containers that failed are no end without the record's: the run may be about to restart.
    """
    if run.active_nodes:
        return ""
    if run.state is State.SUCCEEDED:
        with suppress(OSError):  # of a full disk: the end is not recorded, and all else is done
            record.note_end(run.attempt, State.SUCCEEDED, "")
    end = record.outcome()
    return end[0] if end and not record.journal.is_lost else ""


def tell_missing(found: FoundRuns) -> None:
    """Report nodes that did not answer, and lines of nodes that were not understood."""
    for name, problem in found.unreachable.items():
        say(f"note: {name}: {problem.message}")
    for line in found.not_understood:
        say(f"note: {line}")


def beside_the_record(run: Run, found: FoundRuns) -> str:
    """Lines on what nodes show of a run beside its record, each with the next step: another attempt, containers that
    are no part of it or should have ended. Empty where there is nothing of that kind."""
    now = time.time()
    return beside_lines(verdict(state_without_lines(run, found, now), now), run)


def beside_lines(judged: Verdict, run: Run) -> str:
    """The same by a verdict on the run."""
    shown = [one for one in judged.conditions if one.code in BESIDE_THE_RECORD]
    return "\n".join(line for one in shown for line in condition_lines(one, run.run_id, named=True))


def half_launched(run: Run) -> str:
    """Lines on a launch that was cut short; empty for another run."""
    record = RunRecord(run.run_id)
    over = record.is_stopping() or record.outcome()
    return half_launched_line(run) if run.half_launched and not over else ""
