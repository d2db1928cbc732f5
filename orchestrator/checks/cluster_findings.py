"""Findings for the user of a cluster, whose machines belong to an administrator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.finding import Finding, Severity

NOT_OF_USERS = (
    "power.", "firewall.", "reach.same_address", "reach.same_machine_id", "reach.slow", "network.wifi",
    "network.own_name_loops", "network.own_name_astray", "network.no_way_out", "network.two_in_subnet",
)  # fmt: skip
"""Beginnings of ids that do not concern a cluster: settings of laptops, ssh, /etc/hosts, packet filters."""
OF_USERS = (
    "reach.", "data.", "disk.", "memory.", "resources.workspace", "resources.disk_low", "resources.memory",
    "resources.memory_held", "gpu.memory_held", "clock.controller",
)  # fmt: skip
"""Beginnings of ids that a user can act on."""
NOT_CHECKED = (
    "not checked on a cluster: ssh keys, /etc/hosts, packet filters, power settings and containers, which are its"
    " administrator's; nor are the links\n"
    "  → orch launch --on {cluster} --nodes 2 -- test-ddp   # every collective and every link"
)


def for_cluster_users(findings: Iterable[Finding], cluster: ClusterSpec) -> tuple[Finding, ...]:
    """Those that concern a user of the cluster; where only its administrator can act, the fix says so, and notes are
    left out, as is torch on the host where ranks run in containers. Nothing is fixed automatically."""
    return tuple(
        replace(one, fix=fix, auto_fix=None)
        for one in findings
        if not one.id.startswith(NOT_OF_USERS) and (fix := _fix(one, cluster)) is not None
    )


def _fix(finding: Finding, cluster: ClusterSpec) -> str | None:
    if finding.id == "engine.no_torch":
        if cluster.container != "none":  # torch is in the image
            return None
        return f"install torch for {cluster.python}, or set `python:` of cluster {cluster.name} to one that has it"
    if finding.id == "gpu.none":
        return f"set `gpus:`, `partition:` or `options:` of cluster {cluster.name} so that Slurm gives GPUs to a job"
    if finding.id.startswith(OF_USERS):
        return finding.fix
    if finding.severity is Severity.INFO:
        return None
    return f"ask the administrator of {cluster.name}, as this needs rights on {finding.node}: {finding.fix}"
