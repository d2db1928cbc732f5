"""The checked plan of a launch: facts of the nodes, checks, plan."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.checks.consistency import data_missing
from orchestrator.checks.images import image_outdated, package_missing
from orchestrator.cli.launching.first_steps import NotReadyError, steps_needed
from orchestrator.cli.launching.missing_modules import missing_modules
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import report_errors, say
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.gather import assumed_facts, gather_facts
from orchestrator.fleet.readiness.quick_look import check_before_launch, open_ports, with_holder
from orchestrator.nodes.interface import Node
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import PortTakenError, PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Severity
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity

if TYPE_CHECKING:
    from orchestrator.fleet.supervise.replan import PreviousAttempt


def check_and_plan(nodes: Sequence[Node], request: LaunchRequest, identity: RunIdentity, mode: OutputMode) -> Plan:
    """Collect the facts of all nodes, run the checks and return the plan. Errors are those of `checked_facts`."""
    return plan_checked(nodes, request, checked_facts(nodes, request, identity, mode), identity)


def checked_facts(
    nodes: Sequence[Node], request: LaunchRequest, identity: RunIdentity, mode: OutputMode, *, building: bool = False
) -> dict[str, NodeFacts]:
    """Collect the facts of all nodes and run the checks.

    A dry run plans from the inventory where a node does not answer and reports no findings. PreflightError: a node did
    not answer, or a check found an error. NotReadyError, only if `building`: a build makes all that is missing.
    """
    asked = begin(lambda: gather_facts(nodes, request, resume=identity.run_id if identity.attempt else ""))
    from orchestrator.cli.launching.view import tell_findings  # loads rich, while the nodes answer

    outcomes = asked.result()
    specs = {spec.name: spec for spec in request.nodes}
    facts = {o.item.name: o.result or assumed_facts(specs[o.item.name]) for o in outcomes}
    if not mode.dry_run:
        errors = report_errors(outcome.error for outcome in outcomes)
        now, suffix = datetime.now(UTC), secrets.token_hex(3)
        findings = (
            *check_before_launch(nodes, request, facts, now=now, suffix=suffix),
            *(image_outdated(list(facts.values()), request.additions) if request.additions else ()),
            *package_missing(list(facts.values()), request.packages),
            *(data_missing(list(facts.values()), request.data_command) if request.data_command else ()),
        )
        if building and not errors and (steps := steps_needed(request, facts, findings)):
            raise NotReadyError(steps)
        findings = (*findings, *missing_modules(request, facts))
        unfit = any(finding.severity is Severity.ERROR for finding in findings)
        if unfit or not mode.as_json:
            tell_findings(findings)
        if not unfit and not mode.as_json and (line := open_ports(request.nodes, facts, now, request.program)):
            say(f"note: {line}")
        if unfit or errors:
            raise PreflightError("nothing was started", hint="fix the errors above, or leave nodes out with --nodes")
    elif request.data_command and any(one.has_data is False for one in facts.values()):
        say(f"note: no prepared data here in ./Data, nor on the nodes\n  → {request.data_command}")
    return facts


def plan_checked(
    nodes: Sequence[Node],
    request: LaunchRequest,
    facts: Mapping[str, NodeFacts],
    identity: RunIdentity,
    previous: PreviousAttempt | None = None,
) -> Plan:
    """Return the plan. `previous`: rank 0 goes to a node that has the checkpoint that the attempt resumes from."""
    try:
        if previous is None:
            return plan_launch(request, facts, identity)
        return plan_launch(request, previous.holding(facts), previous.continued(identity, request.command))
    except PortTakenError as error:
        raise with_holder(error, next(node for node in nodes if node.name == error.node)) from None
