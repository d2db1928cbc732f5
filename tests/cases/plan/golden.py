"""Plan of a case file. After an intended change: `python -m tests.cases.plan.golden` writes it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orchestrator.fleet.gather import assumed_facts
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.container import Mount
from orchestrator.specs.data import DataFolder
from orchestrator.specs.facts import ImageFacts, NodeFacts, Route
from orchestrator.specs.inventory import Inventory, NodeSpec
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import LaunchRequest, RunIdentity
from orchestrator.specs.secret import Secret
from orchestrator.specs.selection import select_nodes
from tests import lan

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


def load(path: Path) -> tuple[dict[str, Any], Inventory]:
    """The case, and the inventory in it, read as any other."""
    case: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    return case, parse_inventory(case["inventory"].encode(), filename="inventory.yaml")


def plan_of(case: dict[str, Any], inventory: Inventory) -> Plan:
    words = dict(case.get("request", {}))
    nodes = select_nodes(inventory, nodes=words.pop("nodes", None))
    mounts = tuple(Mount(**mount) for mount in words.pop("mounts", ()))
    data = tuple(DataFolder(**{**one, "places": tuple(one.get("places", ()))}) for one in words.pop("data", ()))
    secrets = tuple(Secret(**secret) for secret in words.pop("secrets", ()))
    request = LaunchRequest(
        project=inventory.project,
        nodes=nodes,
        master_port=inventory.master_port,
        command=tuple(words.pop("command", ("gpt2",))),
        mounts=mounts,
        data=data,
        secrets=secrets,
        **words,
    )
    identity = RunIdentity(
        run_id="0102-1504-ab12", user="ana", started_at="2026-01-02T15:04:05+00:00", attempt=case.get("attempt", 0)
    )
    facts = {node.name: _facts(node, case.get("facts", {}).get(node.name)) for node in nodes}
    return plan_launch(request, facts, identity)


def lines_of(plan: Plan, inventory: Inventory) -> str:
    return "\n".join(plan_lines(plan, {node.name: node for node in inventory.nodes})) + "\n"


def _facts(node: NodeSpec, answer: dict[str, Any] | None) -> NodeFacts:
    """Read the node's answer; one without an answer was not asked."""
    if answer is None:
        return assumed_facts(node)
    values = {"cpus": 4, "user": "ana", "home": "/home/ana", "address": node.address, **answer}
    values["routes"] = {peer: Route(interface=name, source="") for peer, name in values.get("routes", {}).items()}
    values["gpus"] = lan.gpus(values.get("gpus", 0))
    values["ports_in_use"] = frozenset(values.get("ports_in_use", ()))
    if image := values.pop("image", ""):
        values["image"] = ImageFacts(id=image)
    return NodeFacts(name=node.name, **values)


def write_expected() -> None:
    for path in CASES:
        case, inventory = load(path)
        if "refused" in case:
            continue
        plan = plan_of(case, inventory)
        path.with_suffix(".lines").write_text(lines_of(plan, inventory))
        if case.get("json"):
            path.with_suffix(".json").write_text(to_json(plan))


if __name__ == "__main__":
    write_expected()
