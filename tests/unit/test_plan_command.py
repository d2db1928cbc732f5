"""Command in the container: torchrun's words, and what it starts."""

from __future__ import annotations

import pytest

from orchestrator.plan.command import (
    TorchrunPlace,
    script_environment,
    torchrun_command,
)
from orchestrator.specs.errors import UsageError
from orchestrator.specs.program import Program, ProgramKind
from tests.conftest import NO_TORCH

PLACE = TorchrunPlace(
    nnodes=5, node_rank=3, nproc_per_node=2, world_size=8, master_addr="10.0.0.1", master_port=12355, run="r-1.2"
)


def test_torchrun_words() -> None:
    words = torchrun_command(Program.of(("gpt2", "--epochs", "1")), PLACE)
    assert words == (
        "torchrun", "--nnodes", "5", "--node-rank", "3", "--nproc-per-node", "2",
        "--master-addr", "10.0.0.1", "--master-port", "12355", "--rdzv-id", "r-1.2", "--max-restarts", "0",
        "-m", "trainer", "gpt2", "--epochs", "1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "worker"),
    [
        ("gpt2 --preset tiny", "-m trainer gpt2 --preset tiny"),
        ("test-ddp", "-m trainer test-ddp"),
        ("python train.py --lr 1e-3", "train.py --lr 1e-3"),
        ("python3 train.py", "train.py"),
        ("python -u train.py -u", "train.py -u"),
        ("train.py --lr 1", "train.py --lr 1"),
        ("./sub/train.py", "./sub/train.py"),
        ("python -m pkg.train --lr 1", "-m pkg.train --lr 1"),
    ],
)
def test_worker(command: str, worker: str) -> None:
    program = Program.of(command.split())
    assert program.rank_words() == tuple(worker.split())
    assert program.kind is (ProgramKind.WORKLOAD if "trainer" in worker else ProgramKind.SCRIPT)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python -c print(1)", "not `python -c`"),
        ("python -V", "not `python -V`"),
        ("python", "needs a script"),
        ("python -u", "needs a script"),
        ("python -m", "needs a script"),
        ("", "no command"),
    ],
)
def test_refused(command: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Program.of(command.split()).rank_words()
    assert caught.value.hint.startswith("orch launch")


def test_a_torchrun_in_a_script_decides_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's own parser reads the variables: by the names that its version has."""
    run = pytest.importorskip("torch.distributed.run", reason=NO_TORCH)
    ours = run.parse_args(list(torchrun_command(Program.of(("python", "train.py")), PLACE))[1:])
    for name, value in script_environment(PLACE).items():
        monkeypatch.setenv(name, value)
    assert vars(run.parse_args(["train.py"])) == vars(ours)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("bash run.sh", "run.sh"),
        ("sh -e -- run.sh -c", "run.sh"),
        ("bash --norc -euo pipefail +x sub/run.sh", "sub/run.sh"),
        ("./run.sh -c", "./run.sh"),
        ("bash -c torchrun", ""),
        ("bash -lc torchrun", ""),
    ],
)
def test_the_file_of_a_shell_script(command: str, script: str) -> None:
    program = Program.of(command.split())
    assert program.kind is ProgramKind.SHELL
    assert program.entry()[:1] == ((script,) if script else ())
