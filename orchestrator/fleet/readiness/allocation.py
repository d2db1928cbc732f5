"""Nodes of a cluster for checks: a job holds them as long as the checks take."""

from __future__ import annotations

import getpass
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from contract.hostlist import HostlistError, expand
from contract.log_lines import readable
from orchestrator.nodes.slurm import ASK_S, POLL_S, SILENT_S, SlurmCarrier
from orchestrator.nodes.slurm_answers import queue_reason
from orchestrator.nodes.srun import Allocation
from orchestrator.plan.sbatch import holding_script
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import EngineError, OrchError
from orchestrator.specs.inventory import NodeSpec

AGAIN_S = 30.0
"""Seconds after which a job that waits for the same reason is mentioned again."""
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
Tell = Callable[[str], None]


@contextmanager
def allocated(carrier: SlurmCarrier, nnodes: int, *, wait_s: float, tell: Tell) -> Iterator[Allocation]:
    """Hold so many nodes of the cluster; the job is cancelled at the end in every case, Ctrl-C too.

    ConfigError, PreflightError: the job was refused; DeadlineError: it did not start within `wait_s`.
    """
    cluster = carrier.cluster
    name = f"orch-check-{getpass.getuser()}-{secrets.token_hex(3)}"
    job = carrier.hold(holding_script(cluster, nnodes, name), name)
    try:
        tell(f"job {job} of {cluster.name} asks for {nnodes} node{'s' if nnodes > 1 else ''}")
        names = _started(carrier, job, wait_s, tell)
        tell(f"job {job} holds {', '.join(names)}")
        yield Allocation(carrier=carrier, job=job, names=names)
    finally:
        try:
            carrier.cancel(job)
            tell(f"job {job} is cancelled, its nodes are released")
        except OrchError as error:
            tell(f"job {job} could not be cancelled: {error.message}\n  → {carrier.on_login(f'scancel {job}')}")


def _started(carrier: SlurmCarrier, job: str, wait_s: float, tell: Tell) -> tuple[str, ...]:
    """The names of the nodes, once the job runs."""
    began = answered = reported = time.monotonic()
    shown = ""
    while True:
        answer = carrier.login.run(["squeue", "-h", "-j", job, "-o", "%T|%r|%N"], timeout_s=ASK_S)
        now = time.monotonic()
        lines = [line for line in answer.stdout.splitlines() if line.count("|") == 2]
        state, reason, names = (readable(lines[-1]).strip().split("|")) if lines else ("", "", "")
        look = carrier.on_login(f"scontrol show job {job}")
        if state == "RUNNING":
            return _names(names, carrier.name)
        if answer.exit_code == 0 or "Invalid job id" in answer.stderr:
            answered = now
            if state not in _WAITS:
                ended = f"job {job} ended before it had nodes" + (f" ({state})" if state else "")
                raise EngineError(ended, node=carrier.name, hint=look)
        elif now - answered > SILENT_S:
            last = readable(answer.stderr.strip().rpartition("\n")[2])
            raise EngineError(
                f"the scheduler does not answer: {last}", node=carrier.name, hint=carrier.on_login("sinfo")
            )
        if now - began >= wait_s:
            raise carrier.late(job, wait_s, reason)
        if state and (reason != shown or now - reported >= AGAIN_S):
            _tell_queue(carrier, job, reason, now - began, tell)
            shown, reported = reason, now
        carrier.rest(POLL_S)


def _tell_queue(carrier: SlurmCarrier, job: str, reason: str, waited_s: float, tell: Tell) -> None:
    why = f" ({reason})" if reason not in ("", "None") else ""
    tell(f"job {job} is queued{why}, {waited_s:.0f} s")
    meaning, command = queue_reason(reason)
    if meaning:
        tell(f"  {meaning}\n  → {carrier.on_login(command.replace('JOB', job))}")


def _names(text: str, cluster: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistError as error:
        raise EngineError(f"squeue named no nodes: {error}", node=cluster) from error


def spec_of(cluster: ClusterSpec, name: str, address: str) -> NodeSpec:
    """A node of an allocation as checks know it: its ranks would be processes of the cluster's Python."""
    device = "cuda" if cluster.gpus else "cpu"
    values = {"address": address, "workspace": cluster.workspace, "engine": "process", "device": device}
    plain = NodeSpec.model_validate({"name": "node", **values})
    return plain.model_copy(update={"name": name})  # Slurm's names may have capitals
