"""`orch bench`: check the nodes, measure a training step, save the measurement."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace

import typer

from orchestrator.cli.launching.checked_plan import check_and_plan
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.own_code import own_code
from orchestrator.cli.options import Output, OutputMode
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.connect import connected
from orchestrator.fleet.planning.request import build_request, new_identity, with_engine
from orchestrator.fleet.supervise.attempt import Callbacks
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.one_shot import run_one_shot
from orchestrator.fleet.supervise.rendezvous import Arrivals
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, RunFailedError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.measurement import SavedMeasurement, core
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.measurements import keep
from orchestrator.store.run_record import RunRecord


def run_bench(inventory: Inventory, options: LaunchOptions, output: Output) -> int:
    """Measure, and show the result."""
    from orchestrator.render.bench import bench_view

    measurement = measure(inventory, options, quiet=output.as_json)
    output.write(asdict(measurement), measurement.nodes, bench_view(measurement.measured, wide=output.wide))
    if not output.as_json:
        nodes = f" --nodes {options.nodes}" if options.nodes else ""
        say(f"saved; next: orch plan{nodes} -- {' '.join(core(measurement.command))}")
    return EXIT_OK


def measure(inventory: Inventory, options: LaunchOptions, *, quiet: bool) -> SavedMeasurement:
    """Measure on the chosen nodes and save the measurement. Nothing is left there; leftovers are reported.

    RunFailedError: the measurement failed; the reason has been printed.
    """
    options.program.measuring()  # refuse a script, which cannot be measured
    checked = must_run("orch bench", options)
    if code := own_code(options):
        say(f"code: {code}, copied for the measurement")
    machines = with_engine(inventory, options.engine)
    asked = build_request(machines, options, None, os.environ, notify=say)
    request = replace(asked, command=asked.program.measuring(), data_command=checked.needs, sizes=checked.sizes)
    mode = OutputMode(forecast=True, as_json=quiet, confirmed=True)
    with connected(request.nodes) as reached:
        plan = check_and_plan(reached, request, new_identity(options.name, None), mode)
        probe = run_probe(reached, plan, request, quiet=quiet, forecasts=False)
    measurement = save_measurement(plan, asked.command, probe)
    if probe.failure:
        from orchestrator.cli.launching.view import tell_failure

        tell_failure(plan, probe.failure)
        raise RunFailedError("the measurement failed", hint=f"orch logs {plan.run_id}")
    if measurement is None:
        reason = "is its image older than this orch?"
        raise RunFailedError(f"the trainer ended without a measurement: {reason}", hint="orch build")
    return measurement


def run_probe(nodes: Sequence[Node], plan: Plan, request: LaunchRequest, *, quiet: bool, forecasts: bool) -> RunOutcome:
    """Run a measurement and show its progress; `forecasts`: show the trainer's forecast too."""
    from orchestrator.cli.launching.view import Screen
    from orchestrator.render.progress import ProgressView

    by_name = {node.name: node for node in nodes}
    with Screen(plan, quiet=quiet, forecasts=forecasts, unproven=True) as screen:
        notify = screen.after(ProgressView(quiet=quiet, lines=True, console=screen.messages))
        followed = FollowedRun(RunRecord(plan.run_id))
        hear = screen.showing(Arrivals(by_name, plan, followed.state))
        callbacks = Callbacks(notify=notify, update=hear, failed=report_error)
        try:
            return run_one_shot(by_name, plan, request, callbacks, followed)
        except KeyboardInterrupt:
            say("\nthe measurement was stopped; nothing is left on the nodes")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def save_measurement(plan: Plan, command: Sequence[str], probe: RunOutcome) -> SavedMeasurement | None:
    """Save the measurement for later plans and return it; None where the trainer sent none."""
    coordinator = probe.state.coordinator
    measured = coordinator.part.measurement if coordinator else None
    if measured is None or probe.failure:
        return None
    nodes = tuple(part.node for part in plan.nodes)
    measurement = SavedMeasurement(
        time=plan.started_at, project=plan.project, nodes=nodes, command=tuple(command), measured=measured
    )
    keep(measurement)
    return measurement
