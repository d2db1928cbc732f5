"""The checked plan of a launch: facts of the nodes, checks, plan."""

from __future__ import annotations

import getpass
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from orchestrator.checks.preflight import data_missing
from orchestrator.cli.launching.output_mode import OutputMode
from orchestrator.cli.launching.previous_attempt import PreviousAttempt
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.gather import assumed_facts, gather_facts
from orchestrator.fleet.readiness.quick_look import look_before_launch, with_holder
from orchestrator.nodes.interface import Node
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import PortTakenError, PreflightError, UsageError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Severity
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity


def new_identity(name: str, earlier: Plan | None) -> RunIdentity:
    """Return the identity of a new run, or of the next attempt of `earlier`. UsageError: not a name for a run."""
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


def check_and_plan(
    nodes: Sequence[Node],
    request: LaunchRequest,
    identity: RunIdentity,
    mode: OutputMode,
    previous: PreviousAttempt | None = None,
) -> Plan:
    """Collect the facts of all nodes, run the checks and return the plan.

    A dry run plans from the inventory where a node does not answer and reports no findings. PreflightError: a node did
    not answer, or a check found an error. `previous`: rank 0 goes to a node that has the checkpoint of that attempt.
    """
    asked = begin(lambda: gather_facts(nodes, request, resume=identity.run_id if identity.attempt else ""))
    from orchestrator.cli.launching.view import tell_findings  # loads rich, while the nodes answer

    outcomes = asked.result()
    specs = {spec.name: spec for spec in request.nodes}
    facts = {o.item.name: o.result or assumed_facts(specs[o.item.name]) for o in outcomes}
    if mode.dry_run:
        if request.data_command and any(one.has_data is False for one in facts.values()):
            say(f"note: no prepared data here in ./Data, nor on the nodes\n  → {request.data_command}")
        return _plan(nodes, request, previous.holding(facts) if previous else facts, identity)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    for error in errors:
        report_error(error)
    now, suffix = datetime.now(timezone.utc), secrets.token_hex(3)
    findings = (
        *look_before_launch(nodes, request, facts, now=now, suffix=suffix),
        *(data_missing(list(facts.values()), request.data_command) if request.data_command else ()),
    )
    if not mode.as_json or any(finding.severity is Severity.ERROR for finding in findings):
        tell_findings(findings)
    if errors or any(finding.severity is Severity.ERROR for finding in findings):
        raise PreflightError("nothing was started", hint="fix the errors above, or leave nodes out with --nodes")
    return _plan(nodes, request, previous.holding(facts) if previous else facts, identity)


def _plan(nodes: Sequence[Node], request: LaunchRequest, facts: Mapping[str, NodeFacts], identity: RunIdentity) -> Plan:
    try:
        return plan_launch(request, facts, identity)
    except PortTakenError as error:
        raise with_holder(error, next(node for node in nodes if node.name == error.node)) from None
