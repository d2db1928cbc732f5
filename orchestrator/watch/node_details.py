"""All that is known of one node, for people: each GPU on a line of its own."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from contract.resources import GpuUsage
from orchestrator.render.bars import sparkline
from orchestrator.render.printable import printable
from orchestrator.watch.node_table import GREY, brief, gib, node_state
from orchestrator.watch.node_view import NodeView


def detail_lines(node: NodeView, width: int) -> list[Text]:
    """All that is known of one node: each GPU on a line of its own."""
    lines = [Text.assemble((printable(node.name), "bold"), "  ", node_state(node))]
    if node.problem:
        lines.append(Text(printable(node.problem)))
    if node.usage is None:
        return [*lines, Text("its resources are not known yet", GREY)]
    use = node.usage
    lines += [
        _labelled("CPU", f"{use.cpu_percent:.0f} % of {use.cpus:g}", node.cpu_history, width),
        Text(f"memory   {gib(use.ram_used_mib)} of {gib(use.ram_limit_mib)} GiB, swap {gib(use.swap_used_mib)} GiB"),
        Text(
            f"disk     {use.disk_read_mib_s:.1f} read, {use.disk_write_mib_s:.1f} written MiB/s"
            + ("" if use.disk_free_mib is None else f", {gib(use.disk_free_mib)} GiB free")
        ),
        Text(f"network  {use.network_in_mib_s:.1f} in, {use.network_out_mib_s:.1f} out MiB/s"),
    ]
    if node.compute_s is not None:
        lines.append(Text(f"step     {node.compute_s:.3g} s for its part"))
    lines += [_gpu_line(gpu) for gpu in use.gpus] or [Text("GPU      none")]
    if node.gpu_history:
        lines.append(_labelled("GPUs", "", node.gpu_history, width))
    if node.silent and node.usage_age_s is not None:
        lines.append(Text(f"as of {brief(node.usage_age_s)} ago", "bold red"))
    return lines


def _labelled(label: str, text: str, values: Sequence[float], width: int) -> Text:
    room = max(1, min(40, width - 11 - len(text)))
    return Text.assemble(
        f"{label:<8} {text}  " if text else f"{label:<8} ", (sparkline(values, room, scale=(0.0, 100.0)), "cyan")
    )


def _gpu_line(gpu: GpuUsage) -> Text:
    words = [printable(gpu.name)]
    words += [] if gpu.utilization_percent is None else [f"{gpu.utilization_percent} %"]
    if gpu.memory_used_mib is not None and gpu.memory_total_mib is not None:
        words.append(f"{gib(gpu.memory_used_mib)} of {gib(gpu.memory_total_mib)} GiB")
    for value, unit in ((gpu.temperature_c, "°C"), (gpu.power_w, "W"), (gpu.clock_mhz, "MHz")):
        words += [] if value is None else [f"{value:.0f} {unit}"]
    line = Text(f"GPU {gpu.index:<4} {', '.join(words)}")
    return line.append(printable(f", slowed by {gpu.slowed_by}"), "yellow") if gpu.slowed_by else line
