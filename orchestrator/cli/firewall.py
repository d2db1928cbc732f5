"""`orch firewall`: open the nodes' firewalls to each other, and to no other machine; and undo that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.consent import agreed
from orchestrator.cli.context import ChosenNodes
from orchestrator.cli.flags import CommandGroup
from orchestrator.cli.options import Output, YesOption
from orchestrator.cli.report import exit_code, report_errors, say
from orchestrator.cli.sudo import SudoPassword

if TYPE_CHECKING:
    from orchestrator.fleet.fan_out import Outcome
    from orchestrator.nodes.interface import Node
    from orchestrator.plan.firewall import FirewallPlan

GROUP = CommandGroup(
    help="Allow the nodes to connect to each other through their firewalls, and no other machine.",
    epilog="orch firewall show\norch firewall apply --nodes beta",
    no_args_is_help=True,
)


@GROUP.command(epilog="orch firewall show")
def show(chosen: ChosenNodes, sudo: SudoPassword, output: Output) -> int:
    """Show each node's firewall, the addresses it is open to, and the commands that `apply` would run."""
    return _firewall("show", chosen, sudo, output)


@GROUP.command(epilog="orch firewall apply\norch firewall apply --nodes beta")
def apply(chosen: ChosenNodes, sudo: SudoPassword, output: Output, yes: YesOption = False) -> int:
    """Allow TCP between the inventory's addresses in each node's firewall. Shows every command and asks first."""
    return _firewall("apply", chosen, sudo, output, yes=yes)


@GROUP.command(epilog="orch firewall remove --nodes beta")
def remove(chosen: ChosenNodes, sudo: SudoPassword, output: Output, yes: YesOption = False) -> int:
    """Remove the rules that `apply` added, and no others. Shows every command and asks first."""
    return _firewall("remove", chosen, sudo, output, yes=yes)


def _firewall(verb: str, chosen: ChosenNodes, sudo: SudoPassword, output: Output, *, yes: bool = False) -> int:
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.fan_out import Outcome
    from orchestrator.fleet.readiness.firewall import carry_out, plans_to_apply, plans_to_remove, replan
    from orchestrator.render.firewall import firewall_dict, firewall_lines, lost_at_restart

    loaded, specs = chosen.load()
    names, project, removing = {spec.name for spec in specs}, loaded.inventory.project, verb == "remove"
    with connected(loaded.inventory.nodes) as reached:

        def planned_on(nodes: Sequence[Node]) -> tuple[Outcome[Node, FirewallPlan], ...]:
            return plans_to_remove(nodes, project) if removing else plans_to_apply(nodes, reached, project)

        outcomes = planned_on([node for node in reached if node.name in names])
        locked = [one.item for one in outcomes if one.result and one.result.needs_password]
        if locked and (verb != "show" or sudo.can_ask):
            opened, refused = sudo.unlock(locked)
            again = {one.item.name: one for one in planned_on(list(opened.values()))}
            again |= {node.name: Outcome(node, error=refused[node.name]) for node in locked if node.name in refused}
            outcomes = tuple(again.get(one.item.name, one) for one in outcomes)
        report_errors(outcome.error for outcome in outcomes)
        planned = [(outcome.item, outcome.value()) for outcome in outcomes if not outcome.error]
        todo = [(node, plan) for node, plan in planned if plan.commands]
        lines = [line for _, plan in planned for line in firewall_lines(plan)]
        if verb != "show" and (todo or not output.as_json):
            say("\n".join(lines))
        if verb != "show" and todo and agreed(f"Run {sum(len(plan.commands) for _, plan in todo)} commands?", yes=yes):
            done = carry_out(todo, replan(reached, project, remove=removing))
            report_errors(outcome.error for outcome in done)
            changed = {outcome.item.name: outcome.value() for outcome in done if not outcome.error}
            for name, plan in changed.items():
                now = f"open to {', '.join(plan.open_to)}" if plan.open_to else "no rule of ours is left"
                say(f"✓ {name}: {now}")
            for line in lost_at_restart([plan for node, plan in todo if node.name in changed]):
                say(line)
            outcomes = (*(one for one in outcomes if one.error), *done)
    plans = [outcome.value() for outcome in outcomes if not outcome.error]
    data = {"nodes": [firewall_dict(plan) for plan in plans]}
    output.write(data, [plan.node for plan in plans], lines if verb == "show" else [])
    return exit_code(len(outcomes) - sum(not plan.unknown for plan in plans), len(outcomes))
