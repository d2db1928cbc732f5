"""What is wrong with the GPUs of one node, seen from the host."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.specs.facts import GpuFacts, SmiFault
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.gpus import NodeGpus

HEALTH_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Throttling that a machine in health does not show; reaching the power limit (`sw_power_cap`) is normal under load."""

_REBOOT = "reboot that machine: sudo reboot"
# fault of nvidia-smi: id, what it means, cause, fix
_SMI_FAULTS = {
    SmiFault.NO_DEVICE: (
        "gpu.no_device",
        "NVIDIA's driver is installed, but it finds no GPU",
        "the card is switched off (laptops: prime-select), held by another driver, or gone",
        "lspci -nn | grep -i nvidia, then sudo dmesg | grep -i nvrm",
    ),
    SmiFault.NO_DRIVER: (
        "gpu.driver_not_loaded",
        "NVIDIA's kernel driver is not loaded",
        "often a new kernel for which the module was not built, or Secure Boot refusing an unsigned one",
        "sudo modprobe nvidia; where that fails: sudo dkms autoinstall && sudo reboot",
    ),
    SmiFault.MISMATCH: (
        "gpu.driver_mismatch",
        "NVIDIA's kernel driver and its libraries have different versions",
        "the driver was upgraded while the old one stayed loaded",
        _REBOOT,
    ),
    SmiFault.LOST: (
        "gpu.lost",
        "a GPU fell off the bus",
        "overheating, power supply, a loose card or riser, or a driver fault (Xid 79)",
        f"sudo dmesg | grep -i xid, then {_REBOOT}",
    ),
    SmiFault.NO_PERMISSION: (
        "gpu.no_permission",
        "the SSH user may not use the GPU",
        "/dev/nvidia* belong to a group that this user is not in",
        'ls -l /dev/nvidia*, then sudo usermod -aG video "$USER" and log in again',
    ),
    SmiFault.BLOCKED: (
        "gpu.blocked",
        "Windows does not let WSL use the GPU",
        "WSL or the NVIDIA driver of Windows is too old, or the GPU is disabled for this user",
        "in Windows: wsl --update, install NVIDIA's newest driver, then wsl --shutdown",
    ),
    SmiFault.UNREADABLE: (
        "gpu.unreadable",
        "nvidia-smi's answer was not understood",
        "",
        "nvidia-smi -q -x on that machine, and report what it writes",
    ),
    SmiFault.UNKNOWN: (
        "gpu.smi_failed",
        "nvidia-smi failed",
        "the driver is in an unknown state",
        f"sudo dmesg | grep -iE 'nvrm|xid', then {_REBOOT}",
    ),
}


def unreachable(node: NodeGpus) -> Iterator[Finding]:
    """A node that did not answer at all."""
    if node.host is None:
        yield Finding(id="gpu.unreachable", severity=Severity.ERROR, node=node.node, message=node.error, fix=node.hint)


def missing(node: NodeGpus) -> Iterator[Finding]:
    """The inventory promises CUDA, and there is no driver."""
    if node.device == "cuda" and node.host and node.host.absent:
        yield Finding(
            id="gpu.none",
            severity=Severity.ERROR,
            node=node.node,
            message="the inventory says device: cuda, but there is no nvidia-smi",
            cause="no NVIDIA driver is installed, or nvidia-smi is not on the PATH of the SSH user",
            fix="install the driver (Ubuntu: sudo ubuntu-drivers install), or write device: cpu in inventory.yaml",
        )


def driver_fault(node: NodeGpus) -> Iterator[Finding]:
    """nvidia-smi is there and fails. An error unless the inventory says that the GPU is not wanted."""
    if node.host is None or node.host.fault is None or node.host.absent:
        return
    id, message, cause, fix = _SMI_FAULTS[node.host.fault]
    wanted = node.device == "cuda" or (node.device == "auto" and node.host.fault is not SmiFault.NO_DEVICE)
    severity = Severity.ERROR if wanted else Severity.INFO if node.device == "cpu" else Severity.WARNING
    if node.device == "auto" and wanted:
        fix = f"{fix}; to go on without: device: cpu for it in inventory.yaml"
    said = f" (nvidia-smi: {node.host.detail})" if node.host.detail else ""
    yield Finding(id=id, severity=severity, node=node.node, message=f"{message}{said}", cause=cause, fix=fix)


def broken(node: NodeGpus) -> Iterator[Finding]:
    """One card of several does not answer, or not every reading of it comes."""
    for gpu in _gpus(node):
        lost = "lost" in gpu.fault.lower() or "reset" in gpu.fault.lower()
        if gpu.fault:
            yield Finding(
                id="gpu.lost" if lost else "gpu.unknown_error",
                severity=Severity.ERROR if lost else Severity.WARNING,
                node=node.node,
                message=f"GPU {gpu.index}: nvidia-smi says {gpu.fault.strip('[]')!r} in place of a reading",
                cause="overheating, power supply, a loose card, or a driver fault" if lost else "a sensor that fails",
                fix=f"sudo dmesg | grep -i xid, then {_REBOOT}",
            )


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
        yield Finding(
            id="gpu.memory_held",
            severity=Severity.WARNING,
            node=node.node,
            message=f"GPU {gpu.index}: {held} held by {names or 'a process nvidia-smi cannot name'}",
            cause="another training, a notebook or a desktop program uses the card",
            fix=f"look: ps -fp {pids}; end it, or wait for it" if pids else "sudo fuser -v /dev/nvidia*; or: orch runs",
        )


def throttled(node: NodeGpus) -> Iterator[Finding]:
    """The card runs slower than it could, for reasons of health."""
    for gpu in _gpus(node):
        reasons = [reason for reason in gpu.throttle_reasons if reason in HEALTH_REASONS]
        if reasons:
            heat = any("thermal" in reason for reason in reasons)
            yield Finding(
                id="gpu.throttled",
                severity=Severity.WARNING,
                node=node.node,
                message=f"GPU {gpu.index} is slowed down: {', '.join(reasons)}"
                + (f" at {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""),
                cause="heat" if heat else "the power supply or its cables do not give what the card asks for",
                fix=f"clean the fans, or lower the limit: sudo nvidia-smi -i {gpu.index} -pl WATTS"
                if heat
                else "check the power cables; laptops: plug in the mains",
            )


def power_capped(node: NodeGpus) -> Iterator[Finding]:
    """The card is at its power limit: normal under load, worth knowing where steps are slow."""
    for gpu in _gpus(node):
        if "sw_power_cap" in gpu.throttle_reasons and not set(gpu.throttle_reasons) & set(HEALTH_REASONS):
            yield Finding(
                id="gpu.power_capped",
                severity=Severity.INFO,
                node=node.node,
                message=f"GPU {gpu.index} is at its power limit"
                + (f" of {gpu.power_limit_w:.0f} W" if gpu.power_limit_w is not None else ""),
                cause="normal under load",
            )


def ecc(node: NodeGpus) -> Iterator[Finding]:
    """Memory errors that the card could not correct since its driver was loaded."""
    for gpu in _gpus(node):
        if gpu.ecc_uncorrected:
            yield Finding(
                id="gpu.ecc_uncorrected",
                severity=Severity.WARNING,
                node=node.node,
                message=f"GPU {gpu.index}: {gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded",
                cause="memory of the card fails: results may be wrong, programs may be ended",
                fix=f"sudo nvidia-smi --gpu-reset -i {gpu.index} (or reboot); replace the card when they come back",
            )


def inforom(node: NodeGpus) -> Iterator[Finding]:
    """The card's own record of itself is damaged: it works, and forgets its error counts and settings."""
    for bus in node.host.inforom_corrupted if node.host else ():
        yield Finding(
            id="gpu.inforom_corrupted",
            severity=Severity.WARNING,
            node=node.node,
            message=f"the infoROM of the GPU at {bus} is corrupted (nvidia-smi ended with exit code 14)",
            cause="a flash memory of the card fails; computing is not affected",
            fix="nothing now; if errors of memory or Xid 48, 63 or 64 follow, have the card replaced",
        )


def mig(node: NodeGpus) -> Iterator[Finding]:
    """A partitioned card: each rank gets one instance, and NCCL does not run between instances of one card."""
    for gpu in _gpus(node):
        if gpu.mig_enabled:
            yield Finding(
                id="gpu.mig",
                severity=Severity.INFO,
                node=node.node,
                message=f"GPU {gpu.index} is partitioned (MIG): a training sees one instance of it",
                fix=f"to use the whole card: sudo nvidia-smi -i {gpu.index} -mig 0",
            )


def _gpus(node: NodeGpus) -> tuple[GpuFacts, ...]:
    return node.host.gpus if node.host else ()


HOST_CHECKS = (unreachable, missing, driver_fault, broken, memory_held, throttled, power_capped, ecc, inforom, mig)
