"""End jobs of a Slurm lab at random moments, and count what is lost or left.

    python -m benchmarks.slurm_stops --stops 10 --kills 20

Start a cluster of three nodes, end each job some time after its first step, and remove the cluster. A stop is a plain
`scancel`: it is good if there is a checkpoint of the step that ran, and all nodes are free within 30 s. A kill ends a
job that trains in containers by `scancel`, `scancel --signal=KILL --full`, or a killed docker CLI: it is good if no
container is left 5 s after the nodes are free. The exit code is 1 if one was not good. See ADR 50.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.slurm_jobs import FOR_EVER, KILLS, NODES, Job, a_cluster, containers, idle, make_image, on, submit, until

FREE_S, GONE_S = 30.0, 5.0
MOST_WAIT_S = 3.0
"""A job is ended at a random moment in this time after its first step."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="slurm-stops-") as folder, a_cluster(Path(folder), say):
        for number in range(given.stops):
            bad += not _good(f"stop {number}", stop)
        for name in NODES if given.kills else ():
            make_image(name)
        for number in range(given.kills):
            bad += not _good(f"kill {number}", kill, list(KILLS)[number % len(KILLS)])
    say(f"{given.stops + given.kills - bad} of {given.stops + given.kills} good")
    return int(bad > 0)


def _good(name: str, act: Callable[..., str], *words: str) -> bool:
    try:
        say(f"{name}: {act(name.replace(' ', '-'), *words)}")
    except AssertionError as error:
        say(f"{name}: BAD: {error}")
        until(idle, "free nodes", 120)
        return False
    return True


def stop(run: str) -> str:
    """Stop a job of processes. AssertionError: a step is lost, or a node not free."""
    job, waited_s = _running(run, in_containers=False)
    on("login", "scancel", job.id)
    free_s = until(idle, "free nodes", FREE_S)
    (stopped,) = job.events("stopped")
    if job.steps()[-1:] != [stopped["step"]]:
        raise AssertionError(job.report())
    return f"after {waited_s:.1f} s: checkpoint of step {stopped['step']}, nodes free {free_s:.1f} s later"


def kill(run: str, how: str) -> str:
    """Kill a job of containers. AssertionError: a container is left, or a node not free."""
    job, _ = _running(run, in_containers=True)
    KILLS[how](job)
    free_s = until(idle, "free nodes", FREE_S + 10)
    gone_s = until(lambda: not containers(), "the end of the containers", GONE_S)
    saved = f"checkpoint of step {job.steps()[-1]}" if job.steps() else "no checkpoint"
    return f"{how}: nodes free after {free_s:.1f} s, containers gone {gone_s:.1f} s later, {saved}"


def _running(run: str, *, in_containers: bool) -> tuple[Job, float]:
    job = submit(run, *FOR_EVER, in_containers=in_containers)
    job.wait_for_steps()
    wait_s = random.uniform(0, MOST_WAIT_S)  # noqa: S311  # no secret
    time.sleep(wait_s)
    return job, wait_s


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
