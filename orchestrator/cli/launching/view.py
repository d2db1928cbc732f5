"""Output of a launch: phases until the first step, then the ranks' lines, then the outcome."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from contract.cost_model.forecast import Forecast
from contract.events import LineRedrawn
from orchestrator.checks.failure import Failure
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import say, write_json
from orchestrator.fleet.fan_out import Notify
from orchestrator.fleet.supervise.rendezvous import Arrivals
from orchestrator.nodes.interface import Progress
from orchestrator.plan.model_use import ACTIONS
from orchestrator.render import phases
from orchestrator.render.consequences import Consequences, peers
from orchestrator.render.console import stderr, stdout
from orchestrator.render.findings import MARKS, fold, sentence
from orchestrator.render.forecast import forecast_line, forecast_view
from orchestrator.render.log_lines import SameLines, SharedLine, log_line, own_place, shared_line
from orchestrator.render.printable import printable
from orchestrator.render.progress import ProgressView
from orchestrator.render.recovery import recovery_line
from orchestrator.render.why import headline, logs_command
from orchestrator.specs.finding import Finding
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import ContainerExited, Replanned, RunEvent, RunLine, Tick
from orchestrator.specs.seen import seen_now
from orchestrator.state.next_step import next_step
from orchestrator.state.phase import phase_of
from orchestrator.state.progress import progress_of, words_of_script
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.state.run_state import RunState
from orchestrator.watch.compare import compare, plan_facts
from orchestrator.watch.follow_lines import FollowLines

REMIND_EVERY_S = 10.0
BARS, BAR_S = 8, 10.0
"""Progress bars below the lines, and the time without a new state after which one has ended."""


class Screen:
    """The output of a launch. On a terminal the phases are a table below the lines; elsewhere each phase is a line."""

    def __init__(self, plan: Plan, *, quiet: bool, forecasts: bool = True, unproven: bool = False) -> None:
        """`forecasts`: whether they are shown; `unproven`: with the sync methods that `auto` never takes."""
        self._quiet, self._forecasts, self._unproven = quiet, forecasts, unproven
        self._out, self._err = stdout(), stderr()
        self._out.quiet = self._err.quiet = quiet
        self._live: Live | None = None
        self._draws = False
        """True if a table, progress and bars are drawn below the lines."""
        self._reminded = time.monotonic()
        self._last_line = ""
        self._show_plan(plan)
        for part in plan.nodes if not plan.cluster else ():
            self.reach(part.node, "image checked")

    def _show_plan(self, plan: Plan) -> None:
        self._plan, self._phases = plan, phases.Phases(plan=plan)
        self._consequences, self._same = Consequences(peers(plan)), SameLines()
        self._conditions = FollowLines()
        self._names = [part.node for part in plan.nodes]
        self._forecast: Forecast | None = None
        """The one that was printed."""
        self._arrived = False
        """True if the table was printed for the last time."""
        self._printed = ""
        """Progress read from the output, and optimizer steps, while the program's own events report none."""
        self._bars: dict[str, tuple[float, RunLine]] = {}
        """Time and newest state of each progress bar, of the lowest rank that draws it."""
        self._width = max(len(part.node) for part in plan.nodes)
        self._several = any(part.nproc_per_node > 1 for part in plan.nodes)

    def __enter__(self) -> Screen:
        self._draws = self._err.is_terminal and not self._quiet
        self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._draws = False
        self.close()

    def close(self) -> None:
        """Show the lines that are held, and update the phases no more."""
        self._print(self._same.rest())
        if self._live:
            self._live.stop()
            self._live = None

    @property
    def messages(self) -> Console:
        """Console for lines above the table while it is shown."""
        return self._err

    def after(self, view: ProgressView) -> Notify:
        """Return a function that shows steps and copies in this view, which ends with the first phase."""

        def show(node: str, progress: Progress) -> None:
            if progress.text in phases.PHASES:
                view.stop()
                self.reach(node, progress.text)
            else:
                view.notify(node, progress)

        return show

    def reach(self, node: str, phase: str) -> None:
        """Note that a node has reached a phase; without a table, print a line once all nodes have."""
        if not self._phases.reach(node, phase):
            return
        if self._live:
            self._draw()
        elif all(phase in self._phases.reached[name] for name in self._phases.training):
            seconds = max(self._phases.reached[name][phase] for name in self._phases.training)
            word = f"{self._plan.nnodes}/{self._plan.nnodes} joined" if phase == phases.JOINED else phase
            self._err.print(f"✓ {word}: {', '.join(self._phases.training)} ({seconds:.1f} s)")

    def showing(self, arrivals: Arrivals) -> Callable[[Update], None]:
        """Return a function that shows each event of a run, and the nodes that have arrived meanwhile."""

        def show(run_event: Update) -> None:
            self._show(run_event, arrivals.state)
            for node in arrivals.hear(run_event):
                self.reach(node, phases.MASTER)

        return show

    def _show(self, run_event: Update, state: RunState) -> None:
        """Show a line or an event of a rank, and the actions of the supervisor."""
        self._print_update(run_event)
        if not isinstance(run_event, RunEvent):
            return
        for text in self._conditions.after(run_event, state, seen_now()):
            self._err.print(text, markup=False, highlight=False, soft_wrap=True)
        if isinstance(run_event, RunLine) and (run_event.event or self._is_first_of_rank(run_event)):
            self._note_bar(run_event)
            self._note_state(state)
        if self._live and self._phases.complete and not self._arrived:
            self._arrived = True
            self._live.update(self._phases.table(), refresh=True)
            self.close()
            self._err.print(self._phases.table())
        if isinstance(run_event, RunLine):
            for line in self._consequences.hear(run_event):
                self._print(self._same.hear(line, context=False))
        elif isinstance(run_event, Tick | ContainerExited):
            for line in self._consequences.rest():
                self._print(self._same.hear(line, context=False))
            self._print(self._same.rest())
        if isinstance(run_event, Tick):
            self._drop_bars()
            self._remind()

    def _is_first_of_rank(self, line: RunLine) -> bool:
        """Return whether a rank of this node has written nothing before."""
        return line.rank is not None and phases.MASTER not in self._phases.reached.get(line.node, (phases.MASTER,))

    def _note_bar(self, line: RunLine) -> None:
        """Take a state of a progress bar into account."""
        event = line.event
        if isinstance(event, LineRedrawn):
            key = event.bar or ""
            known = self._bars.get(key)
            lowest = known is None or (line.rank or 0) <= (known[1].rank or 0)
            if lowest and (known or len(self._bars) < BARS):
                self._bars[key] = time.monotonic(), replace(line, text=event.text or "")
                self._draw()

    def _note_state(self, state: RunState) -> None:
        """Show what is new in the state of the run: phases, nodes that are left out, forecast, progress."""
        for node in self._phases.leave_out(state):
            if not self._live:
                self._err.print(self._phases.line(node))
        for node, phase in () if self._phases.complete else list(self._phases.shown(state)):
            self.reach(node, phase)
        forecast = state.coordinator.part.forecast if state.coordinator else None
        if self._forecasts and forecast and forecast != self._forecast:
            self._forecast = forecast
            self._err.print(forecast_view(forecast, unproven=self._unproven))
        progress = replace(progress_of(state, phase_of(state), state.as_of), age_s=0.0)  # as it was when it came
        printed = words_of_script(progress, running=True)
        if printed != self._printed:
            self._printed = printed
            self._draw()

    def _drop_bars(self) -> None:
        now = time.monotonic()
        if ended := [key for key, (at, _) in self._bars.items() if now - at > BAR_S]:
            for key in ended:
                del self._bars[key]
            self._draw()

    def _draw(self) -> None:
        """Draw the phases until all are reached, the bars, and the progress below the lines of a terminal."""
        parts: list[RenderableType] = [] if self._phases.complete else [self._phases.table()]
        for _, line in self._bars.values():
            state = log_line(line, width=self._width, several_ranks=self._several)
            state.no_wrap, state.overflow = True, "ellipsis"
            parts.append(state)
        if self._printed:
            parts.append(Text(self._printed, "bold"))
        if not self._draws or not (parts or self._live):
            return
        if self._live is None:
            self._live = Live(console=self._err, transient=True)
            self._live.start()
        self._live.update(Group(*parts))

    def _print(self, lines: Iterable[SharedLine]) -> None:
        # The live table would overwrite lines that are printed past its console.
        console = self._err if self._live and self._out.is_terminal else self._out
        for shown in lines:
            if shown.line.event is None:
                console.print(shared_line(shown, self._names, width=self._width, several_ranks=self._several))

    def _print_update(self, update: Update) -> None:
        """Print an event of the run or an action of its supervisor, but no line twice in succession."""
        if isinstance(update, Replanned):
            self.close()
            self._show_plan(update.plan)
        if (line := "\n".join(map(printable, recovery_line(update).split("\n")))) and line != self._last_line:
            self._last_line = line
            self._err.print(line, markup=False, highlight=False, soft_wrap=True)

    def _remind(self) -> None:
        """Print the nodes that have not arrived, where no table shows them."""
        now = time.monotonic()
        if now - self._reminded >= REMIND_EVERY_S and not self._phases.complete:
            self._reminded = now
            if not self._live and (text := self._phases.waiting()):
                self._err.print(text)


def tell_plan(plan: Plan) -> None:
    """Print the nodes of the plan."""
    say(
        f"run {plan.run_id}: {plan.nnodes} nodes, {plan.world_size} ranks, {plan.backend}, "
        f"master {plan.master} {plan.master_addr}:{plan.master_port}"
    )
    for part in plan.nodes:
        say(f"  {part.node_rank} {part.node:<12} {part.address:<15} {part.device:<4} by {part.interface or '?'}")


def tell_changes(before: Plan, plan: Plan) -> None:
    """Print the values of a repeated run that are not those of the run before."""
    left_out = {("nodes", part.node) for part in before.nodes} - {("nodes", part.node) for part in plan.nodes}
    for row in compare(plan_facts(before), plan_facts(plan)):
        if row.differs and (row.section, row.name) not in left_out and row.name != "folder":
            was, now = (value if value not in (None, "") else "none" for value in (row.a, row.b))
            say(f"  not as in run {before.run_id}: {row.section}: {row.name}: {now} (was {was})")


def tell_notes(plan: Plan) -> None:
    """Print what is to be known of the plan, such as options that were added."""
    for note in plan.notes:
        say(f"  note: {note}")


def tell_findings(findings: Sequence[Finding]) -> None:
    """Print the findings, each with its fix."""
    for names, finding in fold(findings):
        say(f"{MARKS[finding.severity]} {sentence(names, finding)} [{finding.id}]")
        if finding.fix:
            say(f"  → {finding.fix}")


def tell_end(plan: Plan, outcome: RunOutcome, mode: OutputMode) -> None:
    """Print the outcome of a run or of a measurement, in words or as JSON."""
    if mode.as_json:
        write_json(outcome_data(plan, outcome))
    elif outcome.failure:
        then = "" if mode.forecast else next_step(plan, outcome.failure, from_checkpoint=outcome.checkpoint)
        tell_failure(plan, outcome.failure, then, is_shown=not mode.forecast)
    elif mode.forecast and outcome.forecast:  # its table has been printed
        say(f"\n✓ {forecast_line(outcome.forecast)}\n  nothing was trained, and nothing is left on the nodes")
    elif mode.forecast:
        say("\n✗ the trainer ended without a forecast: is its image older than this orch?\n  → orch build")
    else:
        _tell_success(plan, outcome)
        if outcome.note:  # the last line: ranks that trained apart, or did not train at all
            stderr().print(printable(outcome.note), style="" if outcome.note.startswith("!") else "dim", markup=False)


def tell_failure(plan: Plan, failure: Failure, then: str = "", *, is_shown: bool = False) -> None:
    """Print the first failure and the next steps.

    `then`: a step before `orch why`. `is_shown`: the ranks' lines stand above, and a traceback is not repeated.
    """
    say(f"\n✗ run {plan.run_id} failed: {headline(failure)}")
    frame = failure.cause.frame if failure.cause and is_shown else ""
    for line in [f"at {own_place(frame)}"] if frame else failure.lines:
        if line.strip() != failure.reason:  # the line above
            say(f"    {line}")
    if failure.cause:
        say(f"  {failure.cause.explanation}")
        say(f"  → {failure.cause.fix[0]}")  # the rest is for `orch why`
    if plan.world_size > 1:
        say("  the other ranks were stopped")
    say(f"  → {logs_command(plan.run_id, failure)}")
    if then:
        say(f"  → {then}")
    say(f"  → orch why {plan.run_id}")


def _tell_success(plan: Plan, outcome: RunOutcome) -> None:
    """Print the folders of the model, and the forecast against the measured speed; without a step, only the folder."""
    forecast = outcome.forecast
    first = next((part for part in plan.nodes if forecast and forecast.led_by(part.node)), plan.nodes[0])
    folder, event = f"{plan.cluster or first.node}:{first.folder}/runs/{plan.run_id}", outcome.last_event
    step = f" at step {event.step}" if event and event.step is not None else ""
    say(f"\n✓ run {plan.run_id} {outcome.phase}{step}")
    if forecast:
        say(f"  {forecast_line(forecast, outcome.of_forecast)}")
    if not (outcome.checkpoint or (event and event.step)):  # no step, so no model: an own script may have other files
        say(f"  folder  {folder}")
        if plan.program.is_own:
            say(f"  → orch pull {plan.run_id}   # copy what it wrote to this computer")
        return
    say(f"  checkpoints  {folder}/checkpoints\n  TensorBoard  {folder}/tensorboard")
    say(f"  → orch pull {plan.run_id}   # copy them to this computer")
    say(f"  → orch report {plan.run_id}   # one HTML file about it; its curves: orch tensorboard {plan.run_id}")
    if not plan.cluster and plan.command and "sample" in ACTIONS.get(plan.command[0], ()):
        say(f"  → orch sample {plan.run_id} --prompt {shlex.quote(_prompt(plan.command))}")


def _prompt(command: Sequence[str]) -> str:
    """The prompt with which the run wrote its own samples, or one in the language of the default text."""
    words = [part for word in command for part in (word.split("=", 1) if word.startswith("--prompt=") else [word])]
    return next((after for word, after in pairwise(words) if word == "--prompt"), "En el principio")


def outcome_data(plan: Plan, outcome: RunOutcome) -> dict[str, Any]:
    """The end of a run for programs."""
    return {
        "run_id": plan.run_id,
        "state": outcome.phase.value,
        "failure": outcome.failure and asdict(outcome.failure),
        "note": outcome.note or None,
        "forecast": outcome.forecast and asdict(outcome.forecast),
        "of_forecast": outcome.of_forecast,
        "last_event": outcome.last_event and {"kind": outcome.last_event.kind, **outcome.last_event.values()},
    }
