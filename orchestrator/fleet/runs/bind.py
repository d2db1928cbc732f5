"""Names of the nodes that a scheduler gave to a run, in this controller's record of it."""

from __future__ import annotations

from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes.carrier import Carried, CarriedAttempt
from orchestrator.plan.bound_nodes import bound_plan
from orchestrator.specs.plan import Plan


def note_places(known: Carried, cluster: str) -> None:
    """Write the nodes of the newest attempt of each run on record into its plan."""
    for run_id in {one.run_id for one in known.attempts}:
        newest, record = known.newest(run_id), RunRecord(run_id)
        plan = record.plan()
        if newest and plan and plan.cluster == cluster:
            note_place(record, plan, newest)


def note_place(record: RunRecord, plan: Plan, attempt: CarriedAttempt) -> Plan:
    """Return the plan with the nodes of this attempt, and keep it. Unchanged: they are known, or not chosen yet."""
    if not attempt.names or attempt.attempt < plan.attempt:
        return plan
    bound = bound_plan(plan, attempt.attempt, attempt.names, attempt.addresses, attempt.bound_at)
    if bound == plan:
        return plan
    record.rename_nodes(bound)
    return bound
