"""The plan of an earlier run: from this controller's record, else from the run's folder on any node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.records import recorded_runs
from orchestrator.nodes.seam import Node
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json

# A constant; $1 workspace, $2 project, $3 run id (or its beginning).
_READ = r"""
workspace=$1; case $workspace in "~"*) workspace=$HOME${workspace#"~"};; esac
runs=$workspace/$2/runs
if [ -f "$runs/$3/plan.json" ]; then cat "$runs/$3/plan.json"; exit 0; fi
set -- "$runs/$3"*/plan.json
[ -f "$1" ] || exit 1
[ $# -eq 1 ] && cat "$1" && exit 0
for plan in "$@"; do plan=${plan%/plan.json}; printf '%s\n' "${plan##*/}"; done
exit 3
"""


SEVERAL = 3
"""Exit code of the script where more than one run begins so; it writes their ids."""


def recall_plan(
    nodes: Sequence[Node], specs: Mapping[str, NodeSpec], project: str, run_id: str, *, attempt: int = 0
) -> Plan:
    """The newest attempt's plan. `run_id` may be its beginning, as long as one run alone begins so.

    `attempt`: the record's will do from this one on; another controller may have planned a newer.
    """
    recorded = {record.run_id: record for record in recorded_runs() if record.run_id.startswith(run_id)}
    if recorded and (plan := recorded[_only(recorded, run_id)].plan()) and plan.attempt >= attempt:
        return plan

    def read(node: Node) -> str:
        answer = node.run(["sh", "-c", _READ, "sh", specs[node.name].workspace, project, run_id])
        if answer.exit_code == SEVERAL:
            _only(answer.stdout.split(), run_id)
        return answer.stdout if answer.exit_code == 0 else ""

    outcomes = fan_out(nodes, read)
    for outcome in outcomes:
        if isinstance(outcome.error, ConfigError):
            raise outcome.error
    plans = [from_json(o.result, where=f"plan.json on {o.item.name}") for o in outcomes if o.result]
    if not plans:
        silent = [outcome.item.name for outcome in outcomes if outcome.error]
        hint = f"{', '.join(silent)} did not answer" if silent else "orch runs"
        raise ConfigError(f"no plan of a run {run_id}, neither here nor on a node", hint=hint)
    chosen = _only({plan.run_id for plan in plans}, run_id)
    return max((plan for plan in plans if plan.run_id == chosen), key=lambda plan: plan.attempt)


def _only(found: Collection[str], wanted: str) -> str:
    """The run of this very id, else the one whose id begins so."""
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else next(iter(found))
    raise ConfigError(f"{len(found)} runs begin with {wanted}: {', '.join(sorted(found))}", hint="say more of its id")
