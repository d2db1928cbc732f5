"""Runs under a real Slurm, by the command line: three jobs on three nodes.

What orch makes of Slurm's answers is tested on a double (tests/unit/test_slurm_*.py), whose answers are those of this
cluster (tests/contract/test_slurm.py).
"""

from __future__ import annotations

import re
import time

import pytest

from tests.conftest import Figure
from tests.lab.conftest import Orch
from tests.lab.slurm_jobs import (
    DATA,
    FOR_EVER,
    GPT2,
    KILLS,
    NODES,
    PROCESSES,
    Run,
    by,
    containers,
    idle,
    launch,
    losses,
    make_image,
    on,
    preempt,
    until,
)

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

STEPS = 100


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
    found = re.search(r"run (\S+) succeeded", done.err)
    assert found, done.err
    on_slurm, on_processes = losses(whole.orch, whole.id), losses(here, found[1])
    assert list(on_slurm) == list(range(1, STEPS + 1))
    assert on_slurm == on_processes
    figure(f"launch of {STEPS} steps on process nodes, command to end: {done.seconds:.0f} s")


def test_a_job_that_is_queued_again_continues_at_the_step(cluster: Orch, figure: Figure) -> None:
    """First at its time limit, then for a job of a partition with a higher priority; at last it is stopped."""
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
    stopped = cluster("stop", run.id)
    assert stopped.code == 0, stopped.err
    (last,) = run.events("stopped", 2)
    assert run.checkpoints()[-1] == last["step"], run.report()
    assert run.state() == "stopped"
    until(idle, "free nodes", 30)
    figure(f"orch stop on Slurm: {stopped.seconds:.0f} s")


def test_no_container_outlives_its_job(cluster: Orch, figure: Figure) -> None:
    """No node is free before; `python -m benchmarks.slurm` tries the other ends."""
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


def test_what_slurm_has_forgotten_is_known(whole: Run) -> None:
    until(lambda: not on("login", "squeue", "-h", "-t", "all", "-j", whole.job, check=False), "the job's oblivion", 60)
    assert whole.state() == "succeeded"
    assert "has succeeded" in whole.orch("why", whole.id).out
    assert len(losses(whole.orch, whole.id)) == STEPS
