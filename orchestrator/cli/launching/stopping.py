"""Stop a run: choose it, ask if another user launched it, stop it on all nodes, report the outcome."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.cli.consent import agreed
from orchestrator.cli.report import report_errors, say
from orchestrator.fleet.connect import connected, connected_for, holding, stand_ins
from orchestrator.fleet.runs.find_runs import FoundRuns, choose_run, find_runs, only_run_of, running_containers
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.stop import stop_run
from orchestrator.nodes.cluster_nodes import cluster_of
from orchestrator.nodes.interface import Node
from orchestrator.render.runs import half_launched_line, half_stopped_line
from orchestrator.specs.errors import PartialError
from orchestrator.specs.run import Run

if TYPE_CHECKING:
    from orchestrator.fleet.connect import Holder


@dataclass(frozen=True, kw_only=True)
class StoppedRun:
    """The nodes where a run was stopped, and its last checkpoint."""

    run_id: str
    nodes: tuple[str, ...]
    checkpoint_step: int | None
    left: tuple[str, ...] = ()
    """Nodes where it may still run."""
    cluster: str = ""
    """Where it is a job."""

    @property
    def kept(self) -> str:
        """The last checkpoint, in words."""
        return "no checkpoint" if self.checkpoint_step is None else f"checkpoint of step {self.checkpoint_step}"

    def require_all(self) -> None:
        """PartialError: the run may still be active on nodes that did not answer."""
        if self.left:
            done = f"stopped on {', '.join(self.nodes)} ({self.kept}), but " if self.nodes else ""
            names = ", ".join(self.left)
            if self.cluster:
                raise PartialError(
                    f"run {self.run_id} {done}may still run on {names}",
                    hint=f"once {self.cluster} can be reached: orch stop {self.run_id}",
                )
            raise PartialError(
                f"run {self.run_id} {done}may still run on {names}\n"
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

    @property
    def stranger(self) -> str:
        """The user that launched the run; empty for the current user."""
        return "" if self.run.user == getpass.getuser() else self.run.user or "?"

    def agreed(self, what: str, *, yes: bool) -> bool:
        """Whether the run may be stopped: another user's needs a confirmation."""
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
        chosen = choose_run(found, run) if run else only_run_of(found, getpass.getuser())
        holders = holding(local, chosen.run_id) or nodes  # one name may be that of a machine and of a stand-in
        yield AtHand(nodes=holders, found=found, run=chosen)


def stop_everywhere(at_hand: AtHand, *, timeout_s: int) -> StoppedRun:
    """Stop the run on every node that answers; report the errors of the others."""
    chosen, found = at_hand.run, at_hand.found
    containers = running_containers(chosen, {node.name: node for node in at_hand.nodes})
    say(f"stopping run {chosen.run_id} on {', '.join(one.node.name for one in containers)}")
    try:
        done = stop_run(containers, RunRecord(chosen.run_id), timeout_s=timeout_s)
    except KeyboardInterrupt:
        say(f"\nthe nodes have the request, and continue stopping\n  → at once: orch stop {chosen.run_id} --timeout 0")
        raise
    failed = report_errors(outcome.error for outcome in done.outcomes)
    silent: list[str] = []
    if len(containers) < chosen.nnodes:  # a node that does not answer may run a part of it: any, if its plan is unknown
        asked = {one.node.name for one in containers}
        plan = RunRecord(chosen.run_id).plan()
        parts = {part.node for part in plan.nodes} if plan and plan.attempt == chosen.attempt else found.unreachable
        silent = [name for name in found.unreachable if name in parts and name not in asked]
    return StoppedRun(
        run_id=chosen.run_id,
        nodes=tuple(outcome.item.node.name for outcome in done.outcomes if not outcome.error),
        checkpoint_step=done.checkpoint_step,
        left=(*(error.node for error in failed), *silent),
        cluster=next((cluster_of(one.node) for one in containers), ""),
    )


def tell_missing(found: FoundRuns) -> None:
    """Report nodes that did not answer, and lines of nodes that were not understood."""
    for name, problem in found.unreachable.items():
        say(f"note: {name}: {problem.message}")
    for line in found.not_understood:
        say(f"note: {line}")


def half_way(run: Run) -> str:
    """Return the next step for a run that is only partly stopped or partly launched; empty otherwise."""
    record = RunRecord(run.run_id)
    if (run.is_going and record.was_stopped(run.attempt)) or (run.half_launched and record.is_stopping()):
        plan = record.plan()
        return half_stopped_line(run, on_cluster=bool(plan and plan.cluster))
    return half_launched_line(run) if run.half_launched else ""
