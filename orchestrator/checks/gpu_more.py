"""Of GPUs, what `orch check-gpus` does not look at: the kernel's log, running containers, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.specs.facts import GpuFacts
from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.node_report import Examined

LOWERED = 0.9
"""Share of its own power limit below which a card is noticeably slower."""

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)")
# NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors): the ones that mean the card or its driver, not the program
_MEANING = {
    31: "a program touched memory that was not its own",
    43: "the driver ended a program's work after a fault of that program",
    48: "a memory error that could not be corrected",
    62: "the card's own controller stopped",
    63: "a row of its memory was retired",
    64: "a row of its memory could not be retired",
    74: "an error on NVLink",
    79: "the card fell off the bus",
    94: "a contained memory error",
    95: "a memory error that was not contained",
    119: "the card's own processor (GSP) gives no answer",
}
_GRAVE = {48, 62, 64, 79, 95, 119}


def xid(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Faults that the driver wrote into the kernel's log since boot: one finding for each kind."""
    for node in fleet:
        newest: dict[int, str] = {}
        for line in node.host.xid if node.host else ():
            if match := _XID.search(line):
                newest[int(match["code"])] = line[match.start() :]
        for code, line in newest.items():
            grave = code in _GRAVE
            yield Finding(
                id="gpu.xid",
                severity=Severity.ERROR if grave else Severity.WARNING,
                node=node.name,
                message=f"Xid {code} since boot: {_MEANING.get(code, 'a fault of a GPU or of a program on it')}"
                f" ({line[:160]})",
                cause="overheating, power supply, a loose or failing card" if grave else "often the program itself",
                fix="reboot that machine (sudo reboot); where it comes back, change card, slot or power cable"
                if grave
                else "on it: sudo dmesg | grep -i xid; where it comes back without that program, suspect the card",
            )


def lost_in_run(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A running container that began with GPUs and lost them."""
    for node in fleet:
        for run_id in node.blind_runs:
            yield Finding(
                id="gpu.lost_in_run",
                severity=Severity.ERROR,
                node=node.name,
                message=f"the container of run {run_id} no longer sees its GPUs (NVML: Unknown Error)",
                cause="systemctl daemon-reload took its devices away (NVIDIA/nvidia-docker#1730)",
                fix=f"orch stop {run_id}, then orch launch --resume {run_id}; to prevent it, on {node.name}: write"
                ' "exec-opts": ["native.cgroupdriver=cgroupfs"] into /etc/docker/daemon.json and restart Docker',
            )


def persistence(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A driver that unloads between programs: seconds at each start, and a power limit that is forgotten."""
    for node in fleet:
        cards = [gpu for gpu in _used(node) if gpu.persistence is False]
        # a desktop keeps the driver loaded by itself
        if cards and not (node.host and node.host.desktop):
            yield Finding(
                id="gpu.persistence_off",
                severity=Severity.INFO,
                node=node.name,
                message=f"persistence mode is off on {_listed(cards)}",
                cause="the driver unloads when nobody uses the card: each start takes seconds more, and limits set"
                " with nvidia-smi are forgotten",
                fix="on it: sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1",
                auto_fix=Fix(
                    what=f"switch persistence mode on at {node.name} (until its next reboot)",
                    on_node=("sudo", "-n", "nvidia-smi", "-pm", "1"),
                ),
            )


def power_lowered(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A card whose limit is below its own: a laptop's power profile, or somebody's doing."""
    for node in fleet:
        for gpu in _used(node):
            if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < LOWERED * gpu.power_default_w:
                yield Finding(
                    id="gpu.power_lowered",
                    severity=Severity.WARNING,
                    node=node.name,
                    message=f"GPU {gpu.index} is held to {gpu.power_limit_w:.0f} W of its"
                    f" {gpu.power_default_w:.0f} W: every step waits for the slowest card",
                    cause="a power profile (laptops: battery, or `balanced`), or a limit set with nvidia-smi -pl",
                    fix=f"plug in the mains; on it: sudo nvidia-smi -i {gpu.index} -pl {gpu.power_default_w:.0f},"
                    " laptops: powerprofilesctl set performance",
                )


def _used(node: Examined) -> tuple[GpuFacts, ...]:
    """Cards that a run would use."""
    return node.gpus.host.gpus if node.gpus and node.gpus.host and node.spec.device != "cpu" else ()


def _listed(gpus: Sequence[GpuFacts]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


CHECKS = (xid, lost_in_run, persistence, power_lowered)
