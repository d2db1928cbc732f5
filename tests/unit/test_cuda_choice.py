"""Torch's CUDA build for a fleet: chosen from recorded cards and drivers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.nodes.probes import nvidia_smi
from orchestrator.plan.cuda import choose_cuda
from orchestrator.plan.image import Recipe, needed_wheels
from orchestrator.plan.ranks import backend_of
from orchestrator.specs.cuda import DEFAULT_BUILD, TORCH_BUILDS
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.facts import GpuFacts, ImageFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_CUDA
from tests import lan

RECORDED = Path(__file__).parents[1] / "fixtures" / "nvidia_smi"
CAPABILITY = {
    "a100-sxm4-40gb-mig__510.47.03.xml": (8, 0),
    "a100-sxm4-80gb-mig__535.54.03.xml": (8, 0),
    "gtx-1660-ti__418.43.xml": (7, 5),
    "rtx-3060__570.124.04.xml": (8, 6),
    "rtx-3080__595.58.03.xml": (8, 6),
    "rtx-3090__525.147.05.xml": (8, 6),
    "rtx-4090__535.86.05.xml": (8, 9),
    "tesla-p100__510.47.03.xml": (6, 0),
}


def recorded(name: str) -> tuple[GpuFacts, ...]:
    """The cards of a recorded answer; an XML one lacks the compute capability, which nvidia-smi is asked for apart."""
    text = (RECORDED / name).read_text()
    if name.endswith(".xml"):
        return tuple(replace(gpu, compute_capability=CAPABILITY[name]) for gpu in nvidia_smi.parse_xml(text))
    head, *rows = [line for line in text.splitlines() if not line.startswith("#")]
    return nvidia_smi.parse_csv("\n".join(rows), [field.split()[0] for field in head.split(", ")])


def card(name: str, capability: tuple[int, int] | None, driver: str) -> tuple[GpuFacts, ...]:
    return (GpuFacts(index=0, uuid="GPU-0", name=name, driver_version=driver, compute_capability=capability),)


H200, RTX_3050 = recorded("h200__590.48.01__load.csv"), recorded("rtx-3050-laptop__595.84.csv")
RTX_3060, RTX_3080 = recorded("rtx-3060__570.124.04.xml"), recorded("rtx-3080__595.58.03.xml")
RTX_3090, RTX_4090 = recorded("rtx-3090__525.147.05.xml"), recorded("rtx-4090__535.86.05.xml")
A100 = recorded("a100-sxm4-80gb-mig__535.54.03.xml")
GTX_1080, V100 = card("NVIDIA GeForce GTX 1080", (6, 1), "580.95.05"), card("Tesla V100", (7, 0), "570.133.20")
RTX_5090 = card("NVIDIA GeForce RTX 5090", (12, 0), "580.95.05")


@pytest.mark.parametrize(
    ("fleet", "chosen"),
    [
        ({"alpha": H200}, "13.0"),
        ({"alpha": RTX_3050, "beta": RTX_3080}, "13.0"),
        ({"alpha": RTX_5090, "beta": H200}, "13.0"),
        ({"alpha": RTX_4090}, "12.6"),
        ({"alpha": RTX_3050, "beta": RTX_4090, "gamma": RTX_3090}, "12.6"),
        ({"alpha": H200, "gamma": RTX_3060}, "12.6"),
        ({"alpha": GTX_1080, "beta": RTX_3080}, "12.6"),
        ({"alpha": V100}, "12.6"),
        ({"alpha": A100, "beta": ()}, "12.6"),
        ({"alpha": ()}, "13.0"),
        ({"alpha": card("NVIDIA GeForce RTX 2060", None, "525.60.13")}, "12.6"),
        ({}, ""),
    ],
)
def test_one_build_serves_the_fleet(fleet: dict[str, tuple[GpuFacts, ...]], chosen: str) -> None:
    choice = choose_cuda(fleet)
    assert set(choice.by_node.values()) == ({chosen} if chosen else set())
    assert bool(choice.reason) == (chosen == "12.6")


def test_the_reason_names_node_and_driver() -> None:
    assert choose_cuda({"alpha": RTX_3080, "gamma": RTX_3060}).reason == (
        "CUDA 12.6 for all: driver 570.124.04 (CUDA 13.0 needs 580.65.06) on gamma"
    )
    assert choose_cuda({"beta": GTX_1080}).reason == (
        "CUDA 12.6 for all: NVIDIA GeForce GTX 1080, compute capability 6.1 (torch for CUDA 13.0 has no code for it)"
        " on beta"
    )


def test_each_node_has_its_own_build_if_none_serves_all() -> None:
    choice = choose_cuda({"alpha": GTX_1080, "beta": RTX_5090})
    assert choice.by_node == {"alpha": "12.6", "beta": "13.0"}
    assert "alpha 12.6, beta 13.0" in choice.reason
    assert "gloo" in choice.reason


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (recorded("gtx-1660-ti__418.43.xml"), "driver 418.43 (CUDA 13.0 needs 580.65.06)"),
        (recorded("tesla-p100__510.47.03.xml"), "driver 510.47.03 (CUDA 12.6 needs 525.60.13)"),
        (recorded("a100-sxm4-40gb-mig__510.47.03.xml"), "driver 510.47.03"),
        (card("NVIDIA GeForce RTX 5090", (12, 0), "570.86.10"), "NVIDIA GeForce RTX 5090, compute capability 12.0"),
        (card("Tesla K80", (3, 7), "580.95.05"), "Tesla K80, compute capability 3.7"),
    ],
)
def test_a_card_that_no_build_serves_is_refused_with_the_way_out(gpus: tuple[GpuFacts, ...], message: str) -> None:
    with pytest.raises(PreflightError) as refused:
        choose_cuda({"alpha": RTX_3080, "beta": gpus})
    assert f"beta: {message}" in str(refused.value) or f"and {message}" in str(refused.value)
    assert "alpha" not in str(refused.value)
    assert "device: cpu" in str(refused.value.hint)


def test_a_build_that_is_asked_for_is_taken_if_it_serves_all() -> None:
    assert choose_cuda({"alpha": H200}, "12.6").by_node == {"alpha": "12.6"}
    with pytest.raises(PreflightError, match=r"CUDA 13\.0 does not serve beta: driver 535\.86\.05"):
        choose_cuda({"alpha": H200, "beta": RTX_4090}, "13.0")


def test_the_default_build_is_the_newest() -> None:
    assert next(iter(TORCH_BUILDS)) == DEFAULT_BUILD


def test_another_build_is_another_image_of_its_own_wheel() -> None:
    files = {"images/torch.txt": b"torch==2.13.0\n"}
    default = Recipe(project="maize", profile="cuda", files=files)
    older = Recipe(project="maize", profile="cuda", files=files, cuda="12.6")
    assert default.content != older.content
    wheels = [f"torch-2.13.0{build}-cp311-cp311-manylinux_2_28_x86_64.whl" for build in ("", "+cpu", "+cu126")]
    assert needed_wheels(wheels, default, "x86_64") == wheels[:1]
    assert needed_wheels(wheels, older, "x86_64") == wheels[2:]


@pytest.mark.parametrize(("builds", "backend"), [(("12.6", "12.6"), "nccl"), (("12.6", "13.0"), "gloo")])
def test_ranks_of_different_builds_do_not_use_nccl(builds: tuple[str, str], backend: str) -> None:
    nodes = [NodeSpec(name=name, address="10.0.0.1", device="cuda") for name in ("alpha", "beta")]
    facts = [
        lan.facts(node.name, gpus=H200, image=ImageFacts(id=build, labels={LABEL_CUDA: build}))
        for node, build in zip(nodes, builds, strict=True)
    ]
    assert backend_of(nodes, facts) == backend
