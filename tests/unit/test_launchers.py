"""A launcher among the words after `--`: taken off with a note, or refused where that would change what runs."""

from __future__ import annotations

import pytest

from orchestrator.plan.launchers import without_launcher
from orchestrator.specs.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("torchrun train.py --lr 1", "python train.py --lr 1"),
        ("torchrun --nproc-per-node 2 --nnodes=3 train.py", "python train.py"),
        ("torchrun --nproc_per_node=2 --rdzv_endpoint a:1 --standalone -m pkg.mod x", "python -m pkg.mod x"),
        ("python3 -m torch.distributed.run train.py", "python train.py"),
        ("python -m torch.distributed.launch --node_rank 1 --master_addr 10.0.0.1 train.py", "python train.py"),
        ("accelerate launch --num_processes 4 --multi_gpu train.py --seed 1", "python train.py --seed 1"),
        ("python3.11 train.py", "python train.py"),
        ("-m pkg.train --lr 1", "python -m pkg.train --lr 1"),
        ("gpt2 --epochs 1", "gpt2 --epochs 1"),
        ("bash run.sh --fast", "bash run.sh --fast"),
        ("bash -eo pipefail run.sh", "bash -eo pipefail run.sh"),
        ("./run.sh --fast", "./run.sh --fast"),
        ("run.sh", "./run.sh"),
        ("sh -ec torchrun", "sh -ec torchrun"),
        ("", ""),
    ],
)
def test_what_each_rank_runs(typed: str, kept: str) -> None:
    assert without_launcher(typed.split())[0] == tuple(kept.split())


def test_what_is_left_out_is_said_with_the_place_to_say_it() -> None:
    _, note = without_launcher(["torchrun", "--nproc-per-node", "2", "--nnodes=3", "--rdzv-id", "7", "train.py"])
    assert note == (
        "note: orch starts torchrun itself, so `torchrun` is left out, --nproc-per-node 2 (nproc_per_node in"
        " inventory.yaml), --nnodes=3 (--nodes of orch), --rdzv-id 7"
    )
    assert without_launcher(["python", "train.py"])[1] == ""


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("torchrun --no-python ./run", "torchrun --no-python: orch starts torchrun itself"),
        ("accelerate launch --mixed_precision bf16 train.py", "accelerate launch --mixed_precision"),
        ("accelerate launch --config_file c.yaml train.py", "accelerate launch --config_file"),
        ("torchrun", "`torchrun` needs a script"),
        ("torchrun --nnodes", "torchrun --nnodes"),
        ("bash", "`bash` needs a script"),
        ("bash -e", "`bash -e` needs a script"),
        ("zsh run.sh", "the image has no zsh"),
    ],
)
def test_what_would_run_something_else_is_refused(typed: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        without_launcher(typed.split())
    assert said in str(refused.value)
    assert "orch launch -- " in refused.value.hint
