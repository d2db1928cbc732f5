"""The quick checks before a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from orchestrator.checks.doctor import LAUNCH_CHECKS
from orchestrator.checks.images import image_outdated, package_missing
from orchestrator.specs.facts import EngineFacts, ImageContents, NodeFacts
from orchestrator.specs.finding import Finding
from tests import lan

ENGINE = EngineFacts(kind="docker", version="28", id="engine-of-beta", architecture="x86_64")
PROCESS = EngineFacts(kind="process", version="", id="this", architecture="x86_64")

CONTENTS = ImageContents(reference="lab/mine:1", device="cpu", python="3.11.2", torch_error="ModuleNotFoundError")


def preflight(fleet: Sequence[NodeFacts]) -> list[Finding]:
    """All of them."""
    return [finding for checks in LAUNCH_CHECKS.values() for check in checks for finding in check(fleet)]


def healthy() -> Iterable[Finding]:
    return preflight([lan.facts(name) for name in lan.NAMES])


def beta(**changes: object) -> Iterable[Finding]:
    """Two nodes, the second of which is changed."""
    return preflight([lan.facts("alpha"), lan.facts("beta", **changes)])


MAKERS: dict[str, Callable[[], Iterable[Finding]]] = {
    "engine.no_torch": partial(beta, engine=PROCESS),
    "network.loopback": partial(beta, address="127.0.1.1"),
    "inventory.same_machine": partial(beta, engine=replace(ENGINE, id="engine-of-alpha")),
    "image.missing": partial(beta, image=None),
    "image.differs": partial(beta, image=replace(lan.IMAGE, id="sha256:other")),
    "image.unfit": partial(beta, contents=CONTENTS, reference="lab/mine:1"),
    "image.outdated": lambda: image_outdated([lan.facts("beta")], "of-today"),
    "image.package_missing": lambda: package_missing(
        [lan.facts("beta", image=replace(lan.IMAGE, labels={"orch.torch_geometric": ""}))],
        {"torch-geometric": "echo torch-geometric >> requirements.txt && orch build --requirements requirements.txt"},
    ),
    "engine.docker_desktop": partial(beta, engine=replace(ENGINE, operating_system="Docker Desktop")),
    "engine.podman": partial(beta, engine=replace(ENGINE, kind="podman", version="5.4.0")),
    "clock.skew": partial(beta, clock_offset_s=2.1),
    "disk.full": partial(beta, disk_free_mib=1023),
    "memory.small": partial(beta, memory_mib=1023),
}
