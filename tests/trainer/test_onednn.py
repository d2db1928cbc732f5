"""oneDNN's own account of what it computed, as the start line has it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer.engine.hardware.onednn import Proof, built_with, computed_by, prove

ACCOUNT = """\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0,,,2x16x32x32,0.07
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32:a:blocked,0.17
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0,0.03
"""


def test_its_account_is_read() -> None:
    assert computed_by(ACCOUNT) == ("jit:avx2", "brg_matmul:avx512_core_bf16")
    assert computed_by("onednn_verbose,v1,info,oneDNN v3.12.0\n") == ("", "")


def test_what_torch_was_built_with() -> None:
    config = "  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80a)\n  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release"
    assert built_with(config) == ("3.12", "MKL")
    assert built_with("BLAS_INFO=open") == ("", "OPEN")


def test_the_proof_as_the_start_line_has_it() -> None:
    assert str(Proof(version="3.12", convolution="jit:avx2", bf16="", blas="MKL")) == "3.12 jit:avx2"
    idle = Proof(version="3.12", convolution="", bf16="", blas="MKL")
    assert (idle.active, str(idle)) == (False, "")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_here(capfd: pytest.CaptureFixture[str]) -> None:
    chance = torch.get_rng_state()
    prove()
    sys.stdout.write("after\n")
    began = time.process_time()
    proof = prove()
    seconds = time.process_time() - began
    assert proof.active
    assert re.fullmatch(r"\d+\.\d+ \S+:\S+", str(proof))
    assert seconds < 0.05
    assert capfd.readouterr() == ("after\n", "")  # stdout is as before, and nothing of the account is on it
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("isa", ["avx2", "sse41"])
def test_the_instruction_set_is_the_one_in_use(isa: str) -> None:
    """A limit that a user sets shows; and stdout, a pipe here, gets no word of the account."""
    if isa == "avx2" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("no AVX2 here")
    program = "print('first'); from trainer.engine.hardware.onednn import prove; print(prove())"
    ran = subprocess.run(
        (sys.executable, "-c", program),
        env={"ONEDNN_MAX_CPU_ISA": isa.upper(), "OMP_NUM_THREADS": "1", "PATH": ""},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    first, proof = ran.stdout.splitlines()
    assert first == "first"
    assert proof.endswith(f":{isa}")
