"""Words of Docker, kubectl, Ansible, Slurm and git: each is answered with a line of orch, and nothing runs."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.cli import COMMANDS, build_app, foreign_table
from tests import lan
from tests.each_case import failures_of
from tests.unit.conftest import THREE, Orch

ANSWERS = {
    # docker and compose
    "ps": ("to list the runs: orch runs", "to see the ranks of one: orch status"),
    "ps -a": ("to list the runs: orch runs", "to see the ranks of one: orch status"),
    "run --rm -it --gpus all -v /d:/d lab/mine:1 python train.py --lr 1": (
        "to start a run: orch launch --mount /d:/d --image lab/mine:1 -- python train.py --lr 1",
    ),
    "docker run myimage python train.py": (
        "to start a run: orch launch --image myimage -- python train.py",
    ),
    "run --name mine -v ./data:/data lab/mine train.py --lr 1": (
        "to start a run: orch launch --name mine --data data --image lab/mine -- python train.py --lr 1",
    ),
    "docker run -w /dir lab/mine:1 python train.py --lr 1": (
        "to start a run: orch launch --image lab/mine:1 -- python /dir/train.py --lr 1",
    ),
    "docker run -w /w -v /home/me/code:/w lab/mine:1 python train.py": (
        "to start a run: orch launch --workdir /home/me/code --image lab/mine:1 -- python train.py",
    ),
    "rename mine Other": (
        "to start a run again under another name: orch runs rerun mine --name other",
        "to name a run when it starts: orch launch --name other -- python train.py",
    ),
    "runs rename mine other": (
        "to start a run again under another name: orch runs rerun mine --name other",
        "to name a run when it starts: orch launch --name other -- python train.py",
    ),
    "resume --from-checkpoint": ("orch resume --checkpoint STEP RUN",),
    "resume --from-checkpoint 200": ("orch resume --checkpoint 200 RUN",),
    "resume mine --from-checkpoint=out/step-000200.pt": ("orch resume --checkpoint 000200 mine",),
    "resume mine --resume_from_checkpoint latest -- python train.py": ("orch resume mine -- python train.py",),
    "docker run lab/mine:1": ("to start a run: orch launch --image lab/mine:1 -- python train.py",),
    "run mine --image=lab/mine:2 -- python x.py": ("to start a run: orch launch --image lab/mine:2 -- python x.py",),
    "run train.py": ("to start a run: orch launch -- python train.py",),
    "start mine": ("to start a run: orch launch -- python train.py", "to resume a run that ended: orch resume mine"),
    "up -d": (
        "to start a run: orch launch -d -- python train.py",
        "for simulated machines to try it on: orch lab up --nodes 5",
    ),
    "compose down": ("to end the run: orch stop",),
    "kill mine": ("to end the run: orch stop mine",),
    "kill -s KILL mine": ("to end the run: orch stop mine",),
    "rm -f mine": ("to end the run: orch stop mine", "to remove the containers of ended runs: orch clean mine"),
    "system prune": ("to remove the containers of ended runs: orch clean",),
    "cp mine:out/model.pt results": (
        "to copy what a run wrote to this computer: orch pull mine out/model.pt --to results",
    ),
    "attach mine": ("to follow the output of a run: orch logs mine -f",),
    "top": ("to watch the nodes and their run: orch monitor",),
    "inspect mine": ("for the cause of a failure, or what a run waits for: orch why mine",),
    "docker logs -f mine": ("orch logs -f mine",),
    "docker stop mine": ("orch stop mine",),
    "docker exec -it mine bash": ("orch exec mine bash",),
    "docker build -t mine:1 .": ("orch build .",),
    "docker-compose up": (
        "to start a run: orch launch -- python train.py",
        "for simulated machines to try it on: orch lab up --nodes 5",
    ),
    "images": ("to build the image and copy it to every node: orch build",),
    "exec -it mine bash": ("orch exec mine bash",),
    "exec --tty mine -- ls -l": ("orch exec mine -- ls -l",),
    # kubectl
    "get pods": ("to list the runs: orch runs",),
    "get nodes": ("to list the machines: orch inventory list",),
    "describe pod mine": ("for the cause of a failure, or what a run waits for: orch why mine",),
    "delete pod mine": ("to end the run: orch stop mine", "to remove the containers of ended runs: orch clean mine"),
    "apply -f lan.yaml": ("to start a run: orch launch -- python train.py",),
    "scale mine --replicas=4": ("to start it on another number of nodes: orch launch --nodes 4 -- python train.py",),
    "rollout restart mine": ("to restart a run from its last checkpoint: orch restart mine",),
    "cordon alpha": ("to leave a node out of a launch: orch launch -n '!alpha' -- python train.py",),
    "port-forward mine": ("to see nodes and runs in a browser: orch dashboard",),
    "launch --replicas 3 -- python train.py": ("orch launch --nodes 3 -- python train.py",),
    "status mine --follow": ("orch status --watch mine",),
    "rollout restart deployment/mine": ("to restart a run from its last checkpoint: orch restart mine",),
    "kubectl logs mine -f": ("orch logs -f mine",),
    # Ansible
    "nodes": ("to list the machines: orch inventory list",),
    "ping": ("to ask every node, and find what would break a run: orch doctor",),
    "ansible all -m ping": ("to run a command on nodes: orch exec -n '*' -- COMMAND",),
    "playbook site.yml": ("to install what a run needs on the nodes: orch setup",),
    "build --limit alpha,beta": ("orch build --nodes alpha,beta",),
    "setup --become": ("orch setup",),
    "launch --check train.py": ("orch launch --dry-run -- train.py",),
    # Slurm
    "sbatch job.sh": ("to start a run: orch launch -- bash job.sh",),
    "srun -N 2 --gres gpu:1 python train.py": ("to start a run: orch launch --nodes 2 -- python train.py",),
    "scontrol show job mine": ("to see the ranks of one: orch status mine",),
    "squeue": ("to list the runs: orch runs",),
    "scancel mine": ("to end the run: orch stop mine",),
    "sinfo": ("to list the machines: orch inventory list",),
    # git
    "log": ("to list the runs: orch runs",),
    "diff one two": ("for what differs between two runs: orch runs diff one two",),
    "clone": ("for your code, which every launch copies as it is: orch launch --workdir . -- python train.py",),
    # torchrun, SkyPilot and others
    "torchrun --nproc-per-node 2 train.py": ("to start a run: orch launch -- python train.py",),
    "accelerate launch train.py": ("to start a run: orch launch -- python train.py",),
    "rerun mine": ("to start a run again: orch runs rerun mine",),
    "train gpt2": ("to start a run: orch launch -- gpt2",),
    "ls": ("to list the runs: orch runs",),
    "ssh alpha": ("to log in to a node: orch shell alpha",),
    "launch -np 4 python train.py": ("orch launch -- python train.py",),
    "launch --nnodes=2 --nproc_per_node=1 --master_addr 10.0.0.1 -- python train.py": (
        "orch launch --nodes 2 -- python train.py",
    ),
    "launch -v /data:/data:ro -- python train.py": ("orch launch --mount /data:/data:ro -- python train.py",),
    "launch -v ./data:/data -- python train.py": ("orch launch --data data -- python train.py",),
    "launch -v set:/data -- python train.py": ("orch launch --data set -- python train.py",),
    "launch --volume=../set:/data python train.py": ("orch launch --data ../set -- python train.py",),
    "launch --mount ./data:/data -- python train.py": ("--data ./data   # sends this computer's folder to every node",),
    "launch --mount type=bind,source=data,target=/data -- python train.py": (
        "--data data   # sends this computer's folder to every node",
    ),
    "launch --mount type=bind,src=/set,dst=/data,readonly -- python train.py": ("--mount /set:/data:ro",),
    "lab stop": ("to end the lab: orch lab down",),
    "checkpoints list": ("to list the checkpoints: orch checkpoints ls",),
    "help kill": ("to end the run: orch stop",),
    # a folder that is mounted and worked in, an image without a tag, a shell for a person, nodes by name
    "docker run --rm -v ./x:/w -v ./d:/d -w /w pytorch/pytorch python train.py": (
        "to start a run: orch launch --data d --workdir ./x --image pytorch/pytorch -- python train.py",
    ),
    "docker run --rm -v /h/x:/w -w /w pytorch/pytorch python train.py": (
        "to start a run: orch launch --workdir /h/x --image pytorch/pytorch -- python train.py",
    ),
    "docker run -it --gpus all pytorch/pytorch bash": ("to log in to a node: orch shell NODE",),
    "srun --pty bash": ("to log in to a node: orch shell NODE",),
    "kubectl describe node alpha": ("to list the machines: orch inventory list",),
    "scontrol show node alpha": ("to list the machines: orch inventory list",),
    "taint nodes alpha key=value": ("to leave a node out of a launch: orch launch -n '!alpha' -- python train.py",),
    "uncordon alpha": ("to use a node again: orch launch -n alpha -- python train.py",),
    "launch -N 2 -n 4 python train.py": ("orch launch --nodes 2 -- python train.py",),
    "launch --dependency afterok:12 -- python train.py": ("orch launch -- python train.py",),
    "salloc -N 2": ("to start a run: orch launch --nodes 2 -- python train.py",),
    "sattach mine": ("to follow the output of a run: orch logs mine -f",),
    "sprio": ("to list the runs: orch runs",),
    "tag mine mine:2": ("to name a run when it starts: orch launch --name mine-2 -- python train.py",),
    "volume ls": (
        "to list the data that runs have read: orch data ls",
        "to bring data to the nodes: orch launch --data DIR -- python train.py",
    ),
    "network ls": ("to find what keeps nodes from each other: orch doctor",),
    "events": ("for the cause of a failure, or what a run waits for: orch why",),
    "expose mine": ("to see nodes and runs in a browser: orch dashboard",),
    "kubectl create secret WANDB_API_KEY": (
        "to set a variable for a run: orch launch --env KEY=VALUE -- python train.py",
        "to give a run a password or a token: orch launch --secret NAME -- python train.py",
    ),
    "ansible-inventory --list": ("to list the machines: orch inventory list",),
    "ansible-galaxy install foo": ("to add packages to the image: orch build --requirements requirements.txt",),
    "pause mine": (
        "to end a run after a checkpoint, and resume it later: orch stop mine", "to resume it: orch resume mine",
    ),
    "mount /data": ("to bring data to the nodes: orch launch --data DIR -- python train.py",),
    "df -h": ("to watch the nodes and their run: orch monitor",),
    "branch": ("for your code, which every launch copies as it is: orch launch --workdir . -- python train.py",),
    "tensorboard --logdir out": ("orch tensorboard",),
    "update": ("to build the image again and copy it to every node: orch build",),
}  # fmt: skip
"""Lines without `orch`, and the lines that answer them."""


def test_each_word_is_answered_with_lines_to_paste_and_runs_nothing(orch: Orch) -> None:
    def check(typed: str) -> None:
        here = lan.lan(*THREE)
        ran = orch(*shlex.split(typed), on=here)
        lines = tuple(line.removeprefix("  → ") for line in ran.err.splitlines() if line.startswith("  → "))
        assert (ran.code, ran.out, lines) == (2, "", ANSWERS[typed])
        assert not here.containers

    assert len(ANSWERS) > 40
    assert failures_of(check, ANSWERS) == []


def test_a_volume_is_answered_with_both_of_ours(orch: Orch) -> None:
    ran = orch("launch", "-v", "/set:/data", "--", "python", "train.py", on=lan.lan(*THREE))
    assert "orch launch has no option -v: --data sends a folder of this computer" in ran.err
    assert "--mount shows one that each node has" in ran.err


def test_each_answer_is_a_line_that_orch_parses() -> None:
    """The table names commands and options that exist."""

    def check(*row: str) -> None:
        words = row[-1].split()
        command = build_app(words[0]).commands[words[0]]
        inner = getattr(command, "commands", {})
        command = inner.get(words[1] if words[1:] else "", command)
        known = {name for one in command.params for name in one.opts}
        assert {word for word in words if word.startswith("-") and word != "--"} <= known

    rows = [tuple(cell.strip() for cell in line.split("|")) for line in foreign_table.COMMANDS.strip().splitlines()]
    assert failures_of(check, rows) == []
    assert [word for row in rows for word in row[0].split() if word in COMMANDS] == []


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("foo", "No such command 'foo'"),
        ("stop --foo", "No such option: --foo"),
        ("lab kill", "Missing argument"),
        ("launch -v --foo", "no option"),
    ],
)
def test_a_word_of_no_tool_is_answered_as_before(orch: Orch, typed: str, words: str) -> None:
    ran = orch(*typed.split(), on=lan.lan(*THREE))
    assert ran.code == 2
    assert words in ran.err.replace("No such option", "no option") or words in ran.err
    assert "→ to" not in ran.err
