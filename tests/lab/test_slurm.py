"""The trainer under a real Slurm: three nodes, a batch script written by hand, and all that ends a job."""

from __future__ import annotations

import json
import random
import re
import time

import pytest

from tests.conftest import Figure
from tests.lab.conftest import Orch
from tests.lab.slurm_jobs import FOR_EVER, KILLS, NODES, containers, idle, make_image, on, submit, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def test_a_job_trains_on_all_nodes_and_leaves_who_took_part(cluster: Orch, figure: Figure) -> None:
    job = submit("whole", "--max-steps", "8", "--checkpoint-every", "4", "--eval-every", "0")
    job.wait_for_steps()
    until(lambda: job.state == "COMPLETED", "the end", 60)
    assert job.steps()[-1] == 8, job.report()
    place = json.loads(job.read("place-0.json"))
    assert (place["names"], place["job"], place["restart"]) == (list(NODES), job.id, 0)
    assert all(re.fullmatch(r"10\.87\.\d+\.\d+", one) for one in place["addresses"]), place
    assert job.read("progressed") == f"{job.id}.0\n"
    for rank, node in enumerate(NODES):
        (finished,) = job.events("finished", rank=rank)
        assert (finished["outcome"], job.events("generation", rank=rank)[0]["node"]) == ("done", node)
        stamps = [line.partition(" ")[0] for line in job.lines(rank)]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", one) for one in stamps), job.lines(rank)
        assert stamps == sorted(stamps)


def test_scancel_saves_the_step_that_ran_and_frees_the_nodes(cluster: Orch, figure: Figure) -> None:
    job = submit("cancelled", *FOR_EVER)
    job.wait_for_steps()
    time.sleep(random.uniform(0, 2))  # noqa: S311  # the random moment itself
    on("login", "scancel", job.id)
    seconds = until(idle, "free nodes", 30)
    (stopped,) = job.events("stopped")
    assert job.steps()[-1] == stopped["step"], job.report()
    assert job.state in ("CANCELLED", "")
    figure(f"scancel: checkpoint of step {stopped['step']}, nodes free after {seconds:.1f} s")


def test_a_job_whose_time_is_over_continues_at_the_very_step(cluster: Orch, figure: Figure) -> None:
    job = submit("requeued", *FOR_EVER)
    job.wait_for_steps()
    on("login", "scancel", "--batch", "--signal=USR1", job.id)  # as Slurm does before the time limit
    seconds = until(lambda: job.events("resumed", life=1) and job.events("step", life=1), "the next life", 120)
    (stopped,) = job.events("stopped")
    assert job.events("resumed", life=1)[0]["step"] == stopped["step"]
    assert job.events("step", life=1)[0]["step"] == stopped["step"] + 1
    assert json.loads(job.read("place-1.json"))["restart"] == 1
    figure(f"requeued: trains again after {seconds:.0f} s, from step {stopped['step']}")
    on("login", "scancel", job.id)
    until(idle, "free nodes", 30)


def test_an_error_of_the_users_is_not_queued_again(cluster: Orch) -> None:
    job = submit("wrong", *FOR_EVER, "--preset", "enormous")
    until(lambda: job.state == "FAILED", "the end", 60)
    assert job.read("progressed") == ""
    until(idle, "free nodes", 30)


def test_no_container_outlives_its_job(cluster: Orch, figure: Figure) -> None:
    """Slurm kills the docker CLI, which passes nothing on to its container; `benchmarks/slurm_stops.py` tries the other
    ends."""
    for name in NODES:
        make_image(name)
    job = submit("contained", *FOR_EVER, in_containers=True)
    job.wait_for_steps()
    assert sorted(containers()) == sorted(NODES)
    KILLS["scancel --signal=KILL --full"](job)
    seconds = until(idle, "free nodes", 40)
    more = until(lambda: not containers(), "the end of the containers", 5)
    figure(f"containers in a killed job: nodes free after {seconds:.1f} s, containers gone {more:.1f} s later")
    assert job.steps(), job.report()
