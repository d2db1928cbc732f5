"""The plan that a run continues with, and the permissions that this computer's user has given it.

This computer's record of a run is trusted. A plan that was read from a node is data: anyone who can write there can put
any secret, mount, command or node into it. The record and the command line grant permissions. The rest is shown and
asked about on a terminal, and refused elsewhere; secrets, variables that look like some, and mounts must be on the
command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from orchestrator.cli.consent import agreed, can_ask
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import say
from orchestrator.fleet.checkpoints.survey import places_in
from orchestrator.fleet.planning.data import chosen_data
from orchestrator.fleet.runs.load_plan import Recalled, recall
from orchestrator.fleet.runs.takeover import claims_of, disagreement, take_over
from orchestrator.fleet.supervise.hooks import SHOWN_DIGITS, grant, hook_lines, hooks_digest, is_granted
from orchestrator.nodes.interface import Node
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.data import DataFolder
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import HookSpec, Inventory
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.launch_options import LANGUAGE, NUMBERS, LaunchOptions, RunSettings
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.secret import is_sensitive
from orchestrator.specs.secret_forms import REDACTED

Claim = tuple[str, ...]
"""The words of a command line that grant a value of a node's plan to which this computer's user has not agreed."""


def plan_to_continue(
    nodes: Sequence[Node],
    inventory: Inventory,
    options: LaunchOptions,
    *,
    ask: bool,
    attempt: int = 0,
    dry_run: bool = False,
) -> Plan:
    """Return the plan of the run `options.resume`: this computer's own, or a node's as far as it is granted.

    `ask`: whether to ask on the terminal. `dry_run`: nothing will be started, so nothing is asked. ConfigError names
    the values that were not granted; typer.Abort: the answer was no.
    """
    specs = {spec.name: spec for spec in inventory.nodes}
    found = recall(nodes, specs, inventory.project, options.resume, attempt=attempt)
    if not found.node:
        return found.plan
    must_be_stated = tuple(_claims_on_the_controller(found.plan, found.own, options))
    claims = (*must_be_stated, *_claims(found, inventory, options))
    asked = ask and can_ask() and not must_be_stated
    if claims and not (asked or (dry_run and not must_be_stated)):
        words = [shlex.join(claim).replace("'--'", "--") for claim in claims]
        why = f"{found.unreadable}; " if found.unreadable else ""
        by_answer = "" if must_be_stated else "on a terminal the same command asks; elsewhere, "
        command = ["orch resume", found.plan.run_id, *([] if can_ask() else ["--yes"]), *words]
        raise ConfigError(
            f"{why}the plan of run {found.plan.run_id} was read from {found.node} and is not this computer's own: "
            "it has what you have not agreed to here",
            problems=words,
            hint=f"{by_answer}if all of it is as it should be, and the run has ended: {' '.join(command)}",
        )
    plan = _without_foreign_words(found, inventory)
    if dry_run:
        return plan
    shown = claims_of(nodes, places_in(inventory.nodes, inventory.project), plan.run_id)
    problem = disagreement(found.plan, shown)
    if not (ask and can_ask()):
        if problem:
            raise ConfigError(
                f"run {plan.run_id} was launched from another computer, and {problem}",
                problems=[f"{one.node}: {one.line}" for one in shown],
                hint="on a terminal the same command shows it and asks",
            )
    elif claims or shown:
        for line in (*_shown(found, plan, options), *(f"  {one.node:<12} {one.line}" for one in shown)):
            say(line)
        if not agreed("Continue with this plan?" if not problem else f"Continue, although {problem}?", yes=False):
            raise typer.Abort
    take_over(nodes, plan, found.node)
    return plan


def agree_to_hooks(hooks: HookSpec, mode: OutputMode) -> None:
    """Show the hooks of an inventory that were not granted in its folder, and ask: once, until they change.

    `--yes` agrees to the launch, and not to commands that were never shown. ConfigError: with it, with `--json` and
    without a terminal; it names the line that grants exactly these. typer.Abort: the answer was no.
    """
    folder = mode.inventory.parent if mode.inventory else Path()
    digest = hooks_digest(hooks, folder)
    if not digest or mode.dry_run or mode.forecast or is_granted(digest, folder):
        return
    lines = hook_lines(hooks, folder)
    if mode.confirmed or mode.as_json or not can_ask():
        raise ConfigError(
            f"{mode.inventory} has hooks, which run on this computer as you, and you have not agreed to them here",
            problems=lines,
            hint=f"orch trust --hooks {digest[:SHOWN_DIGITS]}   # if they are as they should be; then this again",
        )
    say(f"{mode.inventory} has hooks, which run on this computer as you:")
    for line in lines:
        say(f"  {line}")
    if not agreed("Let them run, until they change?", yes=False):
        say("nothing was started; to launch without them: take `hooks:` out of the file")
        raise typer.Abort
    grant(digest, folder)


def plan_to_use(nodes: Sequence[Node], inventory: Inventory, run_id: str) -> tuple[Plan, bool]:
    """Return the plan of a run whose model is to be used, and whether it is this computer's own.

    A node's plan grants no image, mount, variable or folder; its workload is used. ConfigError: it would run a module
    of the user's, which this computer has not launched.
    """
    found = recall(nodes, {spec.name: spec for spec in inventory.nodes}, inventory.project, run_id)
    if not found.node:
        return found.plan, True
    if found.plan.program.brings_own_code:
        raise ConfigError(
            f"the plan of run {found.plan.run_id} was read from {found.node} and is not this computer's own: it would"
            f" run code that was not launched here ({shlex.join(found.plan.command[:3])})",
            hint=f"on the computer that launched it; the files of the run: orch pull {found.plan.run_id}",
        )
    return _without_foreign_words(found, inventory), False


def _claims(found: Recalled, inventory: Inventory, options: LaunchOptions) -> Iterator[Claim]:
    """Yield everything else that neither the own record nor the command line grants: an answer to a question does."""
    plan, own = found.plan, found.own
    names = list(dict.fromkeys((*(part.node for part in plan.nodes), *plan.away)))
    granted = {*(part.node for part in own.nodes), *own.away} if own else set()
    if not options.nodes and not set(names) <= granted:
        known = {spec.name for spec in inventory.nodes}
        yield ("--nodes", ",".join(name for name in names if name in known) or "NAMES")
    for name, value in plan.environment.items():
        if not (
            is_sensitive(name, value)
            or name in LANGUAGE
            or name in options.environment
            or (own and own.environment.get(name) == value)
        ):
            yield ("--env", f"{name}={value}")
    if not options.workdir and plan.own_code and not (own and own.own_code and own.code_digest == plan.code_digest):
        yield ("--workdir", "FOLDER")
    own_data = {one.digest for one in own.data} if own else set()
    for one in chosen_data(options, plan):
        if one.digest and one.digest not in own_data:
            yield ("--data", f"{one.name}=FOLDER")
    if not options.profile and plan.profile and not (own and own.profile == plan.profile):
        yield ("--profile", plan.profile)
    if not options.image and plan.image and not (own and own.image == plan.image):
        yield ("--image", plan.image)
    for name, flag in NUMBERS.items():
        number = getattr(plan, name)
        if name not in options.given and number != getattr(own or RunSettings(), name):
            yield (flag.name, str(number))
    if not options.command and plan.command != (own.command if own else ()):
        yield ("--", *plan.command)  # the last: nothing comes after a command


def _claims_on_the_controller(plan: Plan, own: Plan | None, options: LaunchOptions) -> Iterator[Claim]:
    """Yield secrets of this computer and folders of its nodes, which the command line must name."""
    granted = {secret.name for secret in own.secrets} if own else set()
    for secret in plan.secrets:
        if secret.name not in granted | {secret.name for secret in options.secrets}:
            yield ("--secret", secret.name)
    known = set(own.environment) if own else set()
    for name in sorted(name for name, value in plan.environment.items() if is_sensitive(name, value)):
        if name not in known | set(options.environment):
            yield ("--env", f"{name}=…")
    for mount in plan.mounts:
        if not options.mounts and not (own and mount in own.mounts):
            yield ("--mount", mount.typed)


def _without_foreign_words(found: Recalled, inventory: Inventory) -> Plan:
    """The plan without values that a node must not set: files of this computer, folders on other nodes."""
    plan, own = found.plan, found.own
    places = places_in(inventory.nodes, inventory.project)
    names = {secret.name for secret in plan.secrets}

    def part_of(part: NodePlan) -> NodePlan:
        """The part in the inventory's folder, without a container that could be created."""
        labels = {name: text for name, text in part.container.labels.items() if name != LABEL_SECRETS}
        nothing = ContainerSpec(name=part.container.name, image="", command=(), environment={}, labels=labels)
        return replace(part, folder=places[part.node], container=nothing)

    return replace(
        plan,
        project=inventory.project,
        secrets=tuple(secret for secret in own.secrets if secret.name in names) if own else (),
        environment={
            name: REDACTED if is_sensitive(name, value) else value
            for name, value in plan.environment.items()
            if name not in LANGUAGE
        },
        code_origin=own.code_origin if own and own.code_digest == plan.code_digest else "",
        data=tuple(_own_data(one, own) for one in plan.data),
        nodes=tuple(part_of(part) for part in plan.nodes if part.node in places),
        away=tuple(name for name in plan.away if name in places),
        notes=(),
    )


def _own_data(theirs: DataFolder, own: Plan | None) -> DataFolder:
    """The data as this computer launched it; of other data, no folder here and no absolute path in a container."""
    known = {one.digest: one for one in own.data} if own else {}
    inside = tuple(place for place in theirs.places if not place.startswith("/"))
    return known.get(theirs.digest) or replace(theirs, origin="", parts=(), places=inside)


def _shown(found: Recalled, plan: Plan, options: LaunchOptions) -> Iterator[str]:
    """Yield lines with exactly what would run: the plan, with the options of the command line applied."""
    yield f"The plan of run {plan.run_id} was read from {found.node}: this computer has not made it."
    if found.unreadable:
        yield f"  note: {found.unreadable}"
    yield f"  command      {shlex.join(options.command or plan.command)}"
    yield f"  nodes        {options.nodes or ', '.join(part.node for part in plan.nodes)}"
    if plan.away and not options.nodes:
        yield f"  away         {', '.join(plan.away)}"
    device = "cpu or cuda, by the device of each node"
    built = f"orch/{plan.project}:{options.profile or plan.profile or device}"
    yield f"  image        {options.image or plan.image or built}"
    recorded = (f"{name}={value}" for name, value in plan.environment.items() if name not in options.environment)
    for word in (*recorded, *(f"{name}=… as given" for name in sorted(options.environment))):
        yield f"  environment  {word}"
    for mount in options.mounts or plan.mounts:
        yield f"  mount        {mount.typed}"
    for name in sorted({secret.name for secret in (*plan.secrets, *options.secrets)}):
        yield f"  secret       {name}"
    if options.workdir or plan.own_code:
        yield f"  code         {options.workdir or f'as the nodes hold it, {plan.code_digest}'}"
    for one in chosen_data(options, plan):
        yield f"  data         {one.name}: {f'as the nodes hold it, {one.digest}' if one.digest else one.origin}"
    resolved = options.resolved(plan)
    yield f"  options      {' '.join(f'{flag.name} {getattr(resolved, name)}' for name, flag in NUMBERS.items())}"
