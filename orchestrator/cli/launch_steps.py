"""The steps of a launch: facts, checks, plan, confirm, start, follow."""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

import typer

from orchestrator.checks.preflight import preflight
from orchestrator.cli.launch_request import build_request, with_engine
from orchestrator.cli.launch_words import Manner, Wanted
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.attend import STOP_S, attend
from orchestrator.fleet.connect import connected
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.forget import forget
from orchestrator.fleet.gather import assumed_facts, gather_facts
from orchestrator.fleet.launch import Seated
from orchestrator.fleet.launch import launch as start_all
from orchestrator.fleet.recall import recall_plan
from orchestrator.fleet.records import RunRecord
from orchestrator.fleet.stop import stop_run
from orchestrator.nodes.seam import Node
from orchestrator.plan.command import measuring
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PreflightError, RunFailedError, UsageError
from orchestrator.specs.finding import Severity
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import LaunchRequest, RunIdentity


def carry_out(inventory: Inventory, wanted: Wanted, manner: Manner) -> int:
    """From the command line's words to a run, or to the lines of one."""
    if manner.forecast and (wanted.resume or manner.detach):
        other = "--resume" if wanted.resume else "--detach"
        raise UsageError(
            f"--forecast measures, shows and ends: it does not go with {other}",
            hint="orch launch --forecast -- gpt2 … with the options of the run",
        )
    machines = with_engine(inventory, wanted.engine)
    by_name = {spec.name: spec for spec in machines.nodes}
    with connected(machines.nodes) as everyone:
        earlier = recall_plan(everyone, by_name, machines.project, wanted.resume) if wanted.resume else None
    request = build_request(machines, wanted, earlier, os.environ)
    if manner.forecast:
        request = replace(request, command=measuring(request.command))
    identity = _identity(wanted.name, earlier)
    with connected(request.nodes) as reached:
        plan = _plan(reached, request, identity, manner)
        if manner.dry_run:
            specs = {spec.name: spec for spec in request.nodes}
            typer.echo(to_json(plan).rstrip() if manner.as_json else "\n".join(plan_lines(plan, specs)))
            return EXIT_OK
        from orchestrator.cli.launch_screen import confirm

        if not manner.confirmed and sys.stdin.isatty() and not confirm(plan):
            say("nothing was started")
            return EXIT_INTERRUPTED
        return _run(reached, plan, request, manner)


def _identity(name: str, earlier: Plan | None) -> RunIdentity:
    now = datetime.now(timezone.utc)
    if name and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise UsageError(f"--name {name}: small letters, digits and - only")
    fresh = f"{name or now.strftime('%m%d-%H%M')}-{secrets.token_hex(2)}"
    return RunIdentity(
        run_id=earlier.run_id if earlier else fresh,
        user=getpass.getuser(),
        started_at=now.isoformat(timespec="seconds"),
        attempt=earlier.attempt + 1 if earlier else 0,
    )


def _plan(nodes: Sequence[Node], request: LaunchRequest, identity: RunIdentity, manner: Manner) -> Plan:
    """Facts, checks, plan. A node that cannot be asked ends a launch; a dry run takes the inventory's word for it."""
    asked = begin(lambda: gather_facts(nodes, request, resume=identity.run_id if identity.attempt else ""))
    from orchestrator.cli.launch_screen import tell_findings  # loads rich, while the nodes answer

    outcomes = asked.result()
    specs = {spec.name: spec for spec in request.nodes}
    facts = {o.item.name: o.result or assumed_facts(specs[o.item.name]) for o in outcomes}
    if manner.dry_run:
        return plan_launch(request, facts, identity)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    for error in errors:
        report_error(error)
    findings = preflight([facts[node.name] for node in nodes])
    if not manner.as_json or any(finding.severity is Severity.ERROR for finding in findings):
        tell_findings(findings)
    if errors or any(finding.severity is Severity.ERROR for finding in findings):
        raise PreflightError("nothing was started", hint="mend what is named above, or leave nodes out with --nodes")
    return plan_launch(request, facts, identity)


def _run(nodes: Sequence[Node], plan: Plan, request: LaunchRequest, manner: Manner) -> int:
    from orchestrator.cli.launch_screen import Screen, how_to_go_on, tell_end

    screen = Screen(plan, quiet=manner.as_json)
    by_name = {node.name: node for node in nodes}
    record = RunRecord(plan.run_id)
    for part in plan.nodes:
        screen.reach(part.node, "image checked")
    seated = start_all(by_name, plan, workdir=request.workdir, data=request.data, on_step=screen.step)
    if manner.detach:
        screen.close()
        typer.echo(json.dumps({"run_id": plan.run_id}) if manner.as_json else plan.run_id)
        say(how_to_go_on(plan.run_id))
        return EXIT_OK
    try:
        with screen:
            outcome = attend(seated, plan, record, on=lambda happening: screen.show(happening, by_name))
    except KeyboardInterrupt:
        if manner.forecast:
            stop_run(seated, record, timeout_s=STOP_S)
            _leave_nothing(seated, plan)
            say("\nthe measurement was stopped; nothing is left on the nodes")
            return EXIT_INTERRUPTED
        say(f"\nrun {plan.run_id} goes on without you")
        say(how_to_go_on(plan.run_id))
        return EXIT_INTERRUPTED
    if manner.forecast:
        _leave_nothing(seated, plan)
    tell_end(plan, outcome, manner)
    missing = manner.forecast and not outcome.forecast
    return RunFailedError.exit_code if outcome.failure or missing else EXIT_OK


def _leave_nothing(seated: Sequence[Seated], plan: Plan) -> None:
    """What a forecast made on the nodes; where that fails, it is said, and the forecast stands."""
    for outcome in forget(seated, plan):
        if outcome.error:
            report_error(outcome.error)
