"""The steps of a connectivity test: facts, checks, plan, connections between all nodes, start, rendezvous, verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import typer

from orchestrator.checks import firewall, reachability
from orchestrator.checks.slow_links import slow_links
from orchestrator.cli.launching.checked_plan import check_and_plan
from orchestrator.cli.options import Output, OutputMode
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.connect import connected
from orchestrator.fleet.planning.request import build_request, new_identity, with_engine
from orchestrator.fleet.readiness.pair_probe import probe_pairs
from orchestrator.fleet.supervise.attempt import Callbacks
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.one_shot import run_one_shot
from orchestrator.fleet.supervise.rendezvous import Rendezvous
from orchestrator.nodes.interface import Node
from orchestrator.plan.command import in_miniature
from orchestrator.render.printable import counted
from orchestrator.specs.connectivity import read_connectivity_result
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PreflightError, RunFailedError
from orchestrator.specs.finding import Severity
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.node_report import Examined
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord

Report = Callable[[str], object]


def run_connectivity_test(inventory: Inventory, options: LaunchOptions, backend: str, output: Output) -> int:
    """Test the collectives and links of a launch with these options, and show the result."""
    report = (lambda _text: None) if output.as_json else say
    machines = with_engine(inventory, options.engine)
    asked = replace(build_request(machines, options, None, os.environ, notify=say), data=())
    request = in_miniature(asked, backend)
    mode = OutputMode(as_json=output.as_json, confirmed=True)
    with connected(request.nodes) as reached:
        plan = check_and_plan(reached, request, new_identity(options.name, None), mode)
        master = f"master {plan.master} {plan.master_addr}:{plan.master_port}"
        report(f"testing {counted(plan.nnodes, 'node')}, {plan.backend}, {master}")
        if plan.nnodes > 1:
            _check_connections(reached, plan, request, report)
        nodes = {node.name: node for node in reached}
        followed = FollowedRun(RunRecord(plan.run_id))
        stages = _Stages(Rendezvous(nodes, plan, followed.state), plan, report)
        try:
            callbacks = Callbacks(update=stages.hear, failed=report_error)
            result = run_one_shot(nodes, plan, request, callbacks, followed)
        except KeyboardInterrupt:
            say("\nthe test was stopped; nothing is left on the nodes")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    return _tell_verdict(plan, result, output)


def _tell_verdict(plan: Plan, result: RunOutcome, output: Output) -> int:
    from orchestrator.cli.launching.view import tell_failure
    from orchestrator.render.bench import connectivity_view

    coordinator = result.state.coordinator
    tested = coordinator.part.tested if coordinator else None
    verdict = read_connectivity_result(tested.others) if tested and not result.failure else None
    failure, slow = result.failure, slow_links(verdict) if verdict else None
    data = {
        "run_id": plan.run_id,
        "ok": verdict is not None,
        "failure": failure and {"node": failure.node, "rank": failure.rank, "reason": failure.reason},
        "verdict": verdict and asdict(verdict),
        "slow": slow and asdict(slow),
    }
    view = connectivity_view(verdict, slow) if verdict and slow else None
    output.write(data, verdict.nodes if verdict else (), view)
    if failure and not output.as_json:
        tell_failure(plan, failure)
    elif not verdict and not output.as_json:
        say("✗ the test ended without a verdict: is its image older than this orch?\n  → orch build")
    return EXIT_OK if verdict else RunFailedError.exit_code


def _check_connections(nodes: Sequence[Node], plan: Plan, request: LaunchRequest, report: Report) -> None:
    """Connect every node to every other before torch is loaded: an unreachable one is named within seconds.

    PreflightError: a connection failed; the findings with their fixes have been printed.
    """
    images = {part.node: part.container.image for part in plan.nodes}
    probed = probe_pairs(request.nodes, nodes, images, plan.master_port, project=plan.project)
    for node, why in probed.silent.items():
        say(f"! {node}: its connections could not be tested: {why}")
    examined = [Examined(spec=spec, paths=probed.paths.get(spec.name, ())) for spec in request.nodes]
    findings = [finding for check in (*reachability.CHECKS, *firewall.CHECKS) for finding in check(examined)]
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        from orchestrator.cli.launching.view import tell_findings

        tell_findings(errors)
        raise PreflightError("not every node reaches every other; nothing was started", hint="orch doctor")
    if not probed.silent:
        report("· every node reaches every other")


class _Stages:
    """Reports each stage that all nodes have reached."""

    def __init__(self, arrivals: Rendezvous, plan: Plan, report: Report) -> None:
        self._arrivals, self._plan, self._report = arrivals, plan, report
        self._joined = False

    def hear(self, update: Update) -> None:
        if new := self._arrivals.hear(update):
            self._report(f"· {', '.join(new)} reached the master ({len(self._arrivals.here)} of {self._plan.nnodes})")
        ranks = [rank for node in self._arrivals.state.members for rank in node.part.ranks.values()]
        if not self._joined and sum(rank.stage == "joined" for rank in ranks) == self._plan.world_size:
            self._joined = True
            self._report(f"· all {self._plan.world_size} ranks joined; testing collectives and links")
