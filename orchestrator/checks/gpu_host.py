"""Checks of the GPUs of one node, seen from the host."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.specs.facts import GpuFacts, SmiFault
from orchestrator.specs.finding import Finding
from orchestrator.specs.gpus import NodeGpus

HEALTH_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Throttling that a machine in health does not show; reaching the power limit (`sw_power_cap`) is normal under load."""

_SMI_FAULTS = {
    SmiFault.NO_DEVICE: "gpu.no_device",
    SmiFault.NO_DRIVER: "gpu.driver_not_loaded",
    SmiFault.MISMATCH: "gpu.driver_mismatch",
    SmiFault.LOST: "gpu.lost",
    SmiFault.NO_PERMISSION: "gpu.no_permission",
    SmiFault.BLOCKED: "gpu.blocked",
    SmiFault.UNREADABLE: "gpu.unreadable",
    SmiFault.UNKNOWN: "gpu.smi_failed",
}


def unreachable(node: NodeGpus) -> Iterator[Finding]:
    """A node that did not answer at all."""
    if node.host is None:
        yield Finding.of("gpu.unreachable", node.node, error=node.error, hint=node.hint)


def missing(node: NodeGpus) -> Iterator[Finding]:
    """The inventory promises CUDA, and there is no driver."""
    if node.device == "cuda" and node.host and node.host.absent:
        yield Finding.of("gpu.none", node.node)


def driver_fault(node: NodeGpus) -> Iterator[Finding]:
    """nvidia-smi is there and fails. An error unless the inventory says that the GPU is not wanted."""
    if node.host is None or node.host.fault is None or node.host.absent:
        return
    wanted = {"cuda": "promised", "cpu": "unwanted"}.get(node.device, "wanted")
    detail = f" (nvidia-smi: {node.host.detail})" if node.host.detail else ""
    yield Finding.of(_SMI_FAULTS[node.host.fault], node.node, case=wanted, said=detail)


def broken(node: NodeGpus) -> Iterator[Finding]:
    """One card of several does not answer, or not every reading of it comes."""
    for gpu in _gpus(node):
        fault = gpu.fault.strip("[]")
        if "lost" in fault.lower() or "reset" in fault.lower():
            yield Finding.of("gpu.lost", node.node, case="one", gpu=gpu.index, fault=fault)
        elif gpu.fault:
            yield Finding.of("gpu.unknown_error", node.node, gpu=gpu.index, fault=fault)


def memory_held(node: NodeGpus) -> Iterator[Finding]:
    """Other programs compute on the card, or hold a tenth of its memory."""
    for gpu in _gpus(node):
        used, total = gpu.memory_used_mib or 0, gpu.memory_total_mib or 0
        computing = [process for process in gpu.processes if "C" in process.kind]
        if not computing and (not total or used * 10 < total):
            continue
        holders = computing or gpu.processes
        names = ", ".join(
            f"{process.name.rsplit('/', 1)[-1][:40] or 'unnamed'} (pid {process.pid}"
            + (f", {process.used_memory_mib} MiB)" if process.used_memory_mib is not None else ")")
            for process in holders
        )
        pids = " ".join(str(process.pid) for process in holders)
        held = f"{used} of {total} MiB are" if total else "memory is"
        yield Finding.of(
            "gpu.memory_held",
            node.node,
            case="named" if pids else "unnamed",
            gpu=gpu.index,
            held=held,
            holders=names or "a process nvidia-smi cannot name",
            pids=pids,
        )


def throttled(node: NodeGpus) -> Iterator[Finding]:
    """The card runs slower than it could, for reasons of health."""
    for gpu in _gpus(node):
        reasons = [reason for reason in gpu.throttle_reasons if reason in HEALTH_REASONS]
        if reasons:
            heat = any("thermal" in reason for reason in reasons)
            yield Finding.of(
                "gpu.throttled",
                node.node,
                case="heat" if heat else "power",
                gpu=gpu.index,
                reasons=reasons,
                temperature=f" at {gpu.temperature_c} °C" if gpu.temperature_c is not None else "",
            )


def power_capped(node: NodeGpus) -> Iterator[Finding]:
    """The card is at its power limit: normal under load, worth knowing where steps are slow."""
    for gpu in _gpus(node):
        if "sw_power_cap" in gpu.throttle_reasons and not set(gpu.throttle_reasons) & set(HEALTH_REASONS):
            yield Finding.of(
                "gpu.power_capped",
                node.node,
                gpu=gpu.index,
                limit=f" of {gpu.power_limit_w:.0f} W" if gpu.power_limit_w is not None else "",
            )


def ecc(node: NodeGpus) -> Iterator[Finding]:
    """Memory errors that the card could not correct since its driver was loaded."""
    for gpu in _gpus(node):
        if gpu.ecc_uncorrected:
            yield Finding.of("gpu.ecc_uncorrected", node.node, gpu=gpu.index, ecc_uncorrected=gpu.ecc_uncorrected)


def inforom(node: NodeGpus) -> Iterator[Finding]:
    """The card's own record of itself is damaged: it works, and forgets its error counts and settings."""
    for bus in node.host.inforom_corrupted if node.host else ():
        yield Finding.of("gpu.inforom_corrupted", node.node, bus=bus)


def mig(node: NodeGpus) -> Iterator[Finding]:
    """A partitioned card: each rank gets one instance, and NCCL does not run between instances of one card."""
    for gpu in _gpus(node):
        if gpu.mig_enabled:
            yield Finding.of("gpu.mig", node.node, gpu=gpu.index)


def _gpus(node: NodeGpus) -> tuple[GpuFacts, ...]:
    return node.host.gpus if node.host else ()


HOST_CHECKS = (unreachable, missing, driver_fault, broken, memory_held, throttled, power_capped, ecc, inforom, mig)
