"""The plan of an earlier run: from this controller's record, else from the run's folder on any node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.checks.hang import timestamp
from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import ConfigError, PreflightError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.numbers import whole
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json
from orchestrator.store.run_names import KnownRun, resolve
from orchestrator.store.run_record import RunRecord, known_records

# A constant; $1 workspace, $2 project, $3 run id (or its beginning).
_READ = r"""
workspace=$1; case $workspace in "~"*) workspace=$HOME${workspace#"~"};; esac
runs=$workspace/$2/runs
if [ -f "$runs/$3/plan.json" ]; then cat "$runs/$3/plan.json"; exit 0; fi
set -- "$runs/$3"*/plan.json
[ -f "$1" ] || exit 1
[ $# -eq 1 ] && cat "$1" && exit 0
for plan in "$@"; do at=$(stat -c %Y -- "$plan"); plan=${plan%/plan.json}; printf '%s %s\n' "$at" "${plan##*/}"; done
exit 3
"""


SEVERAL = 3
"""Exit code of the script for an ambiguous beginning of an id; it writes a time and an id on each line."""


@dataclass(frozen=True, kw_only=True)
class Recalled:
    """A plan and its origin."""

    plan: Plan
    node: str = ""
    """Node that the file is from; empty: this computer's own record."""
    own: Plan | None = None
    """The newest plan of the run in this computer's own record, where there is one."""
    unreadable: str = ""
    """Reason why the own record holds none, where it holds a file."""


def recall(
    nodes: Sequence[Node], specs: Mapping[str, NodeSpec], project: str, run_id: str, *, attempt: int = 0
) -> Recalled:
    """The newest attempt's plan. `run_id` may be the beginning of one run's id.

    `attempt`: an older plan on record does not count; another controller may have planned a newer one. What a plan from
    a node is allowed to do is decided in `cli/launching/grants.py`, and nowhere else.
    """
    chosen = resolve(run_id, known_records())
    record = RunRecord(chosen) if chosen else None
    own = record.plan_from(attempt) if record else None
    if own and own.attempt >= attempt:
        return Recalled(plan=own, own=own)
    wanted = record.run_id if record else run_id
    node, plan = _newest_on(nodes, specs, project, wanted)
    return Recalled(plan=plan, node=node, own=own, unreadable=record.unreadable if record else "")


def _newest_on(nodes: Sequence[Node], specs: Mapping[str, NodeSpec], project: str, run_id: str) -> tuple[str, Plan]:
    """Return the newest attempt's plan on any node, with the node. Answers that are not a plan are skipped."""

    def read(node: Node, wanted: str = run_id) -> tuple[list[KnownRun], Plan | None]:
        answer = node.run(["sh", "-c", _READ, "sh", specs[node.name].workspace, project, wanted])
        if answer.exit_code == SEVERAL:
            pairs = (line.split(" ", 1) for line in answer.stdout.splitlines() if " " in line)
            known = [KnownRun(run_id=name, at=float(whole(at) or 0)) for at, name in pairs if name.startswith(wanted)]
            return known, None
        if answer.exit_code != 0 or not answer.stdout:
            return [], None
        plan = from_json(answer.stdout, where=f"plan.json on {node.name}")
        if not plan.run_id.startswith(wanted):
            return [], None
        return [KnownRun(run_id=plan.run_id, at=timestamp(plan.started_at))], plan

    outcomes = fan_out(nodes, read)
    known = [one for outcome in outcomes if outcome.result for one in outcome.result[0]]
    chosen = resolve(run_id, sorted(known, key=lambda one: -one.at))
    if chosen and any(outcome.result and len(outcome.result[0]) > 1 for outcome in outcomes):
        outcomes = fan_out(nodes, lambda node: read(node, chosen))
    plans = [(o.item.name, o.result[1]) for o in outcomes if o.result and o.result[1] and o.result[1].run_id == chosen]
    if not plans:
        for outcome in outcomes:
            if isinstance(outcome.error, ConfigError):
                raise outcome.error
        if silent := ", ".join(outcome.item.name for outcome in outcomes if outcome.error):
            problem = f"no plan of run {run_id} on this computer or the nodes that answered; {silent} did not answer"
            raise PreflightError(problem, hint="orch doctor")
        raise ConfigError(f"no plan of run {run_id} on this computer or on a node", hint="orch runs")
    return max(plans, key=lambda found: found[1].attempt)
