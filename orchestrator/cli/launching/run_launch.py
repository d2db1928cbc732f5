"""The steps of a launch: facts, checks, plan, confirm, start, follow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from contract.result_files import within_limit
from orchestrator.cli.consent import agreed, can_ask, require_consent
from orchestrator.cli.launching.capacity import with_best_nodes
from orchestrator.cli.launching.checked_plan import checked_facts, earlier_attempt, plan_checked, with_checkpoint
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.first_steps import FirstSteps, NotReadyError
from orchestrator.cli.launching.grants import agree_to_hooks, plan_to_continue
from orchestrator.cli.launching.measure import run_probe, save_measurement
from orchestrator.cli.launching.missing_modules import possible_modules
from orchestrator.cli.launching.own_code import OwnCode, may_be_copied, own_code
from orchestrator.cli.launching.supervise import Attended, detach, see_through
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import say, say_once, write_json, write_line
from orchestrator.fleet.checkpoints.results import WrittenResults
from orchestrator.fleet.connect import connected
from orchestrator.fleet.images.build_context import read_additions
from orchestrator.fleet.planning.imports import Imports, imports_of
from orchestrator.fleet.planning.request import build_request, chosen_nodes, new_identity, with_engine
from orchestrator.fleet.runs.find_runs import must_be_over
from orchestrator.fleet.runs.launch import launch as start_all
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.rendezvous import Arrivals
from orchestrator.fleet.supervise.replan import NodePool, PreviousAttempt
from orchestrator.nodes.interface import Node
from orchestrator.plan.command import is_own_script, is_shell_script, measuring, worker_command
from orchestrator.plan.lines import plan_lines
from orchestrator.plan.packages import command_to_add
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, RunFailedError, UsageError
from orchestrator.specs.inventory import HookSpec, Inventory
from orchestrator.specs.launch_options import DEFAULT_COMMAND, LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_data
from orchestrator.specs.request import LaunchRequest
from orchestrator.store.run_record import RunRecord
from orchestrator.store.secret_values import require_values


def run_launch(
    inventory: Inventory,
    options: LaunchOptions,
    mode: OutputMode,
    *,
    earlier: Plan | None = None,
    again: Plan | None = None,
) -> int:
    """Start a run on nodes of the inventory and follow it, or print its plan; return the exit code.

    `earlier`: the result of `earlier_plan`; `again`: the plan of another run, whose settings a new run repeats.
    """
    _refuse_a_forecast(options, mode)
    agree_to_hooks(inventory.hooks, mode)
    try:
        return _launch(inventory, options, mode, earlier, again)
    except NotReadyError as error:
        if not error.steps.are_agreed(yes=mode.confirmed):
            say("nothing was started")
            return EXIT_INTERRUPTED
        error.steps.carry_out(inventory, chosen_nodes(inventory, options, earlier), quiet=mode.as_json)
    return _launch(inventory, options, replace(mode, confirmed=True), earlier, again)


def _launch(
    inventory: Inventory, options: LaunchOptions, mode: OutputMode, earlier: Plan | None, again: Plan | None
) -> int:
    """As `run_launch`. NotReadyError: the inventory is to be written, or an image to be built, before a new run."""
    to_write = None if mode.inventory is None or mode.inventory.exists() else mode.inventory
    if not mode.dry_run and not mode.confirmed and not can_ask():
        if not (earlier or again or options.resume):
            _report_what_is_wrong(inventory, options, mode, to_write)
        require_consent(yes=False, look_first="--dry-run")
    if options.nodes == "auto":
        options = with_best_nodes(inventory, options, mode)
    earlier = earlier or earlier_plan(inventory, options, mode)
    building = not (earlier or again)
    with (
        _whole_steps(inventory, options, to_write),
        ready(inventory, options, mode, earlier, again=again, building=building) as (nodes, request, plan, previous),
    ):
        if to_write and not mode.dry_run:
            raise NotReadyError(FirstSteps())
        if mode.dry_run:
            if mode.as_json:
                write_json(to_data(plan))
            else:
                write_line("\n".join(plan_lines(plan, {spec.name: spec for spec in request.nodes})))
                if again:
                    from orchestrator.cli.launching.view import tell_changes

                    tell_changes(again, plan)
            return EXIT_OK
        if previous and previous.runs:
            must_be_over(previous.runs.result(), plan.run_id)
        from orchestrator.cli.launching.view import confirm, tell_changes, tell_end, tell_notes

        if again and not mode.as_json:
            tell_changes(again, plan)
        if mode.confirmed and not mode.as_json:
            tell_notes(plan)
        if not mode.confirmed and not confirm(plan, over=bool(previous and previous.starts_over(plan.command))):
            say("nothing was started")
            return EXIT_INTERRUPTED
        if request.downloads:
            from orchestrator.cli.report import progress_view
            from orchestrator.fleet.downloads import fetch_once

            with progress_view(quiet=mode.as_json) as view:
                fetch_once({node.name: node for node in nodes}, plan, request.downloads, view.notify)
        if not mode.forecast:
            return _run(nodes, plan, request, mode, previous, inventory.hooks)
        probe = run_probe(nodes, plan, request, quiet=mode.as_json, forecasts=True)
    save_measurement(plan, request.command, probe)
    tell_end(plan, probe, mode)
    return EXIT_OK if probe.forecast and not probe.failure else RunFailedError.exit_code


@contextmanager
def _whole_steps(inventory: Inventory, options: LaunchOptions, file: Path | None) -> Iterator[None]:
    """Add the inventory that is to be written, and the images that are only copied, to the steps of a launch that is
    not ready."""
    try:
        yield
    except NotReadyError as error:
        steps = replace(error.steps, inventory=file)
        raise NotReadyError(steps.with_copies(inventory, chosen_nodes(inventory, options, None))) from None


def _report_what_is_wrong(
    inventory: Inventory, options: LaunchOptions, mode: OutputMode, to_write: Path | None
) -> None:
    """Raise what is wrong with a new run, before a lacking consent is: errors are those of `ready`.

    UsageError: without a terminal to ask on, the steps that it lacks, as commands.
    """
    if options.nodes == "auto":  # the nodes are known after a measurement, which is to be agreed to
        must_run("orch launch", options)
        own_code(options)
        return
    try:
        with _whole_steps(inventory, options, to_write), ready(inventory, options, mode, None, building=True):
            if to_write:
                raise NotReadyError(FirstSteps())
    except NotReadyError as error:
        error.steps.are_agreed(yes=False)


def _refuse_a_forecast(options: LaunchOptions, mode: OutputMode) -> None:
    """UsageError: a forecast with options of a run that it does not begin."""
    if mode.forecast and (options.resume or mode.detach):
        other = "--resume" if options.resume else "--detach"
        raise UsageError(
            f"--forecast measures, shows and ends: it does not go with {other}",
            hint="orch launch --forecast -- gpt2 … with the options of the run",
        )


def earlier_plan(inventory: Inventory, options: LaunchOptions, mode: OutputMode) -> Plan | None:
    """Return the plan of the run to be resumed, as far as it is granted; None for a new run."""
    if not options.resume:
        return None
    machines = with_engine(inventory, options.engine)
    with connected(machines.nodes) as everyone:
        return plan_to_continue(everyone, machines, options, ask=not mode.confirmed, dry_run=mode.dry_run)


@contextmanager
def ready(
    inventory: Inventory,
    options: LaunchOptions,
    mode: OutputMode,
    earlier: Plan | None,
    *,
    ending: bool = False,
    again: Plan | None = None,
    building: bool = False,
) -> Iterator[tuple[Sequence[Node], LaunchRequest, Plan, PreviousAttempt | None]]:
    """Yield nodes, request, checked plan and earlier attempt: all that precedes the first change on a node.

    `ending`: the earlier attempt is still active and will have been stopped; `again`: as in `run_launch`; `building`:
    as in `checked_facts`.
    """
    if options.checkpoint and not earlier:
        raise UsageError("--checkpoint chooses where a run is resumed from", hint="orch resume RUN --checkpoint STEP")
    if mode.forecast:
        measuring(options.command or DEFAULT_COMMAND)  # refuse a script, which cannot be measured
    checked = must_run("orch resume" if options.resume else "orch launch", options, kept=again is not None)
    if code := own_code(options, earlier or again):
        may_be_copied(code, yes=mode.confirmed or mode.dry_run)
    machines = with_engine(inventory, options.engine)
    request = replace(
        build_request(machines, options, earlier or again, os.environ, notify=say_once),
        data_command=checked.needs,
        sizes=checked.sizes,
        packages={name: command_to_add([name], inventory.image.requirements) for name in checked.packages},
    )
    if again and request.code_digest == again.code_digest:
        request = replace(request, code_origin=again.code_origin)  # it may have been fetched from a node
    if not request.image:
        image = inventory.image
        additions, dockerfile = read_additions(image).digest, image.dockerfile or ""
        request = replace(request, additions=additions, requirements=image.requirements or "", dockerfile=dockerfile)
    imports = _imports(code, options)
    request = replace(request, imports=imports.needed)
    if code and not again:
        say_once(f"code: {code}, to be copied to {counted(len(request.nodes), 'node')}")
    require_values(request.secrets, request.environment, os.environ)
    if mode.forecast:
        request = replace(request, command=measuring(request.command))
    identity = new_identity(options.name, earlier)
    with connected(request.nodes) as nodes, earlier_attempt(machines, request, earlier, nodes, ending=ending) as before:
        facts = checked_facts(nodes, request, identity, mode, building=building)
        for note in possible_modules(imports.possible, facts):
            say_once(note)
        if before and earlier:
            ask = not (mode.confirmed or mode.dry_run or mode.as_json)
            before = with_checkpoint(before, earlier.run_id, options.checkpoint, ask=ask)
        plan = plan_checked(nodes, request, facts, identity, before)
        if before and not ending and before.starts_over(plan.command):
            own = ", unless your script loads what it has saved itself" if is_own_script(plan.command) else ""
            note = f"no checkpoint of run {plan.run_id} is known: it starts from the beginning{own}"
            plan = replace(plan, notes=(*plan.notes, note))
        yield nodes, request, plan, before


def _imports(code: OwnCode | None, options: LaunchOptions) -> Imports:
    """Read what the user's Python script imports; nothing for any other command."""
    if code is None or not is_own_script(options.command) or is_shell_script(options.command):
        return Imports()
    path = [code.folder / part for part in options.environment.get("PYTHONPATH", "").split(":") if part]
    return imports_of(code.folder, worker_command(options.command), path)


def _agrees_to_copy(plan: Plan, results: WrittenResults, mode: OutputMode) -> bool:
    """Ask about files of the last attempt that are more than is copied unasked; without a terminal they stay."""
    from orchestrator.render.recovery import file_size

    large = [files for files in results.wanted(plan).values() if not within_limit(files)]
    if not large or not can_ask():
        return False
    size, nodes = file_size(max(sum(file.size for file in files) for files in large)), counted(len(large), "node")
    return agreed(f"Copy {size} that rank 0 wrote from {results.source} to {nodes}?", yes=mode.confirmed)


def _run(
    nodes: Sequence[Node],
    plan: Plan,
    request: LaunchRequest,
    mode: OutputMode,
    previous: PreviousAttempt | None,
    hooks: HookSpec,
) -> int:
    from orchestrator.cli.launching.view import Screen
    from orchestrator.cli.report import progress_view

    by_name = {node.name: node for node in nodes}
    large = previous is not None and _agrees_to_copy(plan, previous.results.result(), mode)
    screen = Screen(plan, quiet=mode.as_json)
    with progress_view(quiet=mode.as_json, notes=True) as view:
        notify = screen.after(view)
        if previous:
            containers = previous.launch_next(plan, notify, request.folders, large=large)
        else:
            containers = start_all(by_name, plan, fresh=request.folders, notify=notify)
    if mode.detach:
        screen.close()
        return detach(plan, mode)
    pool, followed = NodePool(nodes=by_name, request=request), FollowedRun(RunRecord(plan.run_id))
    hear = screen.showing(Arrivals(by_name, plan, followed.state))
    attended = Attended(
        pool=pool, plan=plan, containers=containers, followed=followed, hear=hear, screen=screen, hooks=hooks
    )
    return see_through(attended, mode)
