"""`orch setup`: Docker Engine, and on GPU nodes the NVIDIA Container Toolkit, onto Debian and Ubuntu nodes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed
from orchestrator.cli.context import ChosenNodes
from orchestrator.cli.options import Output, YesOption
from orchestrator.cli.report import exit_code, report_error, report_errors, say, write_line
from orchestrator.cli.sudo import SudoPassword
from orchestrator.render.printable import counted
from orchestrator.specs.errors import (
    EXIT_INTERRUPTED,
    ConfigError,
    PreflightError,
    SudoRefusal,
    SudoRefusedError,
    UsageError,
)
from orchestrator.specs.setup import NVIDIA_SOURCE, Rights, SetUp, SetupPlan

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.specs.inventory import NodeSpec

EXAMPLES = """\
orch setup --dry-run
orch setup
orch setup --nodes gamma,delta --yes
orch setup --ask-each
orch setup --yes --sudo-password-fd 3 3< FILE
"""
_ADDRESS = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)*/?")


def setup(
    *,
    chosen: ChosenNodes,
    nvidia_source: str = typer.Option(
        "", metavar="URL", help="Mirror of NVIDIA's packages for its Container Toolkit (default: NVIDIA's own source)."
    ),
    sudo: SudoPassword,
    dry_run: bool = typer.Option(False, "--dry-run", help="Show every command and change nothing."),
    yes: YesOption = False,
    output: Output,
) -> int:
    """Install Docker Engine, and the NVIDIA Container Toolkit on nodes with an NVIDIA driver.

    For Debian and Ubuntu. Every command is shown first, and nothing runs until you agree; steps that are already done
    are skipped. Where sudo asks for a password, you are asked for it once; it is sent to those nodes alone, and never
    stored. The signing key of NVIDIA's packages is compared with the known fingerprint.
    """
    if nvidia_source and not _ADDRESS.fullmatch(nvidia_source):
        raise UsageError(
            f"--nvidia-source {nvidia_source}: expected https://HOST/PATH", hint=f"NVIDIA's own: {NVIDIA_SOURCE}"
        )
    from orchestrator.fleet.connect import connected
    from orchestrator.render.setup import plan_text, setup_data

    _, nodes = chosen.load()
    specs = [spec for spec in nodes if spec.engine == "docker"]
    if not specs:
        raise ConfigError("no node with a container engine", hint="engine: process needs none")
    results: tuple[SetUp, ...] = ()
    with connected(specs) as reached:
        plans, able = _plans(specs, reached, nvidia_source.rstrip("/"), None if dry_run else sudo)
        ready = [plan for plan in plans if plan.to_do and not plan.refused]
        asking = bool(ready) and not dry_run and not yes
        for line in plan_text(plans) if asking or output.is_table else ():
            (write_line if output.is_table else say)(line)
        for plan in () if asking or output.is_table else plans:
            if plan.refused:
                report_error(PreflightError(plan.refused, node=plan.node, hint=plan.hint))
        if ready and not dry_run:
            if not agreed(_question(ready), yes=yes, ends=True):
                say("nothing was changed")
                return EXIT_INTERRUPTED
            results = _carry_out(ready, able, quiet=output.as_json)
    results = _verified(results, plans, specs)
    unfit = {plan.node for plan in plans if plan.refused} | {result.node for result in results if result.error}
    fit = [plan.node for plan in plans if plan.node not in unfit]
    output.write(setup_data(plans, results), fit, [])
    return exit_code(len(specs) - len(fit), len(specs))


def _plans(
    specs: Sequence[NodeSpec], reached: Sequence[Node], nvidia_source: str, sudo: SudoPassword | None
) -> tuple[list[SetupPlan], list[Node]]:
    """Return a plan for every node that answers, and the nodes, able to become root where a password was given.

    The errors of nodes that do not answer are reported. `sudo` None: no password is asked for.
    """
    from orchestrator.fleet.readiness.setup import survey
    from orchestrator.plan.setup import become_able, plan_setup

    say(f"asking {counted(len(specs), 'node')} what is installed")
    outcomes = survey(specs, reached)
    report_errors(outcome.error for outcome in outcomes)
    found, suffix = [outcome.result for outcome in outcomes if outcome.result], secrets.token_hex(4)
    plans = [plan_setup(facts, suffix=suffix, nvidia_source=nvidia_source) for facts in found]
    wanted = {plan.node for plan in plans if plan.to_do and not plan.refused}
    names = [facts.name for facts in found if facts.rights is Rights.PASSWORD and facts.name in wanted]
    if not names:
        return plans, list(reached)
    if sudo is None:
        say(f"sudo asks for a password on {', '.join(names)}: orch setup asks you for it once")
        return plans, list(reached)
    opened, errors = sudo.unlock([node for node in reached if node.name in names])
    as_root = {outcome.item.name: outcome for outcome in survey(specs, list(opened.values()))}
    errors |= {name: outcome.error for name, outcome in as_root.items() if outcome.error}
    plans = []
    for facts in found:
        if (error := errors.get(facts.name)) is None:
            answer = as_root[facts.name].value() if facts.name in as_root else facts
            known = replace(answer, proxies=facts.proxies)  # sudo drops those variables
            plans.append(plan_setup(known, suffix=suffix, nvidia_source=nvidia_source))
        else:
            plan = plan_setup(facts, suffix=suffix, nvidia_source=nvidia_source)
            may_not = isinstance(error, SudoRefusedError) and error.refusal is SudoRefusal.NOT_ALLOWED
            plans.append(replace(plan, refused=error.message, hint=become_able(facts) if may_not else error.hint))
    return plans, [opened.get(node.name, node) for node in reached]


def _question(ready: Sequence[SetupPlan]) -> str:
    question = f"run these commands on {', '.join(plan.node for plan in ready)}"
    for source in dict.fromkeys(plan.new_source for plan in ready if plan.new_source):
        names = ", ".join(plan.node for plan in ready if plan.new_source == source)
        question += f", and let {names} install packages of {source}"
    return f"{question}?"


def _carry_out(plans: Sequence[SetupPlan], nodes: Sequence[Node], *, quiet: bool) -> tuple[SetUp, ...]:
    """Run the steps. Each step has one line when all nodes have done it; a terminal shows what each does now."""
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.readiness.setup import carry_out
    from orchestrator.nodes.interface import Progress
    from orchestrator.render.console import stderr
    from orchestrator.render.setup import StepsDone

    steps, wanted = StepsDone(plans), {plan.node for plan in plans}
    write = (lambda _: None) if quiet else say
    with progress_view(quiet=quiet or not stderr().is_terminal) as view:

        def on_step(node: str, why: str, state: str | float) -> None:
            if isinstance(state, float):
                view.notify(node, Progress(text=f"{why} ✓", done=1, total=1))
                for line in steps.note(node, why, state):
                    write(line)
            elif state:
                write(f"{node}: {why}: {state}")
            else:
                view.notify(node, Progress(text=f"{why} …"))

        results = carry_out(plans, [node for node in nodes if node.name in wanted], on_step)
    for line in steps.rest():
        write(line)
    return results


def _verified(results: tuple[SetUp, ...], plans: Sequence[SetupPlan], specs: Sequence[NodeSpec]) -> tuple[SetUp, ...]:
    """Ask each engine, in a new login, and report the results."""
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.readiness.setup import verified

    sound = {result.node for result in results if not result.error}
    with connected([spec for spec in specs if spec.name in sound]) as reached:
        results = verified(results, plans, reached)
    answering: dict[str, list[str]] = {}
    for result in results:
        if result.error:
            say(f"error: {result.node}: {result.error}\n  → {result.hint}")
        elif result.engine:
            answering.setdefault(result.engine.version, []).append(result.node)
    for version, names in answering.items():
        say(f"{', '.join(names)}: Docker Engine {version} answers")
    if answering:
        say("  → orch launch -- python SCRIPT   # in the folder of your script; it builds the image, too")
    return results
