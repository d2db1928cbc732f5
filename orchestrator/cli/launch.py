"""`orch launch`: facts, plan, confirm, start, follow."""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.checks.preflight import preflight
from orchestrator.cli.context import load_inventory
from orchestrator.cli.launch_request import Wanted, build_request, with_engine
from orchestrator.cli.launch_screen import (
    Screen,
    confirm,
    how_to_go_on,
    outcome_json,
    tell_findings,
    tell_how_it_ended,
)
from orchestrator.cli.options import InventoryOption, JsonOption, LabelOption, NodesOption, YesOption
from orchestrator.cli.report import report_error, say
from orchestrator.fleet.attend import attend
from orchestrator.fleet.connect import connected
from orchestrator.fleet.gather import assumed_facts, gather_facts
from orchestrator.fleet.launch import launch as start_all
from orchestrator.fleet.recall import recall_plan
from orchestrator.fleet.records import RunRecord
from orchestrator.nodes.seam import Node
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PreflightError, RunFailedError, UsageError
from orchestrator.specs.finding import Severity
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import LaunchRequest, RunIdentity

EXAMPLES = """Examples:

orch launch --nodes 5

orch launch --nodes 5 --data ./Data -- gpt2 --epochs 1 --batch-size 2 --seq-len 128

orch launch --nodes alpha,beta --workdir ./mine -- python train.py --lr 1e-3

orch launch --nodes 5 --dry-run

orch launch --resume RUN
"""


def register(app: typer.Typer) -> None:
    app.command("launch", epilog=EXAMPLES, no_args_is_help=False)(launch)


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="A workload of the trainer with its options, or python SCRIPT …"),
    ] = None,
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    label: LabelOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: JsonOption = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow the run.")] = False,
    name: Annotated[str, typer.Option("--name", help="Begins the run's id.")] = "",
    master: Annotated[str, typer.Option("--master", help="Node of rank 0; the first one otherwise.")] = "",
    profile: Annotated[str, typer.Option("--profile", help="Image for all nodes: cpu or cuda.")] = "",
    mount: Annotated[
        list[str] | None, typer.Option("--mount", metavar="SOURCE:TARGET[:ro]", help="A folder of the nodes.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="Set in the containers.")] = None,
    workdir: Annotated[Path | None, typer.Option("--workdir", help="Folder of your code, copied to the nodes.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Prepared data, copied to nodes that lack it; ./Data where there is one."),
    ] = None,
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with an earlier run.")] = "",
    engine: Annotated[str, typer.Option("--engine", help="docker, or process: no containers, on this computer.")] = "",
    yes: YesOption = False,
) -> int:
    """Start a training run on several nodes and follow it.

    NODE_RANK, MASTER_ADDR, MASTER_PORT, NNODES and GPUS_PER_NODE are set in every container; torchrun is written for
    you. All containers start, or none. Ctrl-C leaves the run going and says how to come back.
    """
    wanted = Wanted(
        command=tuple(command or ()),
        nodes=nodes,
        labels=tuple(label or ()),
        master=master,
        profile=profile,
        mounts=tuple(mount or ()),
        environment=tuple(env or ()),
        workdir=workdir,
        data=data,
    )
    machines = with_engine(load_inventory(inventory).inventory, engine)
    by_name = {spec.name: spec for spec in machines.nodes}
    with connected(machines.nodes) as everyone:
        earlier = recall_plan(everyone, by_name, machines.project, resume) if resume else None
    request = build_request(machines, wanted, earlier, os.environ)
    identity = _identity(name, earlier)
    with connected(request.nodes) as reached:
        plan = _plan(reached, request, identity, dry_run=dry_run, quiet=as_json)
        if dry_run:
            specs = {spec.name: spec for spec in request.nodes}
            typer.echo(to_json(plan).rstrip() if as_json else "\n".join(plan_lines(plan, specs)))
            return EXIT_OK
        if not (yes or as_json) and sys.stdin.isatty() and not confirm(plan):
            say("nothing was started")
            return EXIT_INTERRUPTED
        return _run(reached, plan, request, Screen(plan, quiet=as_json), detach=detach, as_json=as_json)


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


def _plan(nodes: Sequence[Node], request: LaunchRequest, identity: RunIdentity, *, dry_run: bool, quiet: bool) -> Plan:
    """Facts, checks, plan. A node that cannot be asked ends a launch; a dry run takes the inventory's word for it."""
    outcomes = gather_facts(nodes, request, resume=identity.run_id if identity.attempt else "")
    specs = {spec.name: spec for spec in request.nodes}
    facts = {o.item.name: o.result or assumed_facts(specs[o.item.name]) for o in outcomes}
    if dry_run:
        return plan_launch(request, facts, identity)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    for error in errors:
        report_error(error)
    findings = preflight([facts[node.name] for node in nodes])
    if not quiet or any(finding.severity is Severity.ERROR for finding in findings):
        tell_findings(findings)
    if errors or any(finding.severity is Severity.ERROR for finding in findings):
        raise PreflightError("nothing was started", hint="mend what is named above, or leave nodes out with --nodes")
    return plan_launch(request, facts, identity)


def _run(
    nodes: Sequence[Node], plan: Plan, request: LaunchRequest, screen: Screen, *, detach: bool, as_json: bool
) -> int:
    by_name = {node.name: node for node in nodes}
    record = RunRecord(plan.run_id)
    for part in plan.nodes:
        screen.reach(part.node, "image checked")
    seated = start_all(by_name, plan, workdir=request.workdir, data=request.data, on_step=screen.step)
    if detach:
        screen.close()
        typer.echo(json.dumps({"run_id": plan.run_id}) if as_json else plan.run_id)
        say(how_to_go_on(plan.run_id))
        return EXIT_OK
    try:
        with screen:
            outcome = attend(seated, plan, record, on=lambda happening: screen.show(happening, by_name))
    except KeyboardInterrupt:
        say(f"\nrun {plan.run_id} goes on without you")
        say(how_to_go_on(plan.run_id))
        return EXIT_INTERRUPTED
    if as_json:
        typer.echo(outcome_json(plan, outcome))
    else:
        tell_how_it_ended(plan, outcome)
    return RunFailedError.exit_code if outcome.failure else EXIT_OK
