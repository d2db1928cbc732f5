"""`orch firewall`: open the nodes' firewalls to each other, and to no other machine; and undo that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, LabelOption, NodesOption, YesOption
from orchestrator.cli.report import exit_code, report_error, say, write_json, write_line

if TYPE_CHECKING:
    from orchestrator.fleet.fan_out import Outcome
    from orchestrator.nodes.interface import Node
    from orchestrator.plan.firewall import FirewallPlan


GROUP = typer.Typer(
    help="Allow the nodes to connect to each other through their firewalls, and no other machine.",
    epilog="orch firewall show\norch firewall apply --nodes beta",
    no_args_is_help=True,
)


@GROUP.command(epilog="orch firewall show")
def show(
    nodes: NodesOption = None, label: LabelOption = None, inventory: InventoryOption = None, as_json: JsonOption = False
) -> int:
    """Show each node's firewall, the addresses it is open to, and the commands that `apply` would run."""
    return _firewall("show", nodes, label, inventory, as_json=as_json, yes=False)


@GROUP.command(epilog="orch firewall apply\norch firewall apply --nodes beta")
def apply(
    nodes: NodesOption = None,
    label: LabelOption = None,
    inventory: InventoryOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Allow TCP between the inventory's addresses in each node's firewall. Shows every command and asks first."""
    return _firewall("apply", nodes, label, inventory, as_json=as_json, yes=yes)


@GROUP.command(epilog="orch firewall remove --nodes beta")
def remove(
    nodes: NodesOption = None,
    label: LabelOption = None,
    inventory: InventoryOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove the rules that `apply` added, and no others. Shows every command and asks first."""
    return _firewall("remove", nodes, label, inventory, as_json=as_json, yes=yes)


def _firewall(
    verb: str, nodes: str | None, label: list[str] | None, inventory: Path | None, *, as_json: bool, yes: bool
) -> int:
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.readiness.firewall import carry_out, plans_to_apply, plans_to_remove, replan

    loaded = load_inventory(inventory)
    every, project = loaded.inventory.nodes, loaded.inventory.project
    chosen = {spec.name for spec in loaded.select(nodes, label)}
    with connected(every) as reached:
        wanted = [node for node in reached if node.name in chosen]
        removing = verb == "remove"
        outcomes = plans_to_remove(wanted, project) if removing else plans_to_apply(wanted, reached, project)
        todo = [(outcome.item, outcome.value()) for outcome in outcomes if not outcome.error]
        todo = [(node, plan) for node, plan in todo if plan.commands]
        _tell(outcomes, as_json=as_json and (verb == "show" or not todo), asked_for=verb == "show")
        if verb != "show" and todo and agreed(f"Run {sum(len(plan.commands) for _, plan in todo)} commands?", yes=yes):
            done = carry_out(todo, replan(reached, project, remove=removing))
            _tell_done(done, [plan for _, plan in todo], as_json=as_json)
            outcomes = (*(one for one in outcomes if one.error), *done)
    unknown = [outcome for outcome in outcomes if outcome.error or outcome.value().unknown]
    return exit_code(len(unknown), len(outcomes))


def _tell(outcomes: Sequence[Outcome[Node, FirewallPlan]], *, as_json: bool, asked_for: bool) -> None:
    """How it is. Before something is done it is talk, and stdout is left for what comes of it."""
    from orchestrator.render.firewall import firewall_dict, firewall_lines

    for outcome in outcomes:
        if outcome.error:
            report_error(outcome.error)
    plans = [outcome.value() for outcome in outcomes if not outcome.error]
    if as_json:
        write_json({"nodes": [firewall_dict(plan) for plan in plans]})
        return
    for plan in plans:
        for line in firewall_lines(plan):
            (write_line if asked_for else say)(line)


def _tell_done(
    outcomes: Sequence[Outcome[Node, FirewallPlan]], planned: Sequence[FirewallPlan], *, as_json: bool
) -> None:
    from orchestrator.render.firewall import firewall_dict, kept_until

    for outcome in outcomes:
        if outcome.error:
            report_error(outcome.error)
        elif not as_json:
            plan = outcome.value()
            now = f"open to {', '.join(plan.open_to)}" if plan.open_to else "no rule of ours is left"
            say(f"✓ {plan.node}: {now}")
    fine = [outcome.item.name for outcome in outcomes if not outcome.error]
    for line in kept_until([plan for plan in planned if plan.node in fine]):
        say(line)
    if as_json:
        write_json({"nodes": [firewall_dict(one.value()) for one in outcomes if not one.error]})
