"""Stopping a run, and saying how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.cli.report import report_error, say
from orchestrator.fleet.connect import connected_for
from orchestrator.fleet.runs.find_runs import choose_run, find_runs, seats_of
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.stop import stop_run
from orchestrator.specs.errors import PartialError
from orchestrator.specs.inventory import NodeSpec


@dataclass(frozen=True, kw_only=True)
class StoppedRun:
    """What was stopped, and where."""

    run_id: str
    nodes: tuple[str, ...]
    checkpoint_step: int | None
    left: tuple[str, ...] = ()
    """Nodes where it may still run."""

    @property
    def kept(self) -> str:
        """What of it is kept, in words."""
        return "no checkpoint" if self.checkpoint_step is None else f"checkpoint of step {self.checkpoint_step}"

    def require_all(self) -> None:
        """PartialError: it may still run somewhere."""
        if self.left:
            done = f"stopped on {', '.join(self.nodes)} ({self.kept}), but " if self.nodes else ""
            raise PartialError(
                f"run {self.run_id} {done}may still run on {', '.join(self.left)}",
                hint=f"when they answer again: orch stop {self.run_id}",
            )


def stop_and_tell(specs: Sequence[NodeSpec], run: str | None, *, timeout_s: int) -> StoppedRun:
    """Stop it everywhere. PartialError: not every node could be told."""
    stopped = stop_everywhere(specs, run, timeout_s=timeout_s)
    stopped.require_all()
    tell_stopped(stopped)
    return stopped


def tell_stopped(stopped: StoppedRun) -> None:
    say(f"✓ run {stopped.run_id} stopped, {stopped.kept}")


def stop_everywhere(specs: Sequence[NodeSpec], run: str | None, *, timeout_s: int) -> StoppedRun:
    """Stop it wherever it can be; errors of nodes are reported."""
    with connected_for(specs, run) as nodes:
        found = find_runs(nodes)
        for line in found.not_understood:
            say(f"note: {line}")
        chosen = choose_run(found, run)
        seated = seats_of(chosen, {node.name: node for node in nodes})
        say(f"stopping run {chosen.run_id} on {', '.join(seat.node.name for seat in seated)}")
        try:
            done = stop_run(seated, RunRecord(chosen.run_id), timeout_s=timeout_s)
        except KeyboardInterrupt:
            say(f"\nthe nodes were told, and go on stopping\n  → at once: orch stop {chosen.run_id} --timeout 0")
            raise
    failed = [outcome.error for outcome in done.outcomes if outcome.error]
    for error in failed:
        report_error(error)
    silent = [name for name in found.unreachable if name not in {seat.node.name for seat in seated}]
    return StoppedRun(
        run_id=chosen.run_id,
        nodes=tuple(outcome.item.node.name for outcome in done.outcomes if not outcome.error),
        checkpoint_step=done.checkpoint_step,
        left=(*(error.node for error in failed), *(silent if len(seated) < chosen.nnodes else ())),
    )
