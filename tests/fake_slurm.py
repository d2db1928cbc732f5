"""Slurm on one computer: no daemon, no other machine.

`install` makes sbatch, squeue, scancel, srun, scontrol and sacct in a folder for the PATH. Jobs run for real: a batch
script as a process, a step as one process for each "node" of the job, all on this computer. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("sbatch", "squeue", "scancel", "srun", "scontrol", "sacct")
STATE = "FAKE_SLURM"
"""Variable with the folder of the jobs. A file `held` in it keeps new jobs in the queue, its text is the reason; a file
`refused` refuses them, with its text; a file `down` ends every command as if no controller answered; a file `names`
names the nodes: addresses of this computer, for agents that look them up."""
KILL_WAIT_S = 3.0
POLL_S = 0.02


def install(folder: Path) -> Path:
    """Make the commands; return the folder with them. State lies beside it, in `folder/state`."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (folder / "state").mkdir()
    for name in PROGRAMS:
        start = f"#!/bin/sh\nexport {STATE}='{folder / 'state'}'\nexec '{sys.executable}' '{__file__}' {name} \"$@\"\n"
        (programs / name).write_text(start)
        (programs / name).chmod(0o755)
    return programs


class _Jobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holds_lock = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other command read and write in between: a job must not begin while it is cancelled."""
        if self._holds_lock:
            yield
            return
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._holds_lock = True
            try:
                yield
            finally:
                self._holds_lock = False

    def read(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{job}.json").read_text())
        return found

    def write(self, job: str, **changes: Any) -> dict[str, Any]:
        file = self.folder / f"{job}.json"
        with self.locked():
            values = {**(self.read(job) if file.exists() else {}), **changes}
            aside = self.folder / f".{job}.{os.getpid()}"
            aside.write_text(json.dumps(values))
            aside.replace(file)
        return values

    def all(self) -> list[str]:
        return sorted((file.stem for file in self.folder.glob("*.json")), key=int)

    def text(self, name: str) -> str | None:
        file = self.folder / name
        return file.read_text().strip() if file.exists() else None


def main(program: str, argv: list[str]) -> int:
    jobs = _Jobs(Path(os.environ[STATE]))
    if jobs.text("down") is not None and program != "_job":
        sys.stderr.write(f"{program}: error: Unable to contact slurm controller (connect failure)\n")
        return 1
    commands = {
        "sbatch": _sbatch, "squeue": _squeue, "scancel": _scancel, "srun": _srun, "scontrol": _scontrol,
        "sacct": _sacct, "_job": _job,
    }  # fmt: skip
    return commands[program](jobs, argv)


def _sbatch(jobs: _Jobs, argv: list[str]) -> int:
    if (refused := jobs.text("refused")) is not None:
        sys.stderr.write(f"sbatch: error: {refused}\n")
        return 1
    script = Path(argv[-1]).resolve()
    if argv[-1].startswith("--"):  # the script on stdin
        script = jobs.folder / f"script-{os.getpid()}"
        script.write_text(sys.stdin.read())
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script.read_text(), re.MULTILINE))
    if options.get("partition", "debug") != "debug":
        sys.stderr.write(f"sbatch: error: invalid partition specified: {options['partition']}\n")
        sys.stderr.write("sbatch: error: Batch job submission failed: Invalid partition name specified\n")
        return 1
    job = str(len(jobs.all()) + 1)
    names = (jobs.text("names") or "c1,c2,c3,c4").split(",")
    nodes = names[: int(options["nodes"])]
    held = "JobHeldUser" if "hold" in options else jobs.text("held")
    jobs.write(
        job, script=str(script), name=options["job-name"], output=options["output"].replace("%j", job), nodes=nodes,
        cpus=options.get("cpus-per-task", "1"), state="PENDING", reason=held or "None", restart=0, steps=[], batch=0,
    )  # fmt: skip
    if held is None:
        _begin(job)
    sys.stdout.write(f"{job}\n")
    return 0


def _begin(job: str) -> None:
    subprocess.Popen(
        [sys.executable, __file__, "_job", job], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _job(jobs: _Jobs, argv: list[str]) -> int:
    """Run the batch script of a job, again as long as it is queued again."""
    job = argv[0]
    while True:
        values = jobs.read(job)
        own = {
            "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": ",".join(values["nodes"]),
            "SLURM_JOB_NUM_NODES": str(len(values["nodes"])), "SLURM_CPUS_PER_TASK": values["cpus"],
            **({"SLURM_RESTART_COUNT": str(values["restart"])} if values["restart"] else {}),
        }  # fmt: skip
        with jobs.locked(), Path(values["output"]).open("ab") as out:
            if jobs.read(job)["state"] == "CANCELLED":
                return 0
            batch = subprocess.Popen(
                ["bash", values["script"]], env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
            jobs.write(job, state="RUNNING", reason="None", batch=batch.pid, steps=[])
        code = batch.wait()
        with jobs.locked():
            values = jobs.read(job)
            if values["state"] != "PENDING":
                word = values["state"] if values["state"] == "CANCELLED" else "COMPLETED" if code == 0 else "FAILED"
                jobs.write(job, state=word, exit_code=code)
                return 0


def _squeue(jobs: _Jobs, argv: list[str]) -> int:
    form = argv[argv.index("-o") + 1]
    asked = [argv[argv.index("-j") + 1]] if "-j" in argv else jobs.all()
    if not set(asked) <= set(jobs.all()):
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    for job in asked:
        values = jobs.read(job)
        if values["state"] in ("PENDING", "RUNNING"):
            names = ",".join(values["nodes"]) if values["state"] == "RUNNING" else ""
            shown = {"i": job, "T": values["state"], "j": values["name"], "r": values["reason"], "N": names}
            sys.stdout.write("|".join(shown[field[1]] for field in form.split("|")) + "\n")
    return 0


def _scancel(jobs: _Jobs, argv: list[str]) -> int:
    if argv[-1].startswith("--name="):
        named = [job for job in jobs.all() if jobs.read(job)["name"] == argv[-1].removeprefix("--name=")]
        return max((_scancel(jobs, [job]) for job in named), default=0)
    job = argv[-1]
    if job not in jobs.all():
        return 0
    values = jobs.read(job)
    if "--batch" in argv:
        os.kill(values["batch"], signal.SIGUSR1)
        return 0
    if "--signal=TERM" in argv:
        send(values["steps"], signal.SIGTERM)
        return 0
    with jobs.locked():
        values = jobs.read(job)
        if values["state"] in ("PENDING", "RUNNING"):  # what has ended stays what it was
            jobs.write(job, state="CANCELLED")
    if values["state"] != "RUNNING":
        return 0
    send([*values["steps"], values["batch"]], signal.SIGTERM)
    deadline = time.monotonic() + KILL_WAIT_S
    while time.monotonic() < deadline and Path(f"/proc/{values['batch']}").exists():
        time.sleep(POLL_S)
    send([*jobs.read(job)["steps"], values["batch"]], signal.SIGKILL)  # a step may have begun meanwhile
    return 0


def send(groups: list[int], number: signal.Signals) -> None:
    """Send a signal to each of these process groups that exists."""
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def _srun(jobs: _Jobs, argv: list[str]) -> int:
    options = dict[str, str]()
    while argv[0].startswith("--"):
        name, _, value = argv.pop(0).removeprefix("--").partition("=")
        options[name] = value
    job = options.get("jobid") or os.environ["SLURM_JOB_ID"]
    nodes = jobs.read(job)["nodes"]
    if "overlap" in options:
        if jobs.read(job)["state"] != "RUNNING":
            sys.stderr.write(f"srun: error: Unable to confirm allocation for job {job}: Invalid job id specified\n")
            return 1
        if not shutil.which(argv[0]):
            sys.stderr.write(f"slurmstepd-c1: error: execve(): {argv[0]}: No such file or directory\n")
            return 2
        return subprocess.run(argv, env={**os.environ, "SLURMD_NODENAME": options["nodelist"]}, check=False).returncode
    signal.signal(signal.SIGTERM, lambda *_: None)  # what ends a job ends its tasks: srun waits for them
    tasks = []
    for rank, name in enumerate(nodes):
        own = {"SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank), "SLURMD_NODENAME": name}
        with Path(options["output"].replace("%n", str(rank))).open("ab") as out:
            tasks.append(subprocess.Popen(
                argv, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            ))  # fmt: skip
    jobs.write(job, steps=[task.pid for task in tasks])
    return max(code if code >= 0 else 128 - code for code in (task.wait() for task in tasks))


def _scontrol(jobs: _Jobs, argv: list[str]) -> int:
    job = argv[-1]
    values = jobs.read(job)
    if argv[0] == "requeue":
        jobs.write(job, state="PENDING", reason="BeginTime", restart=values["restart"] + 1)
        send([values["batch"]], signal.SIGKILL)
    else:
        sys.stdout.write(
            f"JobId={job} JobName={values['name']}\n   Requeue=1 Restarts={values['restart']} BatchFlag=1\n"
        )
    return 0


def _sacct(_jobs: _Jobs, _argv: list[str]) -> int:
    sys.stderr.write("Slurm accounting storage is disabled\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
