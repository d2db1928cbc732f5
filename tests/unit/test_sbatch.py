"""The batch script of a run: the same text for every run but for its `#SBATCH` lines and one quoted line of words."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fleet.planning.cluster import ADDRESS, cluster_request
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.sbatch import VARIABLES, batch_script
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import is_sensitive
from tests import lan

PRINT_WORDS = "printf '%s\\0' \"$@\"\nexit\n"
"""Script in place of the constant part."""
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)
NASTY = st.sampled_from(
    ["$(touch pwned)", "`id`", "'", '"', "\\", "\n#SBATCH --wrap=x", ";", "&", "-x", "$HOME", "*", "!", "a\tb"]
)


def cluster(**keys: Any) -> ClusterSpec:
    return ClusterSpec.model_validate(
        {"name": "uni", "login": "local", "workspace": "/scratch/orch", "cpus": 2, **keys}
    )


def planned(on: ClusterSpec, *, nodes: int = 3, **options: Any) -> Plan:
    given = {"command": ("gpt2", "--preset", "tiny"), **options}
    asked = LaunchOptions(nodes=str(nodes), on="uni", given=frozenset({"nodes", "on", *given}), **given)
    request = cluster_request(Inventory(clusters=(on,)), on, asked, None, {}, print)
    facts = NodeFacts(name="uni", address=ADDRESS, uid=1000, gid=1000, home="/home/ana", cpus=2, assumed=True)
    own = {node.name: replace(facts, name=node.name) for node in request.nodes}
    return plan_launch(replace(request, master_port=23456), own, lan.IDENTITY)


def split(script: str) -> tuple[list[str], list[str], str]:
    """The `#SBATCH` lines, the words as bash reads them, and the constant rest."""
    head, mark, rest = script.partition("\nset -- ")
    assert mark
    body = rest[rest.rindex("\nrun=$1\n") :]
    line = rest[: -len(body)]
    ran = subprocess.run(["bash", "-c", f"set -- {line}\n{PRINT_WORDS}"], capture_output=True, check=True)
    return head.splitlines(), ran.stdout.decode().split("\0")[:-1], body


def test_a_run_of_processes() -> None:
    head, words, body = split(batch_script(planned(cluster(partition="gpu", time="08:00:00", memory="2g")), cluster(
        partition="gpu", time="08:00:00", memory="2g", options={"qos": "normal"}
    )))  # fmt: skip
    run = f"/scratch/orch/orch/runs/{lan.IDENTITY.run_id}"
    assert head == [
        "#!/bin/bash", f"#SBATCH --job-name=orch:{lan.IDENTITY.run_id}", "#SBATCH --partition=gpu",
        "#SBATCH --time=08:00:00", "#SBATCH --nodes=3", "#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=2",
        "#SBATCH --mem=2048M", f"#SBATCH --output={run}/logs/batch.%j.log", "#SBATCH --open-mode=append",
        "#SBATCH --requeue", "#SBATCH --signal=B:USR1@90", "#SBATCH --qos=normal",
    ]  # fmt: skip
    assert words[:4] == [run, "env", "-C", "/scratch/orch/orch"]
    assert words[words.index("--place") :][:2] == ["--place", "slurm"]
    assert words[words.index("--port") + 1] == "23456"
    assert words[words.index("torchrun") :] == [
        "torchrun", "--nnodes", "3", "--nproc-per-node", "1", "--rdzv-id", lan.IDENTITY.run_id, "--max-restarts", "0",
        "-m", "trainer", "gpt2", "--preset", "tiny",
    ]  # fmt: skip
    assert not [word for word in words if word.startswith(("MASTER_ADDR=", "NODE_RANK=", "ORCH_ATTEMPT=", "HOME="))]
    assert ADDRESS not in " ".join(words)
    assert "$((" not in body


def test_the_rest_is_the_same_for_every_run() -> None:
    docker = cluster(container="docker", image="lab/mine:1")
    bodies = {
        split(batch_script(planned(on, **options), on))[2]
        for on, options in (
            (cluster(), {}),
            (cluster(), {"environment": {"A": "b"}, "command": ("gpt2", "--epochs", "2")}),
            (docker, {}),
            (cluster(container="pyxis", image="lab/mine:1", gpus=2), {}),
        )
    }
    assert len(bodies) == 1
    checked = subprocess.run(["bash", "-n"], input=bodies.pop(), text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@settings(max_examples=60, deadline=None)
@given(word=TEXT | NASTY, value=TEXT | NASTY)
def test_bash_reads_every_word_as_it_was_given(word: str, value: str) -> None:
    """bash is the oracle: whatever a word or a value holds, the task gets it verbatim, or it is refused."""
    plan = planned(cluster(), command=("gpt2", "--prompt", word), environment={"MINE": value})
    if is_sensitive("MINE", value):
        with pytest.raises(ConfigError, match="cannot be a job"):
            batch_script(plan, cluster())
        return
    head, words, _ = split(batch_script(plan, cluster()))
    assert words[-1] == word
    assert f"MINE={value}" in words
    assert not [line for line in head if "wrap" in line]
    assert not Path("pwned").exists()


def test_a_secret_is_no_part_of_a_script() -> None:
    with pytest.raises(ConfigError) as refused:
        batch_script(planned(cluster(), environment={"HF_TOKEN": "hf_secret"}), cluster())
    assert "--secret HF_TOKEN" in refused.value.problems[0]
    assert "hf_secret" not in str(refused.value.problems)


def test_a_variable_that_the_agent_sets_is_refused() -> None:
    given = {"NODE_RANK": "1", "MINE": "kept", "GLOO_SOCKET_IFNAME": "ib0"}
    with pytest.raises(ConfigError) as refused:
        batch_script(planned(cluster(), environment=given), cluster())
    assert refused.value.problems == (
        "--env NODE_RANK: the agent in the job sets it; leave it out",
        "--env GLOO_SOCKET_IFNAME: the agent in the job sets it; set `interface:` of cluster uni instead",
    )


def test_a_time_limit_without_time_to_train() -> None:
    with pytest.raises(ConfigError) as refused:
        batch_script(planned(cluster()), cluster(time="2"))
    assert "at least 180 s" in refused.value.problems[0]


def test_containers_need_an_image() -> None:
    on = cluster(container="pyxis", image="lab/mine:1")
    plan = planned(on)
    bare = replace(plan, nodes=tuple(replace(part, container=replace(part.container, image="")) for part in plan.nodes))
    with pytest.raises(ConfigError, match="cannot be a job"):
        batch_script(bare, on)


def test_docker_in_a_job_ends_with_its_program() -> None:
    on = cluster(container="docker", image="lab/mine:1", gpus=2)
    _, words, _ = split(batch_script(planned(on), on))
    task = "/scratch/orch/.orch-task-docker"  # no container sees this folder
    assert words[1:5] == [f"--task-epilog={task}", "bash", task, "--cards-of-step"]
    assert "--name" not in words  # two jobs may share a machine
    assert "--detach" not in words
    assert "--rm" in words
    assert "--restart" not in words
    assert "--end-with-stdin" in words
    assert [
        words[place + 1] for place, word in enumerate(words) if word == "--env" and "=" not in words[place + 1]
    ] == [*VARIABLES]
    assert "--gpus" not in words  # a number on the machine, which Slurm gives to the step
    assert words[words.index("--log-driver") + 1] == "none"


def test_pyxis_by_options_of_srun() -> None:
    on = cluster(container="pyxis", image="lab/mine:1")
    plan = planned(on)
    head, words, _ = split(batch_script(plan, on))
    folder = plan.nodes[0].folder
    agent = f"{folder}/agent/{plan.agent_digest}:/opt/orch:ro"
    assert words[1:6] == [
        "--container-image=lab/mine:1", f"--container-mounts={folder}:/workspace,{agent}",
        "--container-workdir=/workspace", "--no-container-mount-home", "env",
    ]  # fmt: skip
    assert "#SBATCH --gpus-per-node" not in "".join(head)


def test_secrets_lie_in_the_runs_folder(tmp_path: Path) -> None:
    from orchestrator.specs.secret import Secret

    plan = planned(cluster(), secrets=(Secret(name="HF_TOKEN"),))
    _, words, body = split(batch_script(plan, cluster()))
    assert f"HF_TOKEN_FILE=/scratch/orch/orch/runs/{plan.run_id}/secrets/HF_TOKEN" in words
    assert 'rm -rf -- "$run/secrets"' in body


class Batch:
    """The script of a job with programs in the place of Slurm's; it has asked for its time limit's signal, USR1."""

    def __init__(self, folder: Path, on: Mapping[str, Any] = MappingProxyType({}), **programs: str) -> None:
        """`on`: keys of the cluster."""
        spec = cluster(workspace=str(folder), **on)
        self.folder, self.run = folder, folder / "orch" / "runs" / lan.IDENTITY.run_id
        (self.run / "logs").mkdir(parents=True)
        (self.run / "secrets").mkdir()
        (folder / "bin").mkdir()
        for name, text in programs.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "-c", batch_script(planned(spec), spec)], cwd=folder, start_new_session=True,
            env={**os.environ, "PATH": path, "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1"},
        )  # fmt: skip

    def wait_for(self, name: str) -> str:
        """Wait for a file with a line, and return it."""
        deadline = time.monotonic() + 20
        file = self.folder / name
        while not (file.exists() and file.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return file.read_text().strip()

    def ends_at_its_time_limit(self) -> int:
        self.wait_for("begun")
        self.process.send_signal(signal.SIGUSR1)
        return self.process.wait(20)


STEP = "echo yes >begun; while [ ! -e asked ]; do sleep 0.02; done; exit 143"


def test_a_step_that_ends_while_the_script_still_asks_it_to(tmp_path: Path) -> None:
    batch = Batch(tmp_path, srun=STEP, scancel="touch asked; sleep 1")
    assert batch.ends_at_its_time_limit() == 143
    assert (batch.run / "ended.7.0").read_text() == "143\n"
    assert not (batch.run / "secrets").exists()


def test_a_job_that_is_queued_again_keeps_its_secrets(tmp_path: Path) -> None:
    """Slurm ends all processes of a script that it queues again, first by SIGTERM."""
    requeue = "(sleep 0.5; kill -TERM 0) >/dev/null 2>&1 &"
    batch = Batch(tmp_path, srun=STEP, scancel="touch asked", scontrol=requeue)
    (batch.run / "progressed").write_text("7.0\n")
    assert batch.ends_at_its_time_limit() == 143
    assert (batch.run / "secrets").exists()


@pytest.mark.parametrize(("restarts", "saved"), [("0", False), ("1", True)])
def test_a_job_that_slurm_itself_queues_again_keeps_its_secrets(tmp_path: Path, restarts: str, saved: bool) -> None:
    """Slurm does so for a job of a higher priority, or after a lost node: the script was not asked to."""
    shown = f"echo '   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0'"
    batch = Batch(tmp_path, srun="exit 143", scontrol=shown)
    assert batch.process.wait(20) == 143
    assert (batch.run / "secrets").exists() is saved


@pytest.mark.parametrize(("left", "code"), [("7.0 0", 0), ("7.0 143", 143), ("6.0 0", 1), ("", 1)])
def test_a_step_that_ended_well_needs_the_word_of_its_agent(tmp_path: Path, left: str, code: int) -> None:
    (tmp_path / "of-rank-0").write_text(f"{left}\n" if left else "")
    batch = Batch(tmp_path, srun=f"cp of-rank-0 orch/runs/{lan.IDENTITY.run_id}/left", scontrol="exit 1")
    assert batch.process.wait(20) == code
    assert (batch.run / "ended.7.0").read_text() == f"{code}\n"


SRUN = """
echo $$ >srun
while :; do case $1 in --task-epilog=*) epilog=${1#*=};; --*) ;; *) break;; esac; shift; done
"$@"
code=$?
echo task >>ends
"$epilog"
echo epilog >>ends
exit $code
"""
DOCKER = """
case $1 in
run)
  mkfifo input
  setsid sh -c 'echo yes >running; cat; sleep 0.5; echo container >>ends; rm running' <input >/dev/null 2>&1 &
  echo "$PPID" >task
  exec 4>input
  echo $$ >client
  exec cat >&4 ;;
container) [ -e running ] && echo true ;;
esac
"""
"""A container with the input of its client; it takes half a second to end after that, and nothing of Docker is asked to
end it."""


@pytest.mark.parametrize(
    ("killed", "ends"),
    [
        (["client"], ["container", "task", "epilog"]),
        (["task", "client"], ["task", "container", "epilog"]),
        (["srun"], ["container"]),  # it stands for Slurm's process of the task, too: none is left to wait
    ],
)
def test_a_task_lives_as_long_as_its_container(tmp_path: Path, killed: list[str], ends: list[str]) -> None:
    batch = Batch(tmp_path, {"container": "docker", "image": "lab/mine:1"}, srun=SRUN, docker=DOCKER)
    batch.wait_for("client")
    batch.wait_for("running")
    for name in killed:
        os.kill(int(batch.wait_for(name)), signal.SIGKILL)
    assert batch.process.wait(20) == 137
    deadline = time.monotonic() + 20
    while (tmp_path / "running").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "ends").read_text().split() == ends
    assert oct((tmp_path / ".orch-task-docker").stat().st_mode & 0o777) == "0o700"


TELL_WORDS = 'case $1 in run) printf "%s\\n" "$@" >words;; esac'


@pytest.mark.parametrize(
    ("program", "cards", "words"),
    [
        ("docker", "2,3", ["--gpus", '"device=2,3"', "--interactive"]),
        ("docker", "0", ["--gpus", '"device=0"', "--interactive"]),
        ("podman", "2,3", ["--device", "nvidia.com/gpu=3", "--device", "nvidia.com/gpu=2", "--interactive"]),
    ],
)
def test_a_container_gets_the_cards_of_its_step(tmp_path: Path, program: str, cards: str, words: list[str]) -> None:
    on = {"container": program, "image": "lab/mine:1", "gpus": 2}
    batch = Batch(tmp_path, on, srun=f"export SLURM_STEP_GPUS={cards}\n{SRUN}", **{program: TELL_WORDS})
    batch.process.wait(20)
    assert (tmp_path / "words").read_text().splitlines()[:3] == ["run", "--name", "orch-7.0"]
    assert (tmp_path / "words").read_text().splitlines()[3 : 3 + len(words)] == words


def test_without_cards_a_script_has_its_own_words(tmp_path: Path) -> None:
    batch = Batch(tmp_path, {"container": "docker", "image": "lab/mine:1"}, srun=SRUN, docker=TELL_WORDS)
    batch.process.wait(20)
    words = (tmp_path / "words").read_text().splitlines()
    assert (words[3], "--gpus" in words, "--device" in words) == ("--interactive", False, False)


@pytest.mark.parametrize("cards", ["", "all", "0;1", "GPU-1"])
def test_a_step_without_cards_starts_no_container(tmp_path: Path, cards: str) -> None:
    """All cards of the machine would be those of others, too."""
    on = {"container": "docker", "image": "lab/mine:1", "gpus": 1}
    step = f"export SLURM_STEP_GPUS='{cards}'\nexec 2>problem\n{SRUN}"
    batch = Batch(tmp_path, on, srun=step, docker=TELL_WORDS)
    assert batch.process.wait(20) == 1
    assert not (tmp_path / "words").exists()
    assert f"Slurm names no cards for this step (SLURM_STEP_GPUS: '{cards}')" in (tmp_path / "problem").read_text()
