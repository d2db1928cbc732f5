"""Podman where Docker is expected: recognized by its own name, refused in one line, and never called an old Docker."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.nodes.docker_engine import DockerEngine
from orchestrator.nodes.probes.host_probe import parse
from orchestrator.specs.facts import EngineFacts
from tests.unit.findings.doctor import beta, no_engine

ROOTLESS = {"ServerVersion": "4.3.1", "BuildahVersion": "1.28.2", "SecurityOptions": ["name=rootless"]}


class Api:
    """Docker's API as far as facts ask for it."""

    timeout = 60

    def __init__(self, info: dict[str, Any]) -> None:
        self._info = info

    def info(self) -> dict[str, Any]:
        return self._info


def facts_of(info: dict[str, Any]) -> EngineFacts:
    connect: Any = lambda: Api(info)  # noqa: E731  # in place of the SDK's client
    return DockerEngine("beta", connect, explain=str).facts()


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        (ROOTLESS, "podman"),
        ({"ServerVersion": "5.4.0"}, "podman"),
        ({"ServerVersion": "20.10.24+dfsg1"}, "docker"),
        ({"ServerVersion": "19.03.15"}, "docker"),
        ({"ServerVersion": "1.13.1"}, "docker"),
        ({"ServerVersion": "dev"}, "docker"),
        ({}, "docker"),
    ],
)
def test_it_is_known_by_what_only_podman_states(info: dict[str, Any], kind: str) -> None:
    assert facts_of(info).kind == kind


def test_one_finding_says_what_to_install() -> None:
    (found,) = [one for one in beta(facts={"engine": facts_of(ROOTLESS)}) if one.id.startswith("engine.")]
    assert found.id == "engine.podman"
    assert "install Docker Engine beside it" in found.fix


def test_the_package_podman_docker_is_recognized_where_no_engine_answers() -> None:
    host, _ = parse("docker_program=yes\npodman=yes\n", port=12355)
    assert host.podman
    assert [one.id for one in no_engine(podman=True) if one.id.startswith("engine.")] == ["engine.podman"]
