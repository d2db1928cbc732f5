"""Operations of a training, and its share of a GPU's peak rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.conftest import Call
from trainer.engine.hardware import device
from trainer.engine.hardware.peaks import peak_flops
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape

GPT2_SMALL = Gpt2Shape(layers=12, heads=12, width=768, seq_len=1024, vocab_size=50257)


def test_operations_of_gpt2_are_those_of_the_paper() -> None:
    assert GPT2_SMALL.flops_per_token == pytest.approx(0.854e9, rel=1e-3)


def test_operations_of_gpt2_are_those_that_torch_counts() -> None:
    shape = replace(GPT2_SMALL, layers=2, heads=2, width=64, seq_len=64, vocab_size=640)
    model, tokens = GPT2(shape, 0.0, Computation(loss_chunk=0)), torch.zeros(2, 64, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    assert counter.get_total_flops() / tokens.numel() == pytest.approx(shape.flops_per_token, rel=0.01)


@dataclass(frozen=True)
class Card:
    """A card as `torch.cuda.get_device_properties` describes it."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    clock_rate: int


def card(name: str, capability: float, processors: int, mhz: int) -> Card:
    major, minor = divmod(round(10 * capability), 10)
    return Card(name, major, minor, processors, mhz * 1000)


H100 = card("NVIDIA H100 80GB HBM3", 9.0, 132, 1980)
A100 = card("NVIDIA A100-SXM4-40GB", 8.0, 108, 1410)
T4 = card("Tesla T4", 7.5, 40, 1590)
# float16 in Tensor Cores, summed in float32, without sparsity, in TFLOP/s: data sheets and whitepapers of NVIDIA.
SHEETS = [
    (card("Tesla V100-SXM2-16GB", 7.0, 80, 1530), 125),
    (card("Tesla V100-PCIE-16GB", 7.0, 80, 1380), 112),
    (T4, 65),
    (card("NVIDIA GeForce RTX 2060", 7.5, 30, 1680), 25.8),
    (card("NVIDIA GeForce RTX 2080 Ti", 7.5, 68, 1545), 53.8),
    (card("Quadro RTX 6000", 7.5, 72, 1770), 130.5),
    (A100, 312),
    (card("NVIDIA A30", 8.0, 56, 1440), 165),
    (card("NVIDIA GeForce RTX 3080", 8.6, 68, 1710), 59.5),
    (card("NVIDIA GeForce RTX 3090", 8.6, 82, 1695), 71),
    (card("NVIDIA RTX A4000", 8.6, 48, 1560), 76.7),
    (card("NVIDIA RTX A6000", 8.6, 84, 1800), 154.8),
    (card("NVIDIA A2", 8.6, 10, 1770), 18),
    (card("NVIDIA A10", 8.6, 72, 1695), 125),
    (card("NVIDIA A40", 8.6, 84, 1740), 149.7),
    (card("NVIDIA L4", 8.9, 58, 2040), 121),
    (card("NVIDIA L40", 8.9, 142, 2490), 181),
    (card("NVIDIA L40S", 8.9, 142, 2520), 362),
    (card("NVIDIA GeForce RTX 4080", 8.9, 76, 2505), 97.5),
    (card("NVIDIA GeForce RTX 4090", 8.9, 128, 2520), 165.2),
    (card("NVIDIA RTX 6000 Ada Generation", 8.9, 142, 2505), 364.2),
    (H100, 989),
    (card("NVIDIA H100 PCIe", 9.0, 114, 1755), 756),
    (card("NVIDIA H100 NVL", 9.0, 132, 1785), 835),
    (card("NVIDIA H200", 9.0, 132, 1980), 989),
    (card("NVIDIA H200 NVL", 9.0, 132, 1785), 835),
    (card("NVIDIA B200", 10.0, 148, 1965), 2250),
    (card("NVIDIA GeForce RTX 5080", 12.0, 84, 2617), 112.6),
    (card("NVIDIA GeForce RTX 5090", 12.0, 170, 2407), 209.5),
    (card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 12.0, 188, 2617), 503.8),
]


@pytest.mark.parametrize(("of", "tflops"), SHEETS, ids=[of.name for of, _ in SHEETS])
def test_peak_rate_is_that_of_the_data_sheet(of: Card, tflops: float) -> None:
    assert peak_flops(of, torch.float16, tf32=True) == pytest.approx(tflops * 1e12, rel=0.03)
    if of.major >= 8:
        assert peak_flops(of, torch.bfloat16, tf32=True) == pytest.approx(tflops * 1e12, rel=0.03)
        assert peak_flops(of, torch.float32, tf32=True) == pytest.approx(tflops * 1e12 / 2, rel=0.03)


@pytest.mark.parametrize(
    ("of", "tf32", "tflops"), [(H100, False, 67), (A100, False, 19.5), (T4, False, 8.1), (T4, True, 8.1)]
)
def test_peak_rate_outside_of_tensor_cores_is_that_of_the_data_sheet(of: Card, tf32: bool, tflops: float) -> None:
    assert peak_flops(of, torch.float32, tf32=tf32) == pytest.approx(tflops * 1e12, rel=0.03)


def test_peak_rate_of_a_laptop_and_of_a_part_of_a_card_follow_their_size_and_clock() -> None:
    laptop = card("NVIDIA GeForce RTX 3050 Laptop GPU", 8.6, 16, 1500)
    assert peak_flops(laptop, torch.bfloat16, tf32=True) == 16 * 1.5e9 * 512
    seventh = replace(A100, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", multi_processor_count=14)
    assert peak_flops(seventh, torch.bfloat16, tf32=True) == 14 * 1.41e9 * 2048


@pytest.mark.parametrize(
    "of",
    [
        card("NVIDIA GeForce GTX 1660 Ti", 7.5, 24, 1770),
        card("NVIDIA T1000", 7.5, 14, 1395),
        card("NVIDIA GeForce MX570 A", 8.6, 16, 1155),
        card("NVIDIA CMP 170HX", 8.0, 70, 1410),
        card("NVIDIA H20", 9.0, 78, 1980),
        card("NVIDIA GH300", 9.9, 132, 1980),
        card("AMD Instinct MI300X", 9.4, 304, 2100),
        replace(H100, clock_rate=0),
        replace(H100, clock_rate=1980),
    ],
    ids=lambda of: f"{of.name} {of.clock_rate}",
)
def test_peak_rate_is_unknown_rather_than_wrong(of: Card) -> None:
    assert peak_flops(of, torch.float16, tf32=True) == 0
    assert peak_flops(of, torch.float32, tf32=False) == 0


def test_peak_rate_is_unknown_for_bfloat16_without_units_for_it_and_without_a_clock() -> None:
    assert peak_flops(T4, torch.bfloat16, tf32=True) == 0
    described = {name: value for name, value in vars(H100).items() if name != "clock_rate"}
    assert peak_flops(SimpleNamespace(**described), torch.bfloat16, tf32=True) == 0


def test_a_run_has_its_rate_and_its_share_of_the_peak(
    train: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = train(tmp_path / "cpu", "--max-steps", "2")
    assert usual.code == 0, usual.err
    (step,) = [event for event in usual.events("step") if event["step"] == 2]
    assert step["tflops"] > 0
    assert "mfu" not in step
    assert "MFU" not in usual.out
    monkeypatch.setattr(device.Hardware, "peak_flops", 1e9)
    known = train(tmp_path / "known", "--max-steps", "2")
    (step,) = [event for event in known.events("step") if event["step"] == 2]
    assert step["mfu"] == pytest.approx(step["tflops"] * 1e3)
    assert f"  {step['mfu']:.0%} MFU" in known.out
