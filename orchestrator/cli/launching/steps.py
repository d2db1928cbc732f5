"""The steps of a launch: facts, checks, plan, confirm, start, follow."""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone

import typer

from orchestrator.checks.preflight import data_missing
from orchestrator.cli.consent import require_consent
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.grants import plan_to_continue
from orchestrator.cli.launching.launch_options import DEFAULT_COMMAND, Manner, Wanted
from orchestrator.cli.launching.own_code import may_be_copied, own_code
from orchestrator.cli.launching.previous_attempt import Earlier, earlier_attempt
from orchestrator.cli.launching.request import build_request, with_engine
from orchestrator.cli.launching.supervise import Attended, leave_to_a_watcher, see_through
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.connect import connected
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.gather import assumed_facts, gather_facts
from orchestrator.fleet.readiness.port_holder import with_holder
from orchestrator.fleet.readiness.quick_look import look_before_launch
from orchestrator.fleet.runs.launch import launch as start_all
from orchestrator.fleet.runs.secrets import require_values
from orchestrator.fleet.supervise.replan import Company
from orchestrator.nodes.interface import Node
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines
from orchestrator.plan.measurement_command import measuring
from orchestrator.specs.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    PortTakenError,
    PreflightError,
    RunFailedError,
    UsageError,
)
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Severity
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import LaunchRequest, RunIdentity


def carry_out(inventory: Inventory, wanted: Wanted, manner: Manner, *, earlier: Plan | None = None) -> int:
    """From the command line's words to a run, or to the lines of one. `earlier`: as `earlier_plan` gave it."""
    if manner.forecast and (wanted.resume or manner.detach):
        other = "--resume" if wanted.resume else "--detach"
        raise UsageError(
            f"--forecast measures, shows and ends: it does not go with {other}",
            hint="orch launch --forecast -- gpt2 … with the options of the run",
        )
    if not manner.dry_run:
        require_consent(yes=manner.confirmed, look_first="--dry-run")
    if wanted.nodes == "auto":
        from orchestrator.cli.launching.auto_nodes import with_best_nodes

        wanted = with_best_nodes(inventory, wanted, manner)
    earlier = earlier or earlier_plan(inventory, wanted, manner)
    with ready(inventory, wanted, manner, earlier) as (nodes, request, plan, left):
        if manner.dry_run:
            specs = {spec.name: spec for spec in request.nodes}
            typer.echo(to_json(plan).rstrip() if manner.as_json else "\n".join(plan_lines(plan, specs)))
            return EXIT_OK
        if left:
            left.must_be_over(plan)
        from orchestrator.cli.launching.view import confirm

        if not manner.confirmed and not confirm(plan):
            say("nothing was started")
            return EXIT_INTERRUPTED
        if manner.forecast:
            return _measure(nodes, plan, request, manner)
        return _run(nodes, plan, request, manner, left)


def earlier_plan(inventory: Inventory, wanted: Wanted, manner: Manner) -> Plan | None:
    """The plan of the run to be resumed, as far as it is granted; None for a new run."""
    if not wanted.resume:
        return None
    machines = with_engine(inventory, wanted.engine)
    with connected(machines.nodes) as everyone:
        return plan_to_continue(everyone, machines, wanted, ask=not manner.confirmed, dry_run=manner.dry_run)


@contextmanager
def ready(
    inventory: Inventory, wanted: Wanted, manner: Manner, earlier: Plan | None, *, ending: bool = False
) -> Iterator[tuple[Sequence[Node], LaunchRequest, Plan, Earlier | None]]:
    """Nodes, request, checked plan and what an earlier attempt left: all that comes before anything is changed.

    `ending`: the earlier attempt still runs, and will have been stopped.
    """
    if manner.forecast:
        measuring(wanted.command or DEFAULT_COMMAND)  # a script of the user's cannot be measured: said at once
    data_command = must_run("orch resume" if wanted.resume else "orch launch", wanted)
    if code := own_code(wanted):
        may_be_copied(code, yes=manner.confirmed or manner.dry_run)
    machines = with_engine(inventory, wanted.engine)
    request = replace(build_request(machines, wanted, earlier, os.environ), data_command=data_command)
    if code:
        say(f"code: {code}, copied to {len(request.nodes)} node{'s' if len(request.nodes) > 1 else ''}")
    require_values(request.secrets, request.environment, os.environ)
    if manner.forecast:
        request = replace(request, command=measuring(request.command))
    identity = identity_of(wanted.name, earlier)
    with (
        connected(request.nodes) as reached,
        earlier_attempt(machines, request, earlier, reached, ending=ending) as left,
    ):
        yield reached, request, planned(reached, request, identity, manner, left), left


def identity_of(name: str, earlier: Plan | None) -> RunIdentity:
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


def planned(
    nodes: Sequence[Node], request: LaunchRequest, identity: RunIdentity, manner: Manner, left: Earlier | None = None
) -> Plan:
    """Facts, checks, plan. A node that cannot be asked ends a launch; a dry run takes the inventory's word for it.

    `left`: what an earlier attempt left; rank 0 goes where the checkpoint is.
    """
    asked = begin(lambda: gather_facts(nodes, request, resume=identity.run_id if identity.attempt else ""))
    from orchestrator.cli.launching.view import tell_findings  # loads rich, while the nodes answer

    outcomes = asked.result()
    specs = {spec.name: spec for spec in request.nodes}
    facts = {o.item.name: o.result or assumed_facts(specs[o.item.name]) for o in outcomes}
    if manner.dry_run:
        if request.data_command and any(one.has_data is False for one in facts.values()):
            say(f"note: no prepared data here in ./Data, nor on the nodes\n  → {request.data_command}")
        return _plan(nodes, request, left.holding(facts) if left else facts, identity)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    for error in errors:
        report_error(error)
    now, suffix = datetime.now(timezone.utc), secrets.token_hex(3)
    findings = (
        *look_before_launch(nodes, request, facts, now=now, suffix=suffix),
        *(data_missing(list(facts.values()), request.data_command) if request.data_command else ()),
    )
    if not manner.as_json or any(finding.severity is Severity.ERROR for finding in findings):
        tell_findings(findings)
    if errors or any(finding.severity is Severity.ERROR for finding in findings):
        raise PreflightError("nothing was started", hint="mend what is named above, or leave nodes out with --nodes")
    return _plan(nodes, request, left.holding(facts) if left else facts, identity)


def _plan(nodes: Sequence[Node], request: LaunchRequest, facts: Mapping[str, NodeFacts], identity: RunIdentity) -> Plan:
    try:
        return plan_launch(request, facts, identity)
    except PortTakenError as error:
        raise with_holder(error, next(node for node in nodes if node.name == error.node)) from None


def _run(nodes: Sequence[Node], plan: Plan, request: LaunchRequest, manner: Manner, left: Earlier | None) -> int:
    from orchestrator.cli.launching.view import Screen, how_to_go_on

    if left:
        left.bring(plan, quiet=manner.as_json)
    screen = Screen(plan, quiet=manner.as_json)
    by_name = {node.name: node for node in nodes}
    for part in plan.nodes:
        screen.reach(part.node, "image checked")
    seated = start_all(
        left.nodes if left else by_name,
        plan,
        fresh=request.folders,
        elsewhere=left.elsewhere(plan) if left else {},
        on_step=screen.step,
    )
    if manner.detach:
        screen.close()
        typer.echo(json.dumps({"run_id": plan.run_id}) if manner.as_json else plan.run_id)
        leave_to_a_watcher(plan, manner)
        say(how_to_go_on(plan.run_id))
        return EXIT_OK
    attended = Attended(
        company=Company(nodes=by_name, request=request),
        plan=plan,
        seated=seated,
        told=lambda told: screen.show(told, by_name),
        screen=screen,
    )
    return see_through(attended, manner, out_of_sight_s=float(request.node_timeout_s))


def _measure(nodes: Sequence[Node], plan: Plan, request: LaunchRequest, manner: Manner) -> int:
    from orchestrator.cli.launching.measure import errand_of, kept
    from orchestrator.cli.launching.view import tell_end

    try:
        errand = errand_of(nodes, plan, request, quiet=manner.as_json, forecasts=True)
    except KeyboardInterrupt:
        say("\nthe measurement was stopped; nothing is left on the nodes")
        return EXIT_INTERRUPTED
    kept(plan, request.command, errand)
    tell_end(plan, errand.outcome, manner)
    return EXIT_OK if errand.outcome.forecast and not errand.outcome.failure else RunFailedError.exit_code
