"""Every finding before a launch: when it fires, and that a fleet in health is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.checks.doctor import LAUNCH_CHECKS
from orchestrator.specs.facts import EngineFacts, ImageContents, ImageFacts, NodeFacts
from tests import lan
from tests.unit.findings.preflight import preflight

HEALTHY = (
    lan.facts("alpha"),
    lan.facts("beta"),
    lan.facts("gamma", image=replace(lan.IMAGE, id="sha256:cuda", labels={"orch.profile": "cuda"})),
)
ENGINE = EngineFacts(kind="docker", version="28", id="engine-of-alpha", architecture="x86_64")


def test_a_fleet_in_health_is_silent() -> None:
    assert preflight(HEALTHY) == []


WITHOUT_TORCH = EngineFacts(kind="process", version="", id="this", architecture="x86_64")
FAULTS: list[tuple[str, str, NodeFacts]] = [
    ("engine.no_torch", "error", lan.facts("beta", engine=WITHOUT_TORCH)),
    ("network.loopback", "error", lan.facts("beta", address="127.0.1.1")),
    ("inventory.same_machine", "error", lan.facts("beta", engine=ENGINE)),
    ("image.missing", "error", lan.facts("beta", image=None)),
    ("image.differs", "error", lan.facts("beta", image=ImageFacts(id="sha256:x", labels={"orch.profile": "cpu"}))),
    (
        "image.unfit",
        "error",
        lan.facts("beta", contents=ImageContents(reference="lab/mine:1", device="cpu", python="3.9.2", torch="2.13.0")),
    ),
    (
        "engine.docker_desktop",
        "error",
        lan.facts("beta", engine=replace(ENGINE, id="b", operating_system="Docker Desktop")),
    ),
    ("engine.podman", "error", lan.facts("beta", engine=replace(ENGINE, id="b", kind="podman", version="5.4.0"))),
    ("clock.skew", "warning", lan.facts("beta", clock_offset_s=2.1)),
    ("clock.skew", "error", lan.facts("beta", clock_offset_s=-30.1)),
    ("disk.full", "error", lan.facts("beta", disk_free_mib=1023)),
    ("memory.small", "warning", lan.facts("beta", memory_mib=1023)),
]


@pytest.mark.parametrize(("id", "severity", "beta"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_one_fault_one_finding(id: str, severity: str, beta: NodeFacts) -> None:
    found = preflight([lan.facts("alpha"), beta])
    assert [(finding.id, finding.severity.value) for finding in found] == [(id, severity)]
    assert "beta" in found[0].node
    assert "beta" in found[0].message or id == "image.missing"  # shown once for all nodes, which stand before it
    assert found[0].fix or id == "memory.small"


def test_every_check_is_tried_here() -> None:
    assert len({id for id, _, _ in FAULTS}) == sum(map(len, LAUNCH_CHECKS.values()))


def test_processes_of_one_computer_share_everything() -> None:
    engine = EngineFacts(kind="process", version="1", id="this", architecture="x86_64")
    fleet = [lan.facts(name, engine=engine, image=None, address=f"127.0.0.{n}") for n, name in enumerate(lan.NAMES, 11)]
    assert preflight(fleet) == []


def test_a_clock_behind_is_reported_as_behind() -> None:
    assert "5 s behind" in preflight([lan.facts("alpha", clock_offset_s=-5.0)])[0].message


def test_images_built_on_each_node_from_the_same_content_are_the_same() -> None:
    built = [
        lan.facts(name, image=ImageFacts(id=f"sha256:{name}", labels={"orch.profile": "cpu", "orch.content": content}))
        for name, content in (("alpha", "c1"), ("beta", "c1"), ("gamma", "c2"))
    ]
    assert not [finding for finding in preflight(built[:2]) if finding.id == "image.differs"]
    assert [finding for finding in preflight(built) if finding.id == "image.differs"]


def test_where_all_nodes_agree_it_is_this_computers_clock() -> None:
    (found,) = preflight([lan.facts("alpha", clock_offset_s=-60.4), lan.facts("beta", clock_offset_s=-60.0)])
    assert (found.id, found.node) == ("clock.controller", "")
    assert "60 s ahead" in found.message
    two = preflight([lan.facts("alpha", clock_offset_s=-60.0), lan.facts("beta", clock_offset_s=-2.0)])
    assert [finding.id for finding in two] == ["clock.skew", "clock.skew"]
