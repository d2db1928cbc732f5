"""Reasons of squeue and refusals of sbatch, as Slurm and clusters' own checks write them, and their meaning."""

from __future__ import annotations

import pytest

from orchestrator.nodes.slurm_answers import EndedJob, queue_reason, read_look, read_sacct, submit_problem

REASONS = {
    "": (
        "Priority", "Resources", "BeginTime", "Dependency", "JobArrayTaskLimit", "BurstBufferStageIn", "Federation",
    ),
    "down, drained or reserved": (
        "(ReqNodeNotAvail, UnavailableNodes:d[001-032],f[001-024])", "ReqNodeNotAvail, May be reserved for other job",
        "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)",
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved", "NodeDown", "FrontEndDown",
    ),
    "a limit": (
        "QOSMaxGRESPerUser", "QOSGrpNodeLimit", "AssocMaxJobsLimit", "AssocGrpCPUMinutesLimit", "MaxCpuPerAccount",
        "MaxGRESPerAccount", "MaxBillingPerAccount", "QOSMaxSubmitJobPerUserLimit", "AccountingPolicy",
    ),
    "account or QOS": ("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"),
    "administrator": ("JobHeldAdmin",),
    "is held": ("JobHeldUser", "JobHoldMaxRequeue", "launch failed requeued held"),
    "will not start": ("DependencyNeverSatisfied", "ReservationDeleted"),
    "time limit": ("PartitionTimeLimit",),
    "takes no jobs now": ("PartitionDown", "PartitionInactive"),
    "no node has": ("BadConstraints",),
    "could not start it": ("JobLaunchFailure", "NonZeroExitCode", "SystemFailure", "InactiveLimit"),
}  # fmt: skip
REFUSALS = {
    "an account is needed": ("You must specify an account (--account)", "Please specify an account with -A",
        "slurm_job_submit ERROR: 7 submitted a job to a gpu32 partition, without specifying a GPU32 Account",
    ),
    "may not use the partition": ("Invalid account or account/partition combination specified",),
    "takes no jobs now": ("Required partition not available (inactive or drain)", "System submissions disabled"),
    "no such partition": ("invalid partition specified: gpuu", "Requested nodes not in this partition"),
    "no node of the partition": (
        "CPU count per node can not be satisfied", "Memory specification can not be satisfied",
        "Requested node configuration is not available", "Invalid generic resource (gres) specification",
        "Invalid feature specification", "More processors requested than permitted", "Node count specification invalid",
    ),
    "gives no answer": (
        "Unable to contact slurm controller (connect failure)", "Zero Bytes were transmitted or received",
        "Socket timed out on send/recv operation", "Rate limit exceeded, please retry momentarily",
        "Protocol authentication error",
    ),
    "line ends of Windows": ("Batch script contains DOS line breaks (\\r\\n)",),
    "type of GPU": ("Please specify a GPU type", "--gpus-per-node requires a GPU partition"),
    "a limit": ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",),
    "QOS does not exist": ("Invalid qos specification",),
    "time limit is not valid": ("Requested time limit is invalid (missing or exceeds some limit)",),
    "reservation": ("Access denied to requested reservation", "Requested reservation is invalid"),
    "account or group": ("User's group not permitted to use this partition", "Access/permission denied"),
    "licences": ("Invalid license specification",),
    "cannot be read": ("Unable to open file job.sh", "I/O error writing script/environment to file"),
    "a rule of this cluster": ("Unspecified error",),
    "does not take an option": ("unrecognized option '--gpu'",),
    "": ("a rule of this cluster that is not documented",),
}  # fmt: skip


@pytest.mark.parametrize(("meaning", "reason"), [(key, one) for key, all_ in REASONS.items() for one in all_])
def test_a_reason_of_squeue(meaning: str, reason: str) -> None:
    found, command = queue_reason(reason)
    assert meaning in found
    assert bool(found) == bool(command) == bool(meaning)


@pytest.mark.parametrize(("meaning", "text"), [(key, one) for key, all_ in REFUSALS.items() for one in all_])
@pytest.mark.parametrize("before", ["sbatch: error: ", "sbatch: error: Batch job submission failed: "])
def test_a_refusal_of_sbatch(meaning: str, text: str, before: str) -> None:
    found, command = submit_problem([before + text])
    assert meaning in found
    assert bool(found) == bool(command) == bool(meaning)


def test_a_job_without_its_output_file_has_no_signal() -> None:
    ended = read_sacct("1|FAILED|0:53\n2|FAILED|0:9\n")
    assert ended["1"] == EndedJob(state="FAILED (a node cannot write the job's output file)", exit_code=1)
    assert ended["2"].exit_code == 137


@pytest.mark.parametrize("signal", ["9" * 5000, "²", "-9", "65"])
def test_a_signal_that_is_none_leaves_the_code(signal: str) -> None:
    assert read_sacct(f"1|FAILED|7:{signal}\n") == {"1": EndedJob(state="FAILED", exit_code=7)}


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"a":' * 100_000, '{"attempt": 0, "job": "1", "names": ["n"], "at": ' + "9" * 400 + "}", "7"],
)
def test_a_file_of_a_run_that_is_something_else_is_named(content: str) -> None:
    found = read_look(f"file\tfirst-906a/place-12.0.json\t{content}\nsqueue\t0\n12|RUNNING|orch:first-906a|None\n")
    assert found.strange == ["first-906a/place-12.0.json is not understood and left out"]
    assert [*found.queue] == ["12"]
