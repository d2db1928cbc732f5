"""Next step for a run that has failed: from a checkpoint where there is one, otherwise with its launch, corrected."""

from __future__ import annotations

import shlex
from dataclasses import replace

from orchestrator.checks.causes import RESUME
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.failure import Failure
from orchestrator.specs.launch_line import launch_words
from orchestrator.specs.plan import Plan
from orchestrator.state.run_state import RunState


def has_checkpoint(state: RunState) -> bool:
    """Return whether a checkpoint of the run is known, which its script may have saved with the hooks."""
    return bool(state.journal.lineage()) or any(one.part.checkpoint or one.part.resumed for one in state.members)


def again(plan: Plan | None, run_id: str, *, from_checkpoint: bool) -> str:
    """The step of a cause, `{again}`: a resume repeats the words of the launch, and a run without a checkpoint gains
    nothing by it."""
    if from_checkpoint or plan is None:
        code = _own_code(plan) if plan else ""
        return RESUME.format(run=run_id) + (f"   # with corrected code:{code}" if code else "")
    return f"launch again: {shlex.join(launch_words(plan))}"


def next_step(plan: Plan, failure: Failure, *, from_checkpoint: bool) -> str:
    """The command that follows a failure: with the corrected code, or without a node that was lost. Empty: the cause
    has it."""
    cause = failure.cause
    if cause and cause.fix[0].startswith("orch launch "):
        return ""
    left = [part for part in plan.nodes if part.node != failure.node]
    is_lost = failure.exit_code is None and bool(left)
    if not from_checkpoint:
        if cause and cause.owner != "infrastructure":
            return f"correct that, then {again(plan, plan.run_id, from_checkpoint=False)}"
        fewer = replace(plan, nodes=tuple(left), nnodes=len(left)) if is_lost and not plan.cluster else plan
        where = f"without {failure.node}, " if fewer is not plan else ""
        return where + again(fewer, plan.run_id, from_checkpoint=False)
    code = _own_code(plan)
    if cause and cause.owner == "user" and code:
        return f"with the corrected code: orch resume {plan.run_id}{code}"
    if not is_lost:
        return f"orch resume {plan.run_id}"
    job = ClusterJob.of(plan)
    names = ",".join(part.node for part in left)
    how = f"first {job.without(failure.node)}" if job else f"--nodes {shlex.quote(names)}"
    return f"orch resume {plan.run_id}   without {failure.node}: {how}"


def _own_code(plan: Plan) -> str:
    """The option that brings the folder of the run's own code as it is now; empty: it has none."""
    return f" --workdir {shlex.quote(plan.code_origin)}" if plan.own_code and plan.code_origin else ""
