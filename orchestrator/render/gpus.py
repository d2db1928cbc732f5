"""The GPUs of all nodes for people: host and container side by side, and below it what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.render.findings import counts, finding_lines
from orchestrator.render.printable import counted
from orchestrator.render.table import Column, Table
from orchestrator.specs.facts import GpuFacts
from orchestrator.specs.gpus import ContainerAnswer, GpuReport, NodeGpus, TorchAnswer


def gpu_report(report: GpuReport, *, wide: bool = False) -> RenderableType:
    """The table, the findings, and one closing line."""
    columns = (Column("node"), Column("host", wraps=True), Column("container", wraps=True))
    rows = list(_folded_rows(report.nodes, wide=wide))
    table = Table(columns=columns, rows=rows, spaced=any("\n" in host for _, host, _ in rows), wide=wide)
    return Group(table, Text(), *finding_lines(report.findings), _closing(report))


def gpu_data(report: GpuReport) -> dict[str, Any]:
    """The same for programs: every fact, every finding unfolded, and whether a launch would be refused."""
    return {**asdict(report), "unfit": report.unfit}


def _folded_rows(nodes: Sequence[NodeGpus], *, wide: bool) -> Iterator[tuple[str, str, str]]:
    """A row for each GPU, and one for all nodes without a GPU that say the same (with `wide`, one for each)."""
    same: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if node.host and node.host.gpus:
            for gpu in node.host.gpus:
                yield f"{node.node} {gpu.index}", _gpu(gpu), _container(node, gpu)
        else:
            same.setdefault((_without_gpu(node), node.node if wide else ""), []).append(node.node)
    for (host, _), names in same.items():
        yield ", ".join(names), host, "–"


def _gpu(gpu: GpuFacts) -> str:
    capability = f", {gpu.compute_capability[0]}.{gpu.compute_capability[1]}" if gpu.compute_capability else ""
    cuda = f", CUDA {gpu.cuda_version}" if gpu.cuda_version else ""
    errors = f" ({gpu.ecc_uncorrected} uncorrected)" if gpu.ecc_uncorrected else ""
    lines = [
        f"{gpu.name or 'a GPU without a name'}{capability}",
        f"driver {gpu.driver_version or '?'}{cuda}",
        f"{_number(gpu.memory_used_mib)} / {_number(gpu.memory_total_mib)} MiB, {_number(gpu.utilization_percent)} %,"
        f" {_number(gpu.temperature_c)} °C, {_number(gpu.power_draw_w)} / {_number(gpu.power_limit_w)} W",
        f"ECC {_switch(gpu.ecc_enabled)}{errors}, MIG {_switch(gpu.mig_enabled)}",
        gpu.uuid,
    ]
    lines += [f"pid {p.pid} {p.name.rsplit('/', 1)[-1][:24]} {_number(p.used_memory_mib)} MiB" for p in gpu.processes]
    slowed = [reason for reason in gpu.throttle_reasons if reason != "gpu_idle"]
    if slowed:
        lines.append(f"slowed by {', '.join(slowed)}")
    return "\n".join(line for line in lines if line)


def _container(node: NodeGpus, gpu: GpuFacts) -> str:
    answer = node.container
    if node.error:
        return "the engine did not answer"
    if answer is None:
        return "not used: device cpu" if node.device == "cpu" else "not asked"
    if answer.found is None:
        return f"no image {answer.image}"
    if answer.refused:
        return "did not start with GPUs"
    return "\n".join((_seen_by_smi(answer, gpu), *_seen_by_torch(answer.torch, gpu)))


def _seen_by_smi(answer: ContainerAnswer, gpu: GpuFacts) -> str:
    if answer.smi is None or answer.smi.absent:
        return "no nvidia-smi in it"
    inside = next((other for other in answer.smi.gpus if other.uuid == gpu.uuid), None)
    if inside is None:
        return "✗ this card is not there"
    cuda = f", CUDA {inside.cuda_version}" if inside.cuda_version else ""
    return f"✓ same card\ndriver {inside.driver_version}{cuda}"


def _seen_by_torch(torch: TorchAnswer | None, gpu: GpuFacts) -> Iterator[str]:
    if torch is None or not torch.version:
        yield "torch did not answer"
        return
    yield f"torch {torch.version}, {f'CUDA {torch.cuda}' if torch.cuda else 'CPU build'}"
    if not torch.available:
        yield "✗ CUDA not available"
        return
    device = next((device for device in torch.devices if device.uuid == gpu.uuid), None)
    yield f"✓ {device.name}" if device else f"✓ {len(torch.devices)} CUDA device(s)"


def _without_gpu(node: NodeGpus) -> str:
    if node.host is None:
        return "not examined"
    if node.host.absent:
        return "CPU only" if node.device != "cuda" else "no NVIDIA driver"
    return node.host.detail or "no GPU"


def _closing(report: GpuReport) -> Text:
    gpus = sum(len(node.host.gpus) for node in report.nodes if node.host)
    text = f"{counted(len(report.nodes), 'node')}, {counted(gpus, 'GPU')}: "
    return Text(text + (counts(report.findings) or "no problems found"), style="bold red" if report.unfit else "bold")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _switch(value: bool | None) -> str:
    return "–" if value is None else "on" if value else "off"
