"""Following a run that was launched, with what is done for it when something breaks; leaving it to a watcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import typer

from orchestrator.cli.launching.output_mode import OutputMode
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.checkpoints.copy import Notify
from orchestrator.fleet.checkpoints.replicate import replicate
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.supervise.attempt_state import RunOutcome
from orchestrator.fleet.supervise.loop import Ears, Watch, watch
from orchestrator.fleet.supervise.one_supervisor import only_watcher
from orchestrator.fleet.supervise.replan import Company
from orchestrator.nodes.interface import Node
from orchestrator.nodes.state_files import open_private
from orchestrator.plan.recovery import Told
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PartialError, RunFailedError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import State
from orchestrator.specs.secret import concealed

LOOKS = 20
"""For the watcher of an attempt that has just been stopped to leave."""
LOG = "watch.log"
"""In the run's folder: what a detached watcher said."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """A run that goes on, and who it is told to."""

    company: Company
    plan: Plan
    seated: Sequence[RunningContainer]
    told: Callable[[Told], None]
    looks: int = LOOKS
    screen: AbstractContextManager[object] = field(default_factory=nullcontext)


def see_through(run: Attended, mode: OutputMode, *, out_of_sight_s: float | None = None) -> int:
    """Follow the run to its end and return the exit code. Ctrl-C leaves it to a watcher in the background.

    `out_of_sight_s`: seconds without an answer of any node until it gives up (default: the run's node timeout).
    """
    from orchestrator.cli.launching.view import how_to_go_on, tell_end

    record = RunRecord(run.plan.run_id)
    how = Watch(
        company=run.company,
        ears=Ears(told=run.told, checkpoint=_replicate, failed=report_error, notify=_notify(quiet=mode.as_json)),
        out_of_sight_s=out_of_sight_s,
    )
    try:
        with only_watcher(record, tries=run.looks), run.screen:
            outcome = watch(how, run.plan, run.seated)
    except KeyboardInterrupt:
        say(f"\nrun {run.plan.run_id} goes on without you")
        leave_to_a_watcher(run.plan, mode)
        say(how_to_go_on(run.plan.run_id))
        return EXIT_INTERRUPTED
    if outcome.state is State.LOST:
        raise PartialError(
            f"no node of run {run.plan.run_id} answers; it may go on there",
            hint=f"when they do again: orch supervise {run.plan.run_id}",
        )
    tell_end(record.plan() or run.plan, outcome, mode)
    return exit_code(outcome)


def _notify(*, quiet: bool) -> Notify:
    """A line now and then: the screen may have a table of its own."""
    from orchestrator.render.progress import ProgressView

    return ProgressView(quiet=quiet, lines=True).notify


def _replicate(nodes: Sequence[Node], plan: Plan, _step: int) -> None:
    """The loss of rank 0's machine is to cost no more than an interval. What fails is said; the next checkpoint tries
    again."""
    if plan.replicas and plan.nnodes > 1:
        for error in replicate(nodes, plan, copies=plan.replicas).failed:
            say(f"note: no copy of the checkpoint there: {error}")


def exit_code(outcome: RunOutcome) -> int:
    """Of the command that saw it end."""
    return RunFailedError.exit_code if outcome.failure else EXIT_OK


def leave_to_a_watcher(plan: Plan, mode: OutputMode) -> None:
    """Start `orch supervise` in a session of its own: it outlives this command and its terminal.

    Values that no record holds are in its environment, should it have to launch the run anew.
    """
    if mode.no_watch:
        return
    log = RunRecord(plan.run_id).folder / LOG
    inventory = ("-i", str(mode.inventory)) if mode.inventory else ()
    engine = ("--engine", mode.engine) if mode.engine else ()
    command = [sys.executable, "-m", "orchestrator", "watch", plan.run_id, *inventory, *engine]
    _spawn.get()(command, log, concealed(plan.environment))
    say(f"  watched in the background; what is done for it stands in {log}")


def spawn(argv: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
    """A process that nobody waits for, with these variables beside ours."""
    with open_private(log) as out:
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **variables},
            start_new_session=True,
        )


Spawn = Callable[[Sequence[str], Path, Mapping[str, str]], None]

_spawn: ContextVar[Spawn] = ContextVar("spawn", default=spawn)


@contextmanager
def spawning_by(other: Spawn) -> Iterator[None]:
    """Within it, watchers are started so: tests note them."""
    token = _spawn.set(other)
    try:
        yield
    finally:
        _spawn.reset(token)


def tell_line(told: Told) -> None:
    """For who follows without a screen: what is done for the run, on stdout, and nothing else."""
    from orchestrator.render.printable import printable
    from orchestrator.render.recovery import recovery_line

    if line := recovery_line(told):
        typer.echo(printable(line))
        sys.stdout.flush()
