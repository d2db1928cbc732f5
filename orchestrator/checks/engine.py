"""Whether each node's container engine can hold a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.node_report import Examined
from orchestrator.specs.numbers import whole

OLDEST = (20, 10)
"""API 1.41: what `orch` speaks."""
ROOTLESS_FROM = (29,)
"""Before it, `--network host` of a rootless engine is a network of its own (docker/docs#25066)."""
TOLERANCE = 1.05


def silent(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """The host answered, its engine did not: not installed, not running, not for this user, or something else."""
    for node in fleet:
        if not node.engine_error or node.spec.engine != "docker":
            continue
        host, user = node.host, node.facts.user if node.facts else "$USER"
        if host and host.docker_program is False:
            yield _error(
                node,
                "engine.absent",
                "there is no Docker",
                cause=f"no program docker is on the PATH of {user}",
                fix=f"orch setup --nodes {node.name} (Debian, Ubuntu); else docs.docker.com/engine/install",
            )
        elif host and host.docker_socket == "closed":
            yield _error(
                node,
                "engine.no_access",
                f"{user} may not use Docker",
                cause="its socket belongs to root and the group docker; who is in that group is as mighty as root",
                fix=f"on it: sudo usermod -aG docker {user}; then log out everywhere and in again",
            )
        elif host and host.docker_socket in ("absent", "open") and not node.engine_runs:
            start = ("systemctl", "start", "docker") if host.systemd else ("service", "docker", "start")
            enable = "sudo systemctl enable --now docker" if host.systemd else "sudo service docker start"
            yield _error(
                node,
                "engine.not_running",
                "Docker is installed and does not run",
                cause="nobody answers on its socket",
                fix=f"on it: {enable}",
                auto_fix=Fix(what=f"start Docker on {node.name}", on_node=("sudo", "-n", *start)),
            )
        else:
            yield _error(
                node,
                "engine.silent",
                f"Docker does not serve: {node.engine_error}",
                fix="on it: sudo systemctl status docker; sudo journalctl -u docker -n 50",
            )


def too_old(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """An engine older than what `orch` speaks."""
    for node in fleet:
        version = _version(node)
        if version and version < OLDEST:
            yield _error(
                node,
                "engine.too_old",
                f"Docker {_text(node)} is too old: 20.10 is the oldest that will do",
                fix="update Docker Engine: docs.docker.com/engine/install",
            )


def rootless(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """An engine without root rights has no way to the machine's own network before version 29."""
    for node in fleet if len(fleet) > 1 else ():
        engine = node.facts.engine if node.facts else None
        if engine and engine.rootless and _version(node) < ROOTLESS_FROM:
            yield _error(
                node,
                "engine.rootless",
                f"Docker {engine.version} runs rootless: no other machine reaches a rank in it",
                cause="before Docker 29 its host network is a network of its own",
                fix="update it to Docker 29 or later; or use the system's engine: docker context use default",
            )


def wsl_networking(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """WSL2 behind address translation: it reaches the others, and they do not reach it."""
    for node in fleet:
        engine = node.facts.engine if node.facts else None
        if not node.host or not node.host.wsl or node.host.wsl_networking == "mirrored":
            continue
        if engine and engine.docker_desktop:
            continue  # which cannot hold a rank in any case, and is told so
        known = node.host.wsl_networking
        yield Finding(
            id="engine.wsl_networking",
            severity=Severity.ERROR if known else Severity.WARNING,
            node=node.name,
            message=f"it is WSL2 with {known or 'unknown'} networking: the other machines do not reach its ranks",
            cause="only mirrored networking gives WSL2 the addresses of its Windows",
            fix="in Windows, in %UserProfile%\\.wslconfig below [wsl2]: networkingMode=mirrored; then: wsl --shutdown",
        )


def limits_ignored(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Limits that the container does not have: a run would take the whole machine."""
    for node in fleet:
        if node.inside is None or node.facts is None or node.spec.engine != "docker":
            continue
        asked = min(node.spec.limits.cpus, node.facts.cpus or node.spec.limits.cpus)
        lacking = []
        if node.inside.cpus is None or node.inside.cpus > asked * TOLERANCE:
            lacking.append(f"{asked:g} CPUs")
        if node.inside.memory_mib is None or node.inside.memory_mib > node.spec.limits.memory_mib * TOLERANCE:
            lacking.append(f"{node.spec.limits.memory_mib} MiB of memory")
        if lacking:
            yield Finding(
                id="engine.limits_ignored",
                severity=Severity.WARNING,
                node=node.name,
                message=f"a container there is not held to {' and '.join(lacking)}",
                cause="the kernel does not give Docker these cgroups (rootless without delegation, or switched off)",
                fix="on it: docker info shows which it lacks, below WARNING; rootless: delegate them to the user's"
                " slice; else add cgroup_enable=memory swapaccount=1 to the kernel's command line",
            )


def _text(node: Examined) -> str:
    return node.facts.engine.version if node.facts and node.facts.engine else ""


def _version(node: Examined) -> tuple[int, ...]:
    """Of a Docker Engine, as far as it is numbers; empty where it is not known."""
    if node.facts is None or node.facts.engine is None or node.facts.engine.kind != "docker":
        return ()
    parts = [whole(part) for part in _text(node).split(".")[:2]]
    known = tuple(part for part in parts if part is not None)
    return known if len(known) == len(parts) else ()


def _error(
    node: Examined, id: str, message: str, *, cause: str = "", fix: str = "", auto_fix: Fix | None = None
) -> Finding:
    return Finding(
        id=id, severity=Severity.ERROR, node=node.name, message=message, cause=cause, fix=fix, auto_fix=auto_fix
    )


CHECKS = (silent, too_old, rootless, wsl_networking, limits_ignored)
