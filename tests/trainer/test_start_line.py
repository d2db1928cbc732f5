"""The one line that says what is used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainer.config import RankInfo, TrainOptions
from trainer.engine.hardware.device import Hardware, prepare_hardware, start_line
from trainer.engine.hardware.precision import has_native_bf16

CPU = Hardware(device=torch.device("cpu"), threads=2, dtype=torch.float32, onednn="3.12")


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"LANG": "es_ES.UTF-8"}, "💻 MODO LOCAL: Usando cpu con 2 hilos · float32 · oneDNN 3.12 activo"),
        (
            {"LC_ALL": "es_MX", "LANG": "C"},
            "💻 MODO LOCAL: Usando cpu con 2 hilos · float32 · oneDNN 3.12 activo",
        ),
        (
            {"LC_ALL": "C", "LANG": "es"},
            "💻 LOCAL MODE: using cpu with 2 threads · float32 · oneDNN 3.12 active",
        ),
        ({}, "💻 LOCAL MODE: using cpu with 2 threads · float32 · oneDNN 3.12 active"),
    ],
)
def test_local(environ: dict[str, str], line: str) -> None:
    assert start_line(CPU, RankInfo(), "none", environ) == line


def test_distributed() -> None:
    place = RankInfo(rank=0, world_size=5, node="alpha")
    line = start_line(CPU, place, "gloo", {})
    assert line == "🌐 DISTRIBUTED MODE: rank 0 of 5 (alpha): cpu, 2 threads, float32, gloo"
    assert "MODO DISTRIBUIDO: rango 0 de 5" in start_line(CPU, place, "gloo", {"LANG": "es_AR"})


def test_the_agreed_precision_is_reported_with_its_nodes() -> None:
    everyones = (("alpha", torch.bfloat16), ("beta", torch.float16), ("gamma", torch.float32))
    gpu = Hardware(device=torch.device("cuda", 0), threads=2, dtype=torch.bfloat16, onednn="", everyones=everyones)
    place = RankInfo(rank=0, world_size=3, node="alpha")
    assert start_line(gpu, place, "gloo", {}, without_gpu=["gamma"]) == (
        "🌐 DISTRIBUTED MODE: rank 0 of 3 (alpha): cuda:0, 2 threads, bfloat16, gloo (no GPU on gamma),"
        " mixed precision (bfloat16: alpha; float16: beta; float32: gamma),"
        " loss scaled on all ranks for the float16 of beta"
    )
    lowered = replace(CPU, lowered_for=("beta",), everyones=(("alpha", torch.float32), ("beta", torch.float32)))
    assert "float32 (CPUs alike: no bfloat16 on beta), gloo" in start_line(lowered, place, "gloo", {})
    assert "pérdida escalada en todos los rangos por el float16 de beta" in start_line(
        gpu, place, "gloo", {"LANG": "es"}
    )


def test_a_cpu_computes_in_what_it_has() -> None:
    hardware = prepare_hardware(RankInfo(), TrainOptions(), environ={"OMP_NUM_THREADS": "1"})
    if hardware.on_gpu:
        pytest.skip("this machine has a GPU")
    assert hardware.precision == ("bfloat16" if has_native_bf16() else "float32")
    assert hardware.onednn
    full = prepare_hardware(RankInfo(), TrainOptions(amp=False), environ={"OMP_NUM_THREADS": "1"})
    assert full.precision == "float32"
