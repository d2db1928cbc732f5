"""A launcher among the words after `--`: taken off with a note, or refused where that would change what runs."""

from __future__ import annotations

import pytest

from orchestrator.plan.launchers import without_launcher
from orchestrator.specs.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "saved"),
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
def test_what_each_rank_runs(typed: str, saved: str) -> None:
    assert without_launcher(typed.split()).words == tuple(saved.split())


def test_what_is_left_out_is_reported_with_the_place_to_give_it() -> None:
    found = without_launcher(["torchrun", "--nproc-per-node", "2", "--nnodes=3", "--rdzv-id", "7", "train.py"])
    assert found.note == (
        "note: orch starts torchrun itself, so `torchrun` is left out, --nproc-per-node 2 (nproc_per_node in"
        " inventory.yaml), --nnodes=3 (--nodes of orch), --rdzv-id 7"
    )
    assert found.environment == {}
    assert without_launcher(["python", "train.py"]).note == ""


def test_options_of_accelerate_become_the_variables_that_its_ranks_read() -> None:
    options = "--mixed_precision=bf16 --gradient-accumulation-steps 4 --dynamo_backend inductor --cpu --debug"
    threads = "--num_cpu_threads_per_process 8"
    found = without_launcher(f"accelerate launch {options} {threads} --quiet train.py --debug".split())
    assert found.words == ("python", "train.py", "--debug")
    assert found.environment == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_DEBUG_MODE": "true",
    }
    assert "--num_cpu_threads_per_process 8 (orch divides the cores; otherwise --env OMP_NUM_THREADS=N" in found.note
    assert found.note.endswith("become " + " ".join(f"{key}={value}" for key, value in found.environment.items()))


def test_the_variables_of_accelerate_are_read_by_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = pytest.importorskip("accelerate")
    options = "--mixed_precision bf16 --gradient_accumulation_steps 4 --cpu"
    for name, value in without_launcher(f"accelerate launch {options} t.py".split()).environment.items():
        monkeypatch.setenv(name, value)
    accelerator = accelerate.Accelerator()
    assert (accelerator.mixed_precision, accelerator.gradient_accumulation_steps) == ("bf16", 4)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("torchrun --no-python ./run", "torchrun --no-python: orch starts torchrun itself"),
        ("accelerate launch --mixed_precision fp8 train.py", "--mixed_precision: fp8 is not one of no, fp16, bf16"),
        ("accelerate launch --gradient_accumulation_steps x train.py", "x is not a number from 1"),
        ("accelerate launch --config_file c.yaml train.py", "--config_file: it is not read: write its values as opt"),
        ("accelerate launch --use_deepspeed train.py", "keeps the whole model on every rank; DeepSpeed divides it"),
        ("accelerate launch --zero_stage=3 train.py", "DeepSpeed is not supported"),
        ("accelerate launch --fsdp_version 2 train.py", "keeps the whole model on every rank; FSDP divides it"),
        ("accelerate launch --tpu train.py", "not on TPUs"),
        ("accelerate launch --gpu_ids 0,1 train.py", "set nproc_per_node in inventory.yaml"),
        ("torchrun --mixed_precision bf16 train.py", "does not know what this would change"),
        ("torchrun", "`torchrun` needs a script"),
        ("torchrun --nnodes", "torchrun --nnodes"),
        ("bash", "`bash` needs a script"),
        ("bash -e", "`bash -e` needs a script"),
        ("zsh run.sh", "the image has no zsh"),
    ],
)
def test_what_would_run_something_else_is_refused(typed: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        without_launcher(typed.split())
    assert message in str(refused.value)
    assert "orch launch -- " in refused.value.hint
