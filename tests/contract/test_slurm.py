"""Slurm's commands as orch uses them, on a real cluster and on the double of the unit tests: the same answers."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests import fake_slurm

pytestmark = pytest.mark.timeout(600)

TASK = """\
trap 'echo task TERM; exit 143' TERM
echo "$SLURM_NODEID $SLURMD_NODENAME $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES ${SLURM_RESTART_COUNT:-0} started"
while [ ! -e "$1/end" ]; do sleep 0.1; done
exit "$(cat "$1/end.$SLURM_NODEID" 2>/dev/null || echo 0)"
"""
BATCH = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output={folder}/batch.log
#SBATCH --open-mode=append
#SBATCH --requeue
{more}
trap 'echo batch USR1' USR1
trap 'echo batch TERM' TERM
life=$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}
echo "begin $life"
srun --kill-on-bad-exit=0 --wait=0 --output={folder}/%n.log --open-mode=append bash {folder}/task {folder} &
step=$!
while wait "$step"; code=$?; kill -0 "$step" 2>/dev/null; do :; done
wait "$step" 2>/dev/null; again=$?
case $again in 127 | -*) ;; *) code=$again ;; esac
echo "end $life $code"
if [ -e {folder}/requeue ] && [ -z "$SLURM_RESTART_COUNT" ]; then
  (trap '' TERM; exec scontrol requeue "$SLURM_JOB_ID") && sleep 600
fi
exit "$code"
"""
"""Ends a job as the script of a run does (plan/sbatch.py)."""


@dataclass
class Job:
    """A job of two nodes, each with a task that ends by the file `end`."""

    scheduler: Scheduler
    folder: str
    name: str
    id: str = ""

    def read(self, name: str) -> str:
        return self.scheduler.sh(f"cat {self.folder}/{name} 2>/dev/null || true").stdout

    def write(self, name: str, text: str = "") -> None:
        self.scheduler.sh(f"cat > {self.folder}/{name}", text)

    def noted(self) -> list[str]:
        """Lines of the batch script, among those of Slurm."""
        return [line for line in self.read("batch.log").splitlines() if line.startswith(("begin", "batch", "end"))]

    def queue(self, form: str = "%i|%T|%j|%r") -> list[str]:
        """Lines of squeue about it, among those of all jobs of the user."""
        lines = self.scheduler.sh(f"squeue -h -u $(id -un) -o '{form}'").stdout.splitlines()
        return [line for line in lines if line.split("|")[0] == self.id]

    def is_gone(self) -> bool:
        return not self.queue()

    def begin(self, more: str = "", *, by_stdin: bool = False) -> Job:
        answer = self.submit(more, by_stdin=by_stdin)
        assert re.fullmatch(r"\d+\n", answer.stdout), answer
        self.id = answer.stdout.strip()
        return self

    def submit(self, more: str, *, by_stdin: bool = False) -> subprocess.CompletedProcess[str]:
        self.write("task", TASK)
        script = BATCH.format(name=self.name, folder=self.folder, more=more)
        self.write("job", script)
        return self.scheduler.sh(f"sbatch --parsable{'' if by_stdin else f' {self.folder}/job'}", script)

    def until_it_runs(self, life: int = 0) -> None:
        until(lambda: all(f" {life} started" in self.read(f"{rank}.log") for rank in (0, 1)), "its tasks")

    def end(self) -> None:
        self.write("end")
        until(self.is_gone, "its end")


@dataclass
class Scheduler:
    """Commands on a login node."""

    shell: tuple[str, ...]
    root: str
    environment: dict[str, str]
    number: Iterator[int]

    def sh(self, command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        words = (*self.shell, "sh", "-c", command)
        return subprocess.run(
            words, input=stdin, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def job(self) -> Job:
        name = f"contract-{next(self.number)}"
        folder = f"{self.root}/{name}"
        assert self.sh(f"mkdir -p {folder}").returncode == 0
        return Job(self, folder, name)


def until(true: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


@pytest.fixture(scope="module", params=["double", pytest.param("real", marks=pytest.mark.lab)])
def scheduler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    if request.param == "real":
        request.getfixturevalue("cluster")
        from tests.lab.slurm_jobs import CLUSTER, PROJECT

        words = ("docker", "exec", "--interactive", "--user", "orch", f"orch-{CLUSTER}-login")
        yield Scheduler(words, f"{PROJECT}/contract", dict(os.environ), itertools.count(1))
        return
    folder = tmp_path_factory.mktemp("slurm")
    programs = fake_slurm.install(folder / "slurm")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    yield Scheduler((), str(folder / "shared"), environment, itertools.count(1))


@pytest.fixture
def job(scheduler: Scheduler) -> Iterator[Job]:
    made = scheduler.job()
    yield made
    if made.id:
        scheduler.sh(f"scancel {made.id}")
        until(made.is_gone, "its end")


def test_a_job_runs_a_task_on_each_of_its_nodes_and_leaves_the_queue(job: Job) -> None:
    job.begin().until_it_runs()
    assert job.queue() == [f"{job.id}|RUNNING|{job.name}|None"]
    first, second = (job.read(f"{rank}.log").split() for rank in (0, 1))
    assert (first[0], second[0]) == ("0", "1")
    assert first[2] == second[2] == f"{first[1]},{second[1]}"
    assert first[3:] == second[3:] == ["2", "0", "started"]
    assert job.scheduler.sh(f"squeue -h -j {job.id} -o %i").stdout.split() == [job.id]
    assert job.scheduler.sh(f"squeue -h -j {job.id} -o '%T|%r|%N'").stdout.strip() == f"RUNNING|None|{first[2]}"
    job.end()
    assert job.noted() == [f"begin {job.id}.0", f"end {job.id}.0 0"]
    assert " Restarts=0 " in job.scheduler.sh(f"scontrol show job {job.id}").stdout


def test_the_code_of_a_step_is_the_highest_of_its_tasks(job: Job) -> None:
    """A task that fails ends no other one."""
    job.write("end.1", "7")
    job.begin().end()
    assert job.noted()[-1] == f"end {job.id}.0 7"


def test_a_signal_by_scancel_reaches_the_tasks_alone(job: Job) -> None:
    job.begin().until_it_runs()
    assert job.scheduler.sh(f"scancel --signal=TERM {job.id}").returncode == 0
    until(job.is_gone, "its end")
    assert [job.read(f"{rank}.log").splitlines()[-1] for rank in (0, 1)] == ["task TERM"] * 2
    assert job.noted() == [f"begin {job.id}.0", f"end {job.id}.0 143"]


def test_a_signal_for_the_batch_script_reaches_it_alone(job: Job) -> None:
    """Slurm sends it so before the time limit, by --signal=B:USR1@90."""
    job.begin().until_it_runs()
    assert job.scheduler.sh(f"scancel --batch --signal=USR1 {job.id}").returncode == 0
    until(lambda: "batch USR1" in job.read("batch.log"), "the signal")
    job.end()
    assert job.noted() == [f"begin {job.id}.0", "batch USR1", f"end {job.id}.0 0"]
    assert "TERM" not in job.read("0.log")


def test_scancel_asks_tasks_and_batch_script(job: Job) -> None:
    job.begin().until_it_runs()
    assert job.scheduler.sh(f"scancel {job.id}").returncode == 0
    until(job.is_gone, "its end")
    assert [job.read(f"{rank}.log").splitlines()[-1] for rank in (0, 1)] == ["task TERM"] * 2
    assert "batch TERM" in job.noted()
    assert job.scheduler.sh(f"scancel {job.id}").returncode == 0  # it has ended


def test_a_job_that_is_queued_again_keeps_its_number_and_counts(job: Job) -> None:
    job.write("requeue")
    job.begin().until_it_runs()
    assert job.scheduler.sh(f"scancel --signal=TERM {job.id}").returncode == 0
    job.until_it_runs(life=1)
    assert job.queue() == [f"{job.id}|RUNNING|{job.name}|None"]
    assert " Restarts=1 " in job.scheduler.sh(f"scontrol show job {job.id}").stdout
    job.end()
    lives = [line for line in job.noted() if not line.startswith("batch")]  # Slurm asks it before, the double does not
    assert lives == [f"begin {job.id}.0", f"end {job.id}.0 143", f"begin {job.id}.1", f"end {job.id}.1 0"]


def test_a_job_that_waits_has_a_reason_and_is_withdrawn_by_its_name(job: Job) -> None:
    job.begin("#SBATCH --hold")
    until(lambda: job.queue("%i|%T|%r") == [f"{job.id}|PENDING|JobHeldUser"], "its reason")
    assert job.scheduler.sh(f"squeue -h -j {job.id} -o '%T|%r|%N'").stdout.strip() == "PENDING|JobHeldUser|"
    assert job.scheduler.sh(f'scancel --user="$(id -un)" --name={job.name}').returncode == 0
    until(job.is_gone, "its end")
    assert job.read("batch.log") == ""


def test_a_script_may_come_on_stdin(job: Job) -> None:
    job.begin(by_stdin=True).end()
    assert job.noted()[-1] == f"end {job.id}.0 0"


def test_a_command_runs_beside_the_tasks_while_there_are_any(job: Job) -> None:
    job.begin().until_it_runs()
    node = job.read("1.log").split()[1]
    beside = f"srun --overlap --jobid={job.id} --nodes=1 --ntasks=1 --mem=0 --quiet --nodelist={node} "
    asked = job.scheduler.sh(beside + shlex.join(("sh", "-c", 'echo "$SLURMD_NODENAME"; exit 5')))
    assert (asked.returncode, asked.stdout) == (5, f"{node}\n")
    absent = job.scheduler.sh(beside + "no-such-program")
    assert (absent.returncode, "execve(): no-such-program: No such file or directory" in absent.stderr) == (2, True)
    job.end()
    late = job.scheduler.sh(beside + "true")
    assert late.returncode == 1
    assert re.match(r"srun: error: .*(Invalid job id|has expired)", late.stderr)  # forgotten, or not yet


def test_what_there_is_not(scheduler: Scheduler, job: Job) -> None:
    unknown = scheduler.sh("squeue -h -j 99999 -o %i")
    assert (unknown.returncode, "Invalid job id specified" in unknown.stderr) == (1, True)
    assert scheduler.sh("scancel 99999").returncode == 0
    refused = job.submit("#SBATCH --partition=nope")
    assert (refused.returncode, "invalid partition specified: nope" in refused.stderr) == (1, True)
    accounting = scheduler.sh("sacct -P -n -D -X -o JobIDRaw,State,ExitCode -j 1")
    assert (accounting.returncode, "accounting storage is disabled" in accounting.stderr) == (1, True)
