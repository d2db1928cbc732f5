"""Case files: what the nodes answer, and which findings follow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from orchestrator.plan import image
from orchestrator.specs.labels import LABEL_CUDA
from tests.cases.gpus import fleet


@pytest.mark.parametrize("path", sorted(fleet.CASES.glob("*.yaml")), ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = fleet.load(path)

    report = fleet.asked(case)

    found = [f"{finding.severity.value} {finding.id} {finding.node}".strip() for finding in report.findings]
    assert found == case["expect"]
    assert report.unfit == any(line.startswith("error") for line in case["expect"])
    message = "\n".join(f"{finding.message} | {finding.cause} | {finding.fix}" for finding in report.findings)
    for words in case.get("says", []):
        assert words in message
    for finding in report.findings:
        assert finding.message
        assert finding.fix or finding.severity.value == "info" or finding.id in ("gpu.unreachable", "gpu.engine")


def test_order_is_that_of_the_inventory_and_no_node_is_lost() -> None:
    nodes = {name: {} for name in ("gamma", "alpha", "beta")}

    assert [node.node for node in fleet.asked({"nodes": nodes}).nodes] == ["gamma", "alpha", "beta"]


def test_container_half_can_be_left_out() -> None:
    case = {"nodes": {"alpha": {"host": "rtx-4090__535.86.05.xml", "image": False}}}

    report = fleet.asked(case, dataclasses.replace(fleet.CHECK, container=False))

    assert (report.findings, report.nodes[0].container) == ((), None)


def test_probe_containers_have_names_of_their_own() -> None:
    node = fleet.fake_node("alpha", {"host": "rtx-4090__535.86.05.xml"})
    names: list[tuple[str, str, str]] = []
    answer = node.engine.programs
    assert answer is not None

    def programs(spec: fleet.ContainerSpec) -> fleet.Answer:
        names.append((spec.name, spec.network, spec.command[0]))
        return answer(spec)

    node.engine.programs = programs
    fleet.check_gpus([fleet.NodeSpec(name="alpha", address="10.0.0.1")], [node], fleet.CHECK)

    assert names == [
        ("orch-check-gpus-t0k3n", "none", "python"),
        ("orch-check-gpus-t0k3n", "none", "nvidia-smi"),
    ]


def test_probe_containers_get_no_more_than_the_machine_has() -> None:
    """The engine refuses a container with more cores than there are."""
    node = fleet.fake_node("alpha", {"host": "rtx-4090__535.86.05.xml"})
    node.engine.description = dataclasses.replace(node.engine.description, cpus=1, memory_mib=8000)
    limits: list[tuple[float, int, int]] = []
    answer = node.engine.programs
    assert answer is not None

    def programs(spec: fleet.ContainerSpec) -> fleet.Answer:
        limits.append((spec.cpus, spec.memory_mib, spec.shm_mib))
        return answer(spec)

    node.engine.programs = programs
    fleet.check_gpus([fleet.NodeSpec(name="alpha", address="10.0.0.1")], [node], fleet.CHECK)

    assert limits == [(1.0, 6400, 3200)] * 2


def test_label_and_name_of_the_image_are_those_of_the_build() -> None:
    assert image.LABEL_CUDA == LABEL_CUDA
    assert image.Recipe(project="orch", profile="cuda", files={}).tag == fleet.IMAGE
