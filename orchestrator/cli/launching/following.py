"""Follow an active run to its end, wherever it runs, with the user's hooks; or leave it to a supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import say, write_json, write_line
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.hooks import HookResult, Hooks
from orchestrator.nodes.state_files import open_private
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PartialError, RunFailedError
from orchestrator.specs.inventory import HookSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.replaced import replaced
from orchestrator.specs.secret import concealed
from orchestrator.state.phase import Phase
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord

LOG = "supervisor.log"
"""Output of a detached supervisor, in the run's folder."""

Follow = Callable[[Callable[[Update], None]], RunOutcome]
"""Follows a run to its end, and passes each event on."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """An active run, and how it is followed and shown."""

    plan: Plan
    followed: FollowedRun
    follow: Follow
    hear: Callable[[Update], None] = lambda _update: None
    """Shows an event."""
    screen: AbstractContextManager[object] = field(default_factory=nullcontext)
    hooks: HookSpec = field(default_factory=HookSpec)
    job: str = ""
    """Number of its job, on a cluster."""


def see_through(run: Attended, mode: OutputMode) -> int:
    """Follow the run to its end and return the exit code. Ctrl-C leaves it to a supervisor in the background.

    PartialError: no node answers any more.
    """
    from orchestrator.cli.launching.view import tell_end

    plan, folder = run.plan, mode.inventory.parent if mode.inventory else Path()
    of_user = Hooks(spec=run.hooks, plan=plan, followed=run.followed, folder=folder)

    def hear(update: Update) -> None:
        run.hear(update)
        of_user.hear(update)
        tell_hooks(of_user.results())

    try:
        with run.screen:
            outcome = run.follow(hear)
    except KeyboardInterrupt:
        say(f"\nrun {plan.run_id} continues{f' on {plan.cluster}' if plan.cluster else ''} without you")
        leave_to_supervisor(plan, mode)
        return EXIT_INTERRUPTED
    is_lost = outcome.phase is Phase.LOST and not mode.forecast
    if not is_lost:
        of_user.end(outcome)
    tell_hooks(of_user.results(wait=True))
    if is_lost:
        raise PartialError(
            f"no node of run {plan.run_id} answers; it may continue there",
            hint=f"when they do again: orch supervise {plan.run_id}",
        )
    tell_end(run.followed.record.plan() or plan, outcome, mode)
    failed = outcome.failure or (mode.forecast and not outcome.forecast)
    return RunFailedError.exit_code if failed else EXIT_OK


def tell_hooks(results: Sequence[HookResult]) -> None:
    """Print the output of the user's commands, and name those that failed: that changes nothing of the run."""
    for result in results:
        for line in result.output.splitlines():
            say(f"{result.name}: {line}")
        if result.problem:
            say(f"note: hook {result.name}: {result.problem}\n  its command: {result.text}")


def detach(run: Attended, mode: OutputMode) -> int:
    """Write the run's id, and leave the run to a supervisor in the background."""
    if mode.as_json:
        write_json({"run_id": run.plan.run_id, **({"job": run.job} if run.job else {})})
    else:
        write_line(run.plan.run_id)
    leave_to_supervisor(run.plan, mode)
    return EXIT_OK


def leave_to_supervisor(plan: Plan, mode: OutputMode) -> None:
    """Start `orch supervise` in a session of its own, which outlives this command; nothing with `--no-supervise`, nor
    for a job, which its scheduler and its agents supervise.

    Values that no record holds are in its environment, in case it has to launch the next attempt.
    """
    run = plan.run_id
    if not mode.no_supervise and not plan.cluster:
        log = RunRecord(run).folder / LOG
        inventory = ("-i", str(mode.inventory)) if mode.inventory else ()
        engine = ("--engine", mode.engine) if mode.engine else ()
        command = [sys.executable, "-P", "-m", "orchestrator", "supervise", run, *inventory, *engine]
        _spawn.get()(command, log, concealed(plan.environment))
        say(f"  supervised in the background; its log: {log}")
    say(f"  → orch logs -f {run}   orch status {run}   orch stop {run}")


def spawn(argv: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
    """Start a process in the background, with these variables added to the environment."""
    environment, null = {**os.environ, **variables}, subprocess.DEVNULL
    with open_private(log) as out:
        subprocess.Popen(argv, stdin=null, stdout=out, stderr=out, env=environment, start_new_session=True)


Spawn = Callable[[Sequence[str], Path, Mapping[str, str]], None]

_spawn: ContextVar[Spawn] = ContextVar("spawn", default=spawn)


def spawning_by(other: Spawn) -> AbstractContextManager[None]:
    """Start supervisors with `other` inside this context: tests record them."""
    return replaced(_spawn, other)
