"""The micro-batch that fits a GPU, and the one that is fastest on a CPU."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from trainer.engine.autotune.micro_batch import (
    Meter,
    expected_peak,
    fastest,
    fits,
    halve,
    is_out_of_memory,
    largest_that_fits,
)
from trainer.errors import TooLittleMemoryError


class Memory:
    """A device that takes so many samples, and remembers what was tried."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.tried: list[int] = []

    def step(self, size: int) -> None:
        self.tried.append(size)
        if size > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("room", "limit", "size"),
    [(1, 64, 1), (3, 64, 3), (8, 64, 8), (11, 64, 10), (13, 64, 12), (1000, 64, 64), (1000, 12, 12), (1000, 5, 5)],
)
def test_the_largest_that_fits(room: int, limit: int, size: int) -> None:
    """The result is within a quarter below a power of two's next."""
    memory = Memory(room)
    assert largest_that_fits(memory.step, limit) == size
    assert max(memory.tried) <= limit
    assert len(memory.tried) < 12


def test_not_even_one() -> None:
    with pytest.raises(
        TooLittleMemoryError, match=r"not even one sample fits into memory, .*: try --gradient-checkpointing"
    ):
        largest_that_fits(Memory(0).step, 8)
    with pytest.raises(TooLittleMemoryError, match="not even one"):
        halve(1)
    assert [halve(size) for size in (8, 3, 2)] == [4, 1, 1]


def test_other_errors_are_not_taken_for_it() -> None:
    def broken(size: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        fits(broken, 4)


class Large:
    """Stands for a tensor that only the frame of the failed step still holds."""


def test_what_a_failed_step_held_is_free_before_the_next() -> None:
    held: list[weakref.ref[Large]] = []
    gc.disable()
    try:

        def step(size: int) -> None:
            large = Large()
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError(f"no room for {large} times {size}")

        assert not fits(step, 4)
        assert held[0]() is None
    finally:
        gc.enable()


def test_torch_s_own_words_on_a_cpu() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (torch.OutOfMemoryError("any words"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (MemoryError("Unable to allocate 3 GiB for an array"), True),
        (MemoryError(), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, out_of_memory: bool) -> None:
    assert is_out_of_memory(error) is out_of_memory


class Cpu:
    """A step of n samples takes `per_sample_s[n]` × n and reaches a peak of 100 + 10 n bytes."""

    def __init__(self, per_sample_s: dict[int, float]) -> None:
        self.per_sample_s = per_sample_s
        self.now, self.peak = 0.0, 100
        self.tried: list[int] = []

    def step(self, size: int) -> None:
        self.tried.append(size)
        self.now += self.per_sample_s[size] * size
        self.peak = max(self.peak, 100 + 10 * size)

    def meter(self, limit_bytes: int = 1 << 60) -> Meter:
        return Meter(clock=lambda: self.now, peak_bytes=lambda: self.peak, limit_bytes=limit_bytes)


def test_a_cpu_takes_the_fastest_not_the_largest() -> None:
    cpu = Cpu({1: 0.012, 2: 0.010, 4: 0.009, 8: 0.0081, 16: 0.008})
    choice = fastest(cpu.step, meter=cpu.meter())
    assert choice.size == 8  # 16 is 1 % faster, which is noise and twice the memory
    assert choice.why == "micro-batch 8 (samples/s by size: 1: 83.3, 2: 100, 4: 111, 8: 123, 16: 125)"


def test_memory_is_not_tried_out_where_the_kernel_kills() -> None:
    cpu = Cpu(dict.fromkeys((1, 2, 4, 8, 16), 0.001))
    choice = fastest(cpu.step, meter=cpu.meter(limit_bytes=240))
    assert max(cpu.tried) == 8  # 16 would reach 260 of 240
    assert "16 might exceed the memory limit" in choice.why


def test_slow_steps_are_tried_within_the_budget() -> None:
    cpu = Cpu(dict.fromkeys((1, 2, 4, 8, 16), 5.0))
    choice = fastest(cpu.step, budget_s=20, meter=cpu.meter())
    assert choice.size == 1
    assert cpu.now < 40
    assert "larger ones were not tried" in choice.why


def test_a_peak_is_foreseen_on_a_line() -> None:
    assert expected_peak({0: 100}, 1) == 0
    assert expected_peak({0: 100, 1: 110, 2: 120}, 16) == 260
