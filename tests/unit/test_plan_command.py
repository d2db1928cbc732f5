"""What runs in the container: torchrun's words, and what it starts."""

from __future__ import annotations

import pytest

from orchestrator.plan.command import is_own_script, torchrun_command, worker_command
from orchestrator.specs.errors import UsageError


def test_torchrun_words() -> None:
    words = torchrun_command(
        ("gpt2", "--epochs", "1"), nnodes=5, node_rank=3, nproc_per_node=2, master=("10.0.0.1", 12355), run="r-1.2"
    )
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
    assert worker_command(command.split()) == tuple(worker.split())
    assert is_own_script(command.split()) == ("trainer" not in worker)


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
        worker_command(command.split())
    assert caught.value.hint.startswith("orch launch")
