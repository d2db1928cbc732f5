"""Switches of speed and precision, seen where they act: in torch's settings, in the forward pass, in the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.observed import KERNELS, seen, state
from trainer.engine.hardware.precision import has_native_bf16

SHORT = {"max_steps": 2, "batch_size": 4, "lr": 0.01}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    flags = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.use_deterministic_algorithms(before[1])
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = flags


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_tf32(tf32: bool, precision: str, observe: Any, tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = not tf32
    assert observe(tmp_path, **SHORT, tf32=tf32).code == 0
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cudnn.allow_tf32 is tf32


@pytest.mark.parametrize("sdpa", ["auto", *KERNELS])
def test_the_kernel_of_attention_is_the_only_one_in_the_forward_pass(sdpa: str, observe: Any, tmp_path: Path) -> None:
    usual = [name for name, enabled in KERNELS.items() if enabled()]
    assert observe(tmp_path, **SHORT, sdpa=sdpa).code == 0
    by_itself = tuple(name for name in usual if name != "cudnn")  # whose shapes vary
    assert {tuple(one["kernels"]) for one in seen(tmp_path)} == {by_itself if sdpa == "auto" else (sdpa,)}
    assert [name for name, enabled in KERNELS.items() if enabled()] == usual


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("fused", "used"), [(None, True), (True, True), (False, False)])
def test_fused(optimizer: str, fused: bool | None, used: bool, observe: Any, tmp_path: Path) -> None:
    run = observe(tmp_path, **SHORT, optimizer=optimizer, fused=fused)
    assert run.code == 0, run.err
    groups = state(tmp_path, 2)["optimizer"]["param_groups"]
    assert {bool(group["fused"]) for group in groups} == {used}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_fused_or_not_is_the_same_step(optimizer: str, observe: Any, tmp_path: Path) -> None:
    for name, fused in (("fused", True), ("plain", False)):
        assert observe(tmp_path / name, **SHORT, optimizer=optimizer, fused=fused).code == 0
    found, expected = (state(tmp_path / name, 2)["model"] for name in ("fused", "plain"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic(deterministic: bool, observe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # which this changes for the whole process
    torch.backends.cudnn.benchmark = True
    assert observe(tmp_path, **SHORT, deterministic=deterministic).code == 0
    assert {one["deterministic"] for one in seen(tmp_path)} == {deterministic}
    assert torch.backends.cudnn.benchmark is not deterministic


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"precision": "fp32"}, None),
        ({"precision": "auto", "amp": False}, None),
        ({"precision": "auto"}, "torch.bfloat16" if has_native_bf16() else None),
    ],
)
def test_precision_of_the_forward_pass(
    options: dict[str, Any], dtype: str | None, observe: Any, tmp_path: Path
) -> None:
    assert observe(tmp_path, **{**SHORT, **options}).code == 0
    assert {one["autocast"] for one in seen(tmp_path)} == {dtype}
    assert all(weight.dtype == torch.float32 for weight in state(tmp_path, 2)["model"].values())
