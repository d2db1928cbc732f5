"""Kernels of attention are timed on the card, and the fastest is used."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import Call, call, data_dir  # noqa: F401  # fixtures
from trainer.engine.hardware.attention import AttentionCall, AttentionKernels, gpu_ms, trials

CUDA = torch.device("cuda")
SHAPE = (16, 12, 1024, 64)


@pytest.mark.alone
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("masked", [False, True])
def test_kernels_are_timed_in_two_seconds(masked: bool, dropout: float) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("flash attention of torch is for Ampere and newer")
    mask = (16, 1, 1, 1024) if masked else None
    call_ = AttentionCall(
        query=SHAPE, key=SHAPE, value=SHAPE, dtype=torch.bfloat16, causal=not masked, mask=mask, dropout=dropout
    )
    with AttentionKernels() as attention:  # reads the libraries from the disk, which takes as long as that takes
        attention.choose([call_.times(2)], CUDA, trials(same_shapes=True), gpu_ms)
    began = time.perf_counter()
    with AttentionKernels() as attention:
        line = attention.choose([call_], CUDA, trials(same_shapes=True), gpu_ms)
    assert time.perf_counter() - began < 4
    found = {name: float(ms) for name, ms in re.findall(r"(\w+) ([\d.]+) ms", line)}
    assert masked or {"flash", "efficient"} <= set(found)
    if found:
        chosen = re.match(r"attention by (\w+),", line)
        assert chosen
        assert found[chosen[1]] == min(found.values())


def test_a_training_says_what_it_chose(call: Call, data_dir: Path, tmp_path: Path) -> None:  # noqa: F811  # fixtures
    words = ("--layers", "2", "--heads", "2", "--width", "128", "--seq-len", "64", "--max-steps", "2", "--no-compile")
    ran = call("gpt2", *words, "--data-dir", str(data_dir), "--run-dir", str(tmp_path), "--precision", "bf16")
    assert ran.code == 0, ran.err
    assert "attention by " in ran.out
