"""`orch firewall`: ask every node for its packet filter, and execute the confirmed plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.fleet.fan_out import Outcome, fan_out, results_of
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes import network_probe
from orchestrator.plan.firewall import FirewallPlan, plan_apply, plan_remove
from orchestrator.specs.errors import CommandFailedError, PreflightError

TIMEOUT_S = 60.0


def plans_to_apply(
    nodes: Sequence[Node], every: Sequence[Node], project: str
) -> tuple[Outcome[Node, FirewallPlan], ...]:
    """Plan for each of these nodes the rules that admit all machines of the inventory (`every`)."""
    # raises: the rule of a node without address would look stale
    addresses = results_of(fan_out(every, lambda node: node.address, timeout_s=TIMEOUT_S))
    return fan_out(nodes, lambda node: _plan_apply(node, addresses, project), timeout_s=TIMEOUT_S)


def plans_to_remove(nodes: Sequence[Node], project: str) -> tuple[Outcome[Node, FirewallPlan], ...]:
    """Plan for each of these nodes the removal of this project's rules."""
    return fan_out(nodes, lambda node: _plan_remove(node, project), timeout_s=TIMEOUT_S)


def carry_out(
    planned: Sequence[tuple[Node, FirewallPlan]], again: Callable[[Node], FirewallPlan]
) -> tuple[Outcome[Node, FirewallPlan], ...]:
    """Run the commands of each node in order, then plan again: commands that are still needed are a failure."""
    by_name = {node.name: plan for node, plan in planned}

    def work(node: Node) -> FirewallPlan:
        agreed = by_name[node.name]
        if agreed.as_root is None:
            raise PreflightError("sudo asks for a password there", node=node.name, hint="run the lines above on it")
        for argv in agreed.commands:
            node.run((*agreed.as_root, *argv), timeout_s=TIMEOUT_S).check(f"changing {argv[0]}'s rules")
        plan = again(node)
        if plan.commands:
            problem = f"{plan.wall.tool} accepted the rules but does not list them"
            raise CommandFailedError(problem, node=node.name, hint="orch firewall show")
        return plan

    return fan_out([node for node, _ in planned], work, timeout_s=2 * TIMEOUT_S)


def replan(every: Sequence[Node], project: str, *, remove: bool) -> Callable[[Node], FirewallPlan]:
    """A function that plans the commands that a node still needs."""
    if remove:
        return lambda node: _plan_remove(node, project)
    return lambda node: _plan_apply(node, [one.address for one in every], project)


def _plan_apply(node: Node, addresses: Sequence[str], project: str) -> FirewallPlan:
    peers = tuple(dict.fromkeys(address for address in addresses if address != node.address))
    return plan_apply(node.name, network_probe.ask(node, project=project, peers=peers), peers)


def _plan_remove(node: Node, project: str) -> FirewallPlan:
    return plan_remove(node.name, network_probe.ask(node, project=project, peers=()))
