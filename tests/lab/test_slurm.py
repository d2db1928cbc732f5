"""Runs under a real Slurm, by the command line: three nodes, and all that ends a job."""

from __future__ import annotations

import random
import re
import time

import pytest

from tests.conftest import Figure
from tests.lab.conftest import Orch
from tests.lab.slurm_jobs import (
    DATA,
    FOR_EVER,
    GPT2,
    IN_CONTAINERS,
    KILLS,
    MODEL,
    NODES,
    PROCESSES,
    PROJECT,
    Run,
    by,
    containers,
    idle,
    launch,
    losses,
    make_image,
    mounts,
    on,
    preempt,
    until,
)

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

STEPS = 100
WRONG = """\
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "1":
    raise ValueError("nine is not prime")
time.sleep(600)
"""


def resumed_where_it_stopped(run: Run, life: int) -> int:
    """The step at which a life of the job continued: the last one of the life before it."""
    until(lambda: run.events("step", life), f"life {life}", 90)
    (stopped,) = run.events("stopped", life - 1)
    assert run.events("resumed", life)[0]["step"] == stopped["step"], run.report()
    assert run.events("step", life)[0]["step"] == stopped["step"] + 1
    return int(stopped["step"])


@pytest.fixture(scope="module")
def whole(cluster: Orch, figure: Figure) -> Run:
    """A run that was followed to its end."""
    where = ("--on", "lab", "--nodes", str(len(NODES)), "--data", DATA, "--yes", "--name", "whole")
    done = cluster("launch", *where, "--", *GPT2, "--max-steps", str(STEPS))
    assert done.code == 0, done.out + done.err
    figure(f"launch of {STEPS} steps on Slurm, command to end: {done.seconds:.0f} s")
    found = re.search(r"run (\S+) submitted to lab as job (\d+)", done.err)
    assert found, done.err
    assert f"attempt 0 on {', '.join(NODES)}" in done.err
    return Run(cluster, found[1], found[2])


def test_the_losses_are_those_of_process_nodes(whole: Run, figure: Figure) -> None:
    """Bit by bit: the same command and seed on nodes that are processes of this computer."""
    here = by(whole.orch, PROCESSES)
    done = here.launch("--data", DATA, "--name", "here", "--", *GPT2, "--max-steps", str(STEPS), nodes=str(len(NODES)))
    assert done.code == 0, done.out + done.err
    found = re.search(r"run (\S+) done", done.err)
    assert found, done.err
    on_slurm, on_processes = losses(whole.orch, whole.id), losses(here, found[1])
    assert list(on_slurm) == list(range(1, STEPS + 1))
    assert on_slurm == on_processes
    figure(f"launch of {STEPS} steps on process nodes, command to end: {done.seconds:.0f} s")


def test_a_stopped_run_is_resumed_at_the_step(cluster: Orch, figure: Figure) -> None:
    run = launch(cluster, "stopped", *FOR_EVER)
    run.wait_for_steps()
    assert run.state() == "running"
    stopped = cluster("stop", run.id)
    assert stopped.code == 0, stopped.err
    (last,) = run.events("stopped")
    assert run.checkpoints()[-1] == last["step"], run.report()
    assert run.state() == "stopped"
    resumed = cluster("resume", run.id, "--yes", "--", *GPT2, "--max-steps", str(last["step"] + 5))
    assert resumed.code == 0, resumed.out + resumed.err
    assert f"resumed at step {last['step']}" in resumed.out + resumed.err
    assert run.state() == "succeeded"
    figure(f"orch stop on Slurm: {stopped.seconds:.0f} s; resumed at step {last['step']}, in {resumed.seconds:.0f} s")


def test_scancel_saves_the_step_that_ran_and_frees_the_nodes(cluster: Orch, figure: Figure) -> None:
    run = launch(cluster, "cancelled", *FOR_EVER)
    run.wait_for_steps()
    time.sleep(random.uniform(0, 2))  # noqa: S311  # the random moment itself
    on("login", "scancel", run.job)
    seconds = until(idle, "free nodes", 30)
    (stopped,) = run.events("stopped")
    assert run.checkpoints()[-1] == stopped["step"], run.report()
    assert run.state() == "stopped"
    figure(f"scancel: checkpoint of step {stopped['step']}, nodes free after {seconds:.1f} s")


def test_a_job_that_is_queued_again_continues_at_the_step(cluster: Orch, figure: Figure) -> None:
    """First at its time limit, then for a job of a partition with a higher priority."""
    run = launch(cluster, "requeued", *FOR_EVER)
    run.wait_for_steps()
    on("login", "scancel", "--batch", "--signal=USR1", run.job)  # as Slurm does before the time limit
    begin = time.monotonic()
    step = resumed_where_it_stopped(run, 1)
    figure(f"time limit: trains again after {time.monotonic() - begin:.0f} s, from step {step}")
    begin = time.monotonic()
    preempt()
    step = resumed_where_it_stopped(run, 2)
    figure(f"preempted: trains again after {time.monotonic() - begin:.0f} s, from step {step}")
    assert run.state() == "running"
    assert cluster("stop", run.id).code == 0
    until(idle, "free nodes", 30)


def test_an_exception_of_the_users_ends_all_nodes_and_has_its_line(cluster: Orch, figure: Figure) -> None:
    folder = cluster.folder / "own"
    folder.mkdir()
    (folder / "train.py").write_text(WRONG)
    run = launch(cluster, "wrong", "python", "train.py", options=("--workdir", str(folder)))
    until(lambda: any("nine is not prime" in line for line in run.lines(1)), "the exception", 60)
    seconds = until(idle, "free nodes", 10)
    assert cluster("wait", run.id).code == 1
    assert run.state() == "failed"
    why = cluster("why", run.id)
    for words in ("beta", "rank 1", "nine is not prime", "train.py:6"):
        assert words in why.out, why.out
    assert run.read("progressed") == ""
    figure(f"an exception on one rank: nodes free after {seconds:.1f} s")


def test_no_container_outlives_its_job(cluster: Orch, figure: Figure) -> None:
    """Nor is a node free before; `python -m benchmarks.slurm` tries the other ends."""
    for name in NODES:
        make_image(name)
    run = launch(cluster, "contained", *FOR_EVER, in_containers=True)
    run.wait_for_steps()
    assert sorted(containers()) == sorted(NODES)
    KILLS["killed docker CLI"](run)
    seconds = until(idle, "free nodes", 40)
    assert not containers()
    assert run.checkpoints(), run.report()
    figure(f"killed docker CLIs: containers gone and nodes free after {seconds:.1f} s")


def test_the_links_and_a_step_are_measured_by_jobs_that_leave_nothing(cluster: Orch, figure: Figure) -> None:
    """In containers, too."""
    for name in NODES:
        make_image(name)
    before = on("login", "ls", f"{PROJECT}/runs", check=False)
    where = ("--on", "lab", "--nodes", str(len(NODES)))
    tested = cluster("test", *where, "--json")
    assert tested.code == 0, tested.err
    verdict = tested.json["verdict"]
    assert sorted(verdict["nodes"]) == sorted(NODES)
    assert all(rate > 0 for row in verdict["mbit_s"] for rate in row if rate is not None)
    measured = by(cluster, IN_CONTAINERS)(
        "bench", *where, "--json", "--data", DATA, *mounts(), "--", "gpt2", *MODEL, "--no-compile", "--no-amp"
    )
    assert measured.code == 0, measured.err
    assert sorted(measured.json["nodes"]) == sorted(NODES)
    assert measured.json["measured"]["unit"] == "tokens"
    until(idle, "free nodes", 10)
    assert not containers()
    assert on("login", "ls", f"{PROJECT}/runs", check=False) == before
    figure(f"orch test on Slurm: {tested.seconds:.0f} s; orch bench in containers: {measured.seconds:.0f} s")


def test_what_slurm_has_forgotten_is_known(whole: Run) -> None:
    until(lambda: not on("login", "squeue", "-h", "-t", "all", "-j", whole.job, check=False), "the job's oblivion", 60)
    assert whole.state() == "succeeded"
    assert "is done, nothing failed" in whole.orch("why", whole.id).out
    assert len(losses(whole.orch, whole.id)) == STEPS
