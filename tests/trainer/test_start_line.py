"""The one line that says what is used."""

from __future__ import annotations

import pytest
import torch

from trainer.config import Place, TrainOptions
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
    assert start_line(CPU, Place(), "none", environ) == line


def test_distributed() -> None:
    place = Place(rank=0, world_size=5, node="alpha")
    line = start_line(CPU, place, "gloo", {})
    assert line == "🌐 DISTRIBUTED MODE: rank 0 of 5 (alpha): cpu, 2 threads, float32, gloo"
    assert "MODO DISTRIBUIDO: rango 0 de 5" in start_line(CPU, place, "gloo", {"LANG": "es_AR"})


def test_a_cpu_computes_in_what_it_has() -> None:
    hardware = prepare_hardware(Place(), TrainOptions(), environ={"OMP_NUM_THREADS": "1"})
    if hardware.on_gpu:
        pytest.skip("this machine has a GPU")
    assert hardware.precision == ("bfloat16" if has_native_bf16() else "float32")
    assert hardware.without_bf16_on_cpu().precision == "float32"
    assert hardware.onednn
    full = prepare_hardware(Place(), TrainOptions(amp=False), environ={"OMP_NUM_THREADS": "1"})
    assert full.precision == "float32"
