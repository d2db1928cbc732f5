"""Take over a run of another computer: its nodes' claims are compared, and from then on the record here decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.claims import LONGEST_OWNER, TIMEOUT_S
from orchestrator.fleet.runs.find_runs import RunningContainer, find_runs
from orchestrator.fleet.runs.read_logs import note_reports
from orchestrator.nodes.interface import Node
from orchestrator.specs.labels import LABEL_ATTEMPT, LABEL_CLAIM
from orchestrator.specs.numbers import whole
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import Run
from orchestrator.store.run_record import RunRecord, user_here

# A constant. $1: the project's folder, $2: the run. The newest claim, and the hash of the plan.
CLAIMS = r"""
LC_ALL=C; export LC_ALL
project=$1
case $project in "~"*) project=$HOME${project#"~"};; esac
run=$project/runs/$2
[ -f "$run/plan.json" ] && sum=$(sha256sum <"$run/plan.json") && printf 'plan=%s\n' "${sum%% *}"
newest=
for d in "$run"/attempts/*/; do
  n=${d%/}; n=${n##*/}
  case $n in ''|*[!0-9]*|????????*) continue;; esac
  [ -z "$newest" ] || [ "$n" -gt "$newest" ] && newest=$n
done
[ -n "$newest" ] || exit 0
printf 'attempt=%s\n' "$newest"
printf 'claim=%s\n' "$(head -c 200 -- "$run/attempts/$newest/id" 2>/dev/null | tr -d '\n')"
printf 'owner=%s\n' "$(head -c 200 -- "$run/attempts/$newest/owner" 2>/dev/null | tr -d '\n')"
"""


@dataclass(frozen=True, kw_only=True)
class NodeClaim:
    """Claim and plan of a run as a node states them: bounded text, and no authority."""

    node: str
    attempt: int | None = None
    claim: str = ""
    owner: str = ""
    plan_sha256: str = ""

    @property
    def line(self) -> str:
        attempt = "no claim" if self.attempt is None else f"attempt {self.attempt} by {self.owner or '?'}"
        return f"{attempt}, plan {self.plan_sha256[:8] or 'none'}"


def claims_of(nodes: Sequence[Node], places: Mapping[str, str], run_id: str) -> tuple[NodeClaim, ...]:
    """Claims of the nodes that answer and know the run."""
    asked = [node for node in nodes if node.name in places]
    outcomes = fan_out(
        asked,
        lambda node: node.run(["sh", "-c", CLAIMS, "sh", places[node.name], run_id], timeout_s=TIMEOUT_S).stdout,
        timeout_s=TIMEOUT_S,
    )
    shown = [_claim(outcome.item.name, outcome.result) for outcome in outcomes if outcome.result]
    return tuple(one for one in shown if one.plan_sha256 or one.attempt is not None)


def _claim(node: str, text: str) -> NodeClaim:
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    owner = "".join(one if one.isprintable() else " " for one in values.get("owner", "")[:LONGEST_OWNER])
    plan = values.get("plan", "")
    return NodeClaim(
        node=node,
        attempt=whole(values.get("attempt", "")),
        claim=values.get("claim", "")[:LONGEST_OWNER],
        owner=owner,
        plan_sha256=plan if re.fullmatch(r"[0-9a-f]{64}", plan) else "",
    )


def disagreement(plan: Plan, claims: Sequence[NodeClaim]) -> str:
    """Reason why the nodes do not agree on the attempt that this plan is of; empty if they do."""
    if len({one.plan_sha256 for one in claims if one.plan_sha256}) > 1:
        return "the nodes hold different plans of it"
    named = {(one.attempt, one.claim) for one in claims if one.attempt is not None}
    if named and named != {(plan.attempt, plan.claim)}:
        return f"the nodes do not agree that attempt {plan.attempt} is its newest"
    return ""


def take_over(nodes: Sequence[Node], plan: Plan, source: str) -> None:
    """Record the attempt of this plan, which another computer launched, as one that this computer knows, and the
    checkpoints that its leading node has reported: lines that were read before counted for nothing."""
    by_name = {node.name: node for node in nodes}
    found = [run for run in find_runs(nodes).runs if run.run_id == plan.run_id]
    containers = {name: id for run in found for name, id in _containers(run, plan, by_name).items()}
    record = RunRecord(plan.run_id)
    record.save_takeover(plan, containers, source=source, by=user_here())
    leading = [name for name in containers if record.leads(name, plan.attempt)]
    note_reports([RunningContainer(node=by_name[name], node_rank=0, id=containers[name]) for name in leading], record)


def _containers(run: Run, plan: Plan, nodes: Mapping[str, Node]) -> dict[str, str]:
    """Ids of the containers with the attempt and claim of this plan, on its nodes."""
    names = {part.node for part in plan.nodes} & nodes.keys()
    return {
        member.node: member.container.id
        for member in run.containers
        if member.container
        and member.node in names
        and member.container.labels.get(LABEL_ATTEMPT, "0") == str(plan.attempt)
        and member.container.labels.get(LABEL_CLAIM, "") == plan.claim
    }
