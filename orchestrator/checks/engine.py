"""Fitness of each node's container engine for a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined
from orchestrator.specs.numbers import whole

OLDEST = (20, 10)
"""API 1.41: what `orch` speaks."""
ROOTLESS_FROM = (29,)
"""Major version before which `--network host` of a rootless engine is a network of its own (docker/docs#25066)."""
TOLERANCE = 1.05


def silent(node: Examined) -> Iterator[Finding]:
    """The host answered, its engine did not: not installed, not running, not for this user, or something else."""
    if not node.engine_error or node.spec.engine != "docker":
        return
    host, user = node.host, node.facts.user if node.facts else "USER"
    if host and host.podman:
        yield Finding.of("engine.podman", node.name)
    elif host and host.docker_program is False:
        yield Finding.of("engine.absent", node.name, user=user)
    elif host and host.docker_socket == "closed":
        yield Finding.of("engine.no_access", node.name, user=user)
    elif host and host.docker_socket in ("absent", "open") and not node.engine_runs:
        start = ("systemctl", "start", "docker") if host.systemd else ("service", "docker", "start")
        enable = "sudo systemctl enable --now docker" if host.systemd else "sudo service docker start"
        yield Finding.of("engine.not_running", node.name, enable=enable, start=start)
    else:
        yield Finding.of("engine.silent", node.name, engine_error=node.engine_error)


def too_old(node: Examined) -> Iterator[Finding]:
    """An engine older than what `orch` speaks."""
    version = _version(node)
    if version and version < OLDEST:
        yield Finding.of("engine.too_old", node.name, version=_text(node))


def rootless(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """An engine without root rights has no way to the machine's own network before version 29."""
    for node in fleet if len(fleet) > 1 else ():
        engine = node.facts.engine if node.facts else None
        if engine and engine.kind == "docker" and engine.rootless and _version(node) < ROOTLESS_FROM:
            yield Finding.of("engine.rootless", node.name, version=engine.version)


def wsl_networking(node: Examined) -> Iterator[Finding]:
    """WSL2 behind address translation: it reaches the others, and they do not reach it."""
    engine = node.facts.engine if node.facts else None
    if not node.host or not node.host.wsl or node.host.wsl_networking == "mirrored":
        return
    if engine and engine.docker_desktop:
        return  # cannot hold a rank in any case, and has a finding of its own
    known = node.host.wsl_networking
    yield Finding.of(
        "engine.wsl_networking", node.name, case="known" if known else "unknown", networking=known or "unknown"
    )


def limits_ignored(node: Examined) -> Iterator[Finding]:
    """Limits that the container does not have: a run would take the whole machine."""
    if node.inside is None or node.facts is None or node.spec.engine != "docker":
        return
    limits, missing = limits_of(node.spec, node.facts), []
    if node.inside.cpus is None or node.inside.cpus > limits.cpus * TOLERANCE:
        missing.append(f"{limits.cpus:g} CPUs")
    if node.inside.memory_mib is None or node.inside.memory_mib > limits.memory_mib * TOLERANCE:
        missing.append(f"{limits.memory_mib} MiB of memory")
    if missing:
        yield Finding.of("engine.limits_ignored", node.name, lacking=" and ".join(missing))


def _text(node: Examined) -> str:
    return node.facts.engine.version if node.facts and node.facts.engine else ""


def _version(node: Examined) -> tuple[int, ...]:
    """Major and minor version of a Docker Engine; empty where it is not known or not numeric."""
    if node.facts is None or node.facts.engine is None or node.facts.engine.kind != "docker":
        return ()
    parts = [whole(part) for part in _text(node).split(".")[:2]]
    known = tuple(part for part in parts if part is not None)
    return known if len(known) == len(parts) else ()


def torch_missing(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Nodes that are processes run the torch of this Python, which the controller does not need otherwise."""
    engines = {facts.name: facts.engine for facts in fleet if facts.engine and facts.engine.kind == "process"}
    without = [name for name, engine in engines.items() if not engine.version]
    if without:
        yield Finding.of("engine.no_torch", ", ".join(without))


def docker_desktop(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Docker Desktop's host network is that of its own virtual machine."""
    for facts in fleet:
        if facts.engine and facts.engine.docker_desktop:
            yield Finding.of("engine.docker_desktop", facts.name)


def podman(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Podman under Docker's API: it restarts no container after a reboot, and its GPUs and networks are others."""
    for facts in fleet:
        if facts.engine and facts.engine.kind == "podman":
            yield Finding.of("engine.podman", facts.name)


LAUNCH_CHECKS = (docker_desktop, podman, torch_missing)
NODE_CHECKS = (silent, too_old, wsl_networking, limits_ignored)
CHECKS = (rootless,)
