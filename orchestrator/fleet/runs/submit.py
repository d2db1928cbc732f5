"""Submit a plan as one job of a cluster: its folder on the shared storage, then the job."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.fleet.fan_out import Notify
from orchestrator.fleet.runs.artifacts import ProjectDir
from orchestrator.fleet.runs.launch import bring_all
from orchestrator.fleet.runs.secrets import place_shared, shared_folder
from orchestrator.nodes.carrier import Carried
from orchestrator.nodes.interface import Node
from orchestrator.nodes.slurm import SlurmCarrier
from orchestrator.plan.sbatch import NODE_LABELS, run_folder
from orchestrator.specs.errors import ConflictError, OrchError
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.store.run_record import RunRecord
from orchestrator.store.secret_values import require_values, secret_values


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to be submitted."""

    carrier: SlurmCarrier
    login: Node
    request: LaunchRequest
    plan: Plan
    script: str


def submit(job: Job, *, notify: Notify) -> str:
    """Bring code, data, agent and secrets to the shared storage once, submit the script, and return the job's id.

    Nothing is left in the queue if it raises.
    """
    carrier, login, plan, fresh = job.carrier, job.login, job.plan, job.request.folders
    require_values(plan.secrets, plan.environment, os.environ)
    values = secret_values(plan.secrets, os.environ)
    store = ProjectDir(node=login, folder=plan.nodes[0].folder)
    bring_all([store], plan, fresh, (), notify)
    record = RunRecord(plan.run_id)
    record.save_intent(plan)
    number = ""
    try:
        place_shared(login, run_folder(plan), values)
        labels = plan.nodes[0].container.labels.items()
        of_run = {name: text for name, text in labels if name not in NODE_LABELS}
        if values:  # for readers of the logs on other computers
            of_run[LABEL_SECRETS] = shared_folder(run_folder(plan))
        number = carrier.submit(run_folder(plan), plan.attempt, job.script, of_run, plan.nnodes)
        record.save_plan(plan)
    except BaseException:  # Ctrl-C too
        if number:
            with suppress(OrchError):
                carrier.end(number)
        record.forget_intent(plan.attempt)
        if values:
            with suppress(OrchError):
                carrier.drop_secrets(plan.run_id)
        raise
    return number


def next_attempt(known: Carried, plan: Plan) -> int:
    """Number of the attempt after all that the cluster and the record know. ConflictError: one is still active."""
    newest = known.newest(plan.run_id)
    if newest and not newest.is_over:
        where = f"is in the queue as job {newest.job}" if newest.status == "queued" else f"runs as job {newest.job}"
        raise ConflictError(
            f"run {plan.run_id} {where}",
            hint=f"to end it: orch stop {plan.run_id}, then: orch resume {plan.run_id}",
        )
    return max(plan.attempt, newest.attempt if newest else 0) + 1
