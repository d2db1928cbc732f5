"""The plan of an earlier run: from this controller's record, else from the run's folder on any node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.records import recorded_runs
from orchestrator.nodes.seam import Node
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json

# A constant; $1 workspace, $2 project, $3 run id (or its beginning).
_READ = r"""
workspace=$1; case $workspace in "~"*) workspace=$HOME${workspace#"~"};; esac
for plan in "$workspace/$2/runs/$3"*/plan.json; do [ -f "$plan" ] && cat "$plan" && exit 0; done
exit 1
"""


def recall_plan(nodes: Sequence[Node], specs: Mapping[str, NodeSpec], project: str, run_id: str) -> Plan:
    """The newest attempt's plan. `run_id` may be its beginning."""
    for record in recorded_runs():
        if record.run_id.startswith(run_id) and (plan := record.plan()):
            return plan

    def read(node: Node) -> str:
        answer = node.run(["sh", "-c", _READ, "sh", specs[node.name].workspace, project, run_id])
        return answer.stdout if answer.exit_code == 0 else ""

    outcomes = fan_out(nodes, read)
    plans = [from_json(o.result, where=f"plan.json on {o.item.name}") for o in outcomes if o.result]
    if not plans:
        silent = [outcome.item.name for outcome in outcomes if outcome.error]
        hint = f"{', '.join(silent)} did not answer" if silent else "orch runs"
        raise ConfigError(f"no plan of a run {run_id}, neither here nor on a node", hint=hint)
    return max(plans, key=lambda plan: plan.attempt)
