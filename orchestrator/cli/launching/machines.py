"""Machines of the inventory as the place where a run starts: each node is asked, and gets its container."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from contract.result_files import within_limit
from orchestrator.cli.consent import agreed, can_ask, require_consent
from orchestrator.cli.launching.checked_plan import checked_facts, plan_checked
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.first_steps import FirstSteps, NotReadyError
from orchestrator.cli.launching.missing_modules import possible_modules
from orchestrator.cli.launching.order import LaunchOrder
from orchestrator.cli.launching.own_code import OwnCode, own_code
from orchestrator.cli.report import say_once, write_json, write_line
from orchestrator.fleet.connect import connected
from orchestrator.fleet.images.build_context import read_additions
from orchestrator.fleet.planning.imports import Imports, imports_of
from orchestrator.fleet.planning.look_ahead import CheckedWords
from orchestrator.fleet.planning.request import build_request, new_identity, with_engine
from orchestrator.fleet.runs.find_runs import must_be_over
from orchestrator.fleet.runs.launch import launch as start_all
from orchestrator.nodes.interface import Node
from orchestrator.plan.lines import plan_lines
from orchestrator.plan.packages import command_to_add
from orchestrator.render.printable import counted
from orchestrator.specs.errors import UsageError
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_data
from orchestrator.specs.program import ProgramKind
from orchestrator.specs.request import LaunchRequest
from orchestrator.store.run_record import RunRecord

if TYPE_CHECKING:
    from orchestrator.cli.launching.following import Attended
    from orchestrator.fleet.checkpoints.results import WrittenResults
    from orchestrator.fleet.supervise.replan import PreviousAttempt
    from orchestrator.specs.inventory import Inventory
    from orchestrator.state.recovery import Update
    from orchestrator.state.run_outcome import RunOutcome


class MachineEngine:
    """Machines of the inventory."""

    def settled(self, order: LaunchOrder) -> LaunchOrder:
        options, mode = order.options, order.mode
        if mode.forecast and (options.resume or mode.detach):
            other = "--resume" if options.resume else "--detach"
            raise UsageError(
                f"--forecast measures, shows and ends: it does not go with {other}",
                hint="orch launch --forecast -- gpt2 … with the options of the run",
            )
        if mode.forecast:
            options.program.measuring()  # refuse a script, which cannot be measured
        if options.nodes == "auto":
            must_run(order.prog, options)
            own_code(options)  # what is wrong with it is reported before the question, and before nodes are measured
            require_consent(yes=mode.confirmed or mode.dry_run, look_first="--dry-run")
            from orchestrator.cli.launching.capacity import with_best_nodes

            return replace(order, options=with_best_nodes(order.inventory, options, mode))
        if not options.resume or order.earlier:
            return order
        require_consent(yes=mode.confirmed or mode.dry_run, look_first="--dry-run")  # it may be taken over
        from orchestrator.cli.launching.grants import plan_to_continue

        machines = with_engine(order.inventory, options.engine)
        with connected(machines.nodes) as everyone:
            earlier = plan_to_continue(everyone, machines, options, ask=not mode.confirmed, dry_run=mode.dry_run)
        return replace(order, earlier=earlier)

    def request(self, order: LaunchOrder, checked: CheckedWords, code: OwnCode | None) -> LaunchRequest:
        """Return the request, with the packages that its image needs."""
        again, image = order.again, order.inventory.image
        machines = with_engine(order.inventory, order.options.engine)
        imports = _imports(code, order.options)
        request = replace(
            build_request(machines, order.options, order.before, os.environ, notify=say_once),
            packages={name: command_to_add([name], image.requirements) for name in checked.packages},
            imports=imports.needed,
            possible_imports=imports.possible,
        )
        if again and request.code_digest == again.code_digest:
            request = replace(request, code_origin=again.code_origin)  # it may have been fetched from a node
        if not request.image:
            additions, dockerfile = read_additions(image).digest, image.dockerfile or ""
            request = replace(
                request, additions=additions, requirements=image.requirements or "", dockerfile=dockerfile
            )
        return replace(request, command=request.program.measuring()) if order.mode.forecast else request

    @contextmanager
    def planned(self, order: LaunchOrder, request: LaunchRequest) -> Iterator[MachineRun]:
        """Plan, as `LaunchEngine` does. NotReadyError: an inventory to write, or images to build, are missing."""
        options, mode, earlier = order.options, order.mode, order.earlier
        machines = with_engine(order.inventory, options.engine)
        identity = new_identity(options.name, earlier)
        with (
            connected(request.nodes) as nodes,
            _attempt_before(machines, request, order, nodes) as before,
        ):
            facts = checked_facts(nodes, request, identity, mode, building=not order.before)
            for note in possible_modules(request.possible_imports, facts):
                say_once(note)
            if before and earlier:
                from orchestrator.cli.launching.earlier_attempt import with_checkpoint

                ask = not (mode.confirmed or mode.dry_run or mode.as_json)
                before = with_checkpoint(before, earlier.run_id, options.checkpoint, ask=ask)
            plan = plan_checked(nodes, request, facts, identity, before)
            if before and not order.ending and before.starts_over(plan.command):
                own = ", unless your script loads what it has saved itself" if plan.program.is_own else ""
                note = f"no checkpoint of run {plan.run_id} is known: it starts from the beginning{own}"
                plan = replace(plan, notes=(*plan.notes, note))
            if not mode.dry_run and order.to_write:
                raise NotReadyError(FirstSteps(nodes=request.nodes))
            if not mode.dry_run and not order.ending and before and before.runs:
                must_be_over(before.runs.result(), plan.run_id)
            yield MachineRun(order=order, nodes=nodes, request=request, plan=plan, previous=before)


@dataclass(frozen=True, kw_only=True)
class MachineRun:
    """A run that is ready to start on its nodes."""

    order: LaunchOrder
    nodes: Sequence[Node]
    request: LaunchRequest
    plan: Plan
    previous: PreviousAttempt | None

    def write(self) -> None:
        """Write the plan, or the lines of a shell that do the same."""
        if self.order.mode.as_json:
            write_json(to_data(self.plan))
            return
        write_line("\n".join(plan_lines(self.plan, {spec.name: spec for spec in self.request.nodes})))
        self._show_changes()

    def show(self, *, asking: bool) -> None:
        """Print the nodes before a question, and what is to be known of the plan."""
        from orchestrator.cli.launching.view import tell_notes, tell_plan

        if not self.order.mode.as_json:
            self._show_changes()
        if asking:
            tell_plan(self.plan)
        if asking or not self.order.mode.as_json:
            tell_notes(self.plan)

    def _show_changes(self) -> None:
        from orchestrator.cli.launching.view import tell_changes

        if self.order.again:
            tell_changes(self.order.again, self.plan)

    @property
    def question(self) -> tuple[str, bool]:
        """A resumed run without a checkpoint starts from the beginning, which an empty line does not agree to."""
        if self.previous and self.previous.starts_over(self.plan.command):
            return "Start it from the beginning?", False
        return "Start it?", True

    def start(self) -> Attended:
        """Copy files that nodes do not have, and start every container or none; a forecast starts when followed."""
        mode, plan, by_name = self.order.mode, self.plan, {node.name: node for node in self.nodes}
        if self.request.downloads:
            from orchestrator.cli.report import progress_view
            from orchestrator.fleet.downloads import fetch_once

            with progress_view(quiet=mode.as_json) as view:
                fetch_once(by_name, plan, self.request.downloads, view.notify)
        from orchestrator.cli.launching.following import Attended
        from orchestrator.fleet.supervise.followed import FollowedRun

        followed = FollowedRun(RunRecord(plan.run_id))
        if mode.forecast:
            return Attended(plan=plan, followed=followed, follow=self._forecast)
        from orchestrator.cli.launching.view import Screen
        from orchestrator.cli.report import progress_view

        large = self.previous is not None and _agrees_to_copy(plan, self.previous.results.result(), self.order)
        screen = Screen(plan, quiet=mode.as_json)
        with progress_view(quiet=mode.as_json, notes=True) as view:
            notify = screen.after(view)
            if self.previous:
                containers = self.previous.launch_next(plan, notify, self.request.folders, large=large)
            else:
                containers = start_all(by_name, plan, fresh=self.request.folders, notify=notify)
        if mode.detach:
            screen.close()
        # Needed from here on: ranks start meanwhile.
        from orchestrator.cli.launching.supervise import supervised
        from orchestrator.fleet.supervise.rendezvous import Arrivals
        from orchestrator.fleet.supervise.replan import NodePool

        pool = NodePool(nodes=by_name, request=self.request)
        return Attended(
            plan=plan,
            followed=followed,
            follow=supervised(pool, plan, containers, followed, quiet=mode.as_json),
            hear=screen.showing(Arrivals(by_name, plan, followed.state)),
            screen=screen,
            hooks=self.order.inventory.hooks,
        )

    def _forecast(self, _hear: Callable[[Update], None]) -> RunOutcome:
        """Measure, and save the measurement for later plans."""
        from orchestrator.cli.launching.measure import run_probe, save_measurement

        probe = run_probe(self.nodes, self.plan, self.request, quiet=self.order.mode.as_json, forecasts=True)
        save_measurement(self.plan, self.request.command, probe)
        return probe


def _attempt_before(
    machines: Inventory, request: LaunchRequest, order: LaunchOrder, nodes: Sequence[Node]
) -> AbstractContextManager[PreviousAttempt | None]:
    """The attempt that is resumed; None for a new run, which loads nothing of it."""
    if not order.earlier:
        return nullcontext()
    from orchestrator.cli.launching.earlier_attempt import earlier_attempt

    return earlier_attempt(machines, request, order.earlier, nodes, ending=order.ending)


def _imports(code: OwnCode | None, options: LaunchOptions) -> Imports:
    """Read what the user's Python script imports; nothing for any other command."""
    if code is None or options.program.kind is not ProgramKind.SCRIPT:
        return Imports()
    path = [code.folder / part for part in options.environment.get("PYTHONPATH", "").split(":") if part]
    return imports_of(code.folder, options.program.rank_words(), path)


def _agrees_to_copy(plan: Plan, results: WrittenResults, order: LaunchOrder) -> bool:
    """Ask about files of the last attempt that are more than is copied unasked; without a terminal they stay."""
    from orchestrator.render.recovery import file_size

    large = [files for files in results.wanted(plan).values() if not within_limit(files)]
    if not large or not can_ask():
        return False
    size, nodes = file_size(max(sum(file.size for file in files) for files in large)), counted(len(large), "node")
    return agreed(f"Copy {size} that rank 0 wrote from {results.source} to {nodes}?", yes=order.mode.confirmed)
