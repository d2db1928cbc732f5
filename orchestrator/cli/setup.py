"""`orch setup`: Docker Engine, and on GPU nodes the NVIDIA Container Toolkit, onto Debian and Ubuntu nodes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

import typer

from orchestrator.cli.consent import agreed
from orchestrator.cli.context import ChosenNodes
from orchestrator.cli.options import Output, YesOption
from orchestrator.cli.report import exit_code, report_errors, say, write_line
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_INTERRUPTED, ConfigError, UsageError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.setup import SetUp, SetupPlan, Step

EXAMPLES = """\
orch setup --dry-run
orch setup
orch setup --nodes gamma,delta --yes
orch setup --nvidia-source https://packages.example/libnvidia-container
"""
_ADDRESS = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)*/?")


def setup(
    *,
    chosen: ChosenNodes,
    nvidia_source: str = typer.Option("", metavar="URL", help="Package source of the NVIDIA Container Toolkit."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show every command and change nothing."),
    yes: YesOption = False,
    output: Output,
) -> int:
    """Install Docker Engine, and the NVIDIA Container Toolkit on nodes with an NVIDIA driver.

    For Debian and Ubuntu. Every command is shown first, and nothing runs until you agree; steps that are already done
    are skipped. Needs root or passwordless sudo on the nodes; without it, the commands are shown for you to paste. The
    toolkit is installed from --nvidia-source (see NVIDIA's installation guide, or a mirror); its signing key
    is compared with the known fingerprint.
    """
    if nvidia_source and not _ADDRESS.fullmatch(nvidia_source):
        raise UsageError(
            f"--nvidia-source {nvidia_source}: expected https://HOST/PATH",
            hint='NVIDIA\'s installation guide has it: docs.nvidia.com, Container Toolkit, "With apt"',
        )
    from orchestrator.render.setup import plan_text, setup_data

    _, nodes = chosen.load()
    specs = [spec for spec in nodes if spec.engine == "docker"]
    if not specs:
        raise ConfigError("no node with a container engine", hint="engine: process needs none")
    plans = _plans(specs, nvidia_source.rstrip("/"))
    ready = [plan for plan in plans if plan.to_do and not plan.refused]
    results: tuple[SetUp, ...] = ()
    asking = bool(ready) and not dry_run and not yes
    for line in plan_text(plans) if asking or output.is_table else ():
        (write_line if output.is_table else say)(line)
    if ready and not dry_run:
        if not agreed(f"run these commands on {', '.join(plan.node for plan in ready)}?", yes=yes):
            say("nothing was changed")
            return EXIT_INTERRUPTED
        results = _carry_out(ready, specs, quiet=output.as_json)
    unfit = {plan.node for plan in plans if plan.refused} | {result.node for result in results if result.error}
    fit = [plan.node for plan in plans if plan.node not in unfit]
    output.write(setup_data(plans, results), fit, [])
    return exit_code(len(specs) - len(fit), len(specs))


def _plans(specs: Sequence[NodeSpec], nvidia_source: str) -> list[SetupPlan]:
    """Return a plan for every node that answers, and report the errors of the others."""
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.readiness.setup import survey
    from orchestrator.plan.setup import plan_setup

    say(f"asking {counted(len(specs), 'node')} what is installed")
    with connected(specs) as reached:
        outcomes = survey(specs, reached)
    report_errors(outcome.error for outcome in outcomes)
    found, suffix = [outcome.result for outcome in outcomes if outcome.result], secrets.token_hex(4)
    return [plan_setup(facts, suffix=suffix, nvidia_source=nvidia_source) for facts in found]


def _carry_out(plans: Sequence[SetupPlan], specs: Sequence[NodeSpec], *, quiet: bool) -> tuple[SetUp, ...]:
    """Run the steps, then ask each engine, in a new login."""
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.readiness.setup import carry_out, verified

    def on_step(node: str, step: Step, seconds: float | None) -> None:
        if not quiet:
            say(f"{node}: {step.why} …" if seconds is None else f"{node}: {step.why} ✓ ({seconds:.1f} s)")

    wanted = [spec for spec in specs if spec.name in {plan.node for plan in plans}]
    with connected(wanted) as reached:
        results = carry_out(plans, reached, on_step)
    sound = [result for result in results if not result.error]
    with connected([spec for spec in wanted if spec.name in {result.node for result in sound}]) as reached:
        results = verified(results, plans, reached)
    for result in results:
        if result.error:
            say(f"error: {result.node}: {result.error}\n  → {result.hint}")
        elif result.engine:
            say(f"{result.node}: Docker Engine {result.engine.version} answers")
    return results
