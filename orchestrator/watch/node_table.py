"""Nodes for people: a row for each, with as many columns as fit, and details of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from contract.resources import GpuUsage, ResourceUsage
from orchestrator.render import runs
from orchestrator.render.bars import sparkline
from orchestrator.render.console import colour_of
from orchestrator.render.printable import printable
from orchestrator.render.table import GAP, Column, Table
from orchestrator.watch.views import NodeView

GREY = "bright_black"
NAME_COLUMNS = 14
"""Most columns of a node's name on a narrow terminal."""
MARK = "◀"
STYLES = {**runs.STYLES, **dict.fromkeys(("idle", "connecting"), GREY)}
"""Colors of the states of containers and runs."""


@dataclass(frozen=True, kw_only=True)
class NodeColumn:
    """A column of the table of nodes."""

    title: str
    drop: int
    """The highest is left out first where columns are scarce; 0 never."""
    width: int
    """Columns that it usually takes."""
    cell: Callable[[NodeView], str | Text]
    key: Callable[[NodeView], float] | None = None
    """Order by this value, the largest first; None: no order."""
    right: bool = False


def fitting(width: int, nodes: Sequence[NodeView]) -> list[NodeColumn]:
    """The columns of which something is known, as many as fit into `width`; the first ones always."""
    known = [one for one in COLUMNS if not one.drop or any(_text(one.cell(node)) for node in nodes)]
    names = max((len(node.name) for node in nodes), default=0)

    def needed() -> int:
        return sum((min(names, NAME_COLUMNS) if one.title == "node" else one.width) + GAP for one in known) - GAP

    while needed() > width and any(one.drop for one in known):
        known.remove(max(known, key=lambda one: one.drop))
    return known


def node_cells(node: NodeView, columns: Sequence[NodeColumn]) -> list[Text]:
    """The cells of a row. All of a silent node are grey: they are old."""
    cells = []
    for column in columns:
        cell = column.cell(node)
        text = cell.copy() if isinstance(cell, Text) else Text(printable(cell))
        if node.silent:
            text = Text(text.plain, "bold red" if column.title == "state" else GREY)
        cells.append(text)
    return cells


def ordered(nodes: Sequence[NodeView], by: str) -> list[NodeView]:
    """The nodes in the order of a column's values, the largest first; in their own order for any other word."""
    column = next((one for one in COLUMNS if one.title == by and one.key), None)
    if column is None or column.key is None:
        return list(nodes)
    return sorted(nodes, key=column.key, reverse=True)


def orders() -> tuple[str, ...]:
    """Words for `ordered`."""
    return ("node", *(one.title for one in COLUMNS if one.key))


def node_table(nodes: Sequence[NodeView], width: int) -> Table:
    """The nodes as a table without a terminal's abilities."""
    columns = fitting(width, nodes)
    return Table(
        columns=[Column(one.title, right=one.right) for one in columns],
        rows=[node_cells(node, columns) for node in nodes],
        wide=True,
    )


def _name(node: NodeView) -> Text:
    return Text(printable(node.name), "" if node.node_rank is None else colour_of(node.node_rank))


def node_state(node: NodeView) -> Text:
    if node.silent:
        return Text("no answer" if node.answered_s is None else f"silent {brief(node.answered_s)}", "bold red")
    return Text(node.state, STYLES.get(node.state, ""))


def brief(seconds: float) -> str:
    """`7 s`, `12 min`, `3 h`."""
    for limit, unit, size in ((100, "s", 1), (6000, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _note(node: NodeView) -> Text:
    if node.slow:
        return Text(f"{MARK} {node.slow}", "bold yellow")
    return Text(node.note, GREY if node.note == node.problem else "yellow")


def _gpus(node: NodeView) -> tuple[GpuUsage, ...]:
    return node.usage.gpus if node.usage else ()


def _of_usage(shape: Callable[[ResourceUsage], str]) -> Callable[[NodeView], str]:
    return lambda node: shape(node.usage) if node.usage else ""


def _cpu(node: NodeView) -> Text:
    percent = node.usage.cpu_percent if node.usage else None
    return Text() if percent is None else Text(f"{percent:.0f} %", "" if percent < 95 else "bold")


def _gpu_busy(node: NodeView) -> str:
    busy = [gpu.utilization_percent for gpu in _gpus(node) if gpu.utilization_percent is not None]
    several = f"{len(_gpus(node))}x " if len(_gpus(node)) > 1 else ""
    return f"{several}{fmean(busy):.0f} %" if busy else several.rstrip()


def _gpu_memory(node: NodeView) -> str:
    used = [gpu.memory_used_mib for gpu in _gpus(node) if gpu.memory_used_mib is not None]
    total = [gpu.memory_total_mib for gpu in _gpus(node) if gpu.memory_total_mib is not None]
    return f"{gib(sum(used))}/{gib(sum(total))} G" if used and total else ""


def _highest(name: str, unit: str, shape: Callable[[list[float]], float] = max) -> Callable[[NodeView], str]:
    def cell(node: NodeView) -> str:
        values = [value for gpu in _gpus(node) if (value := getattr(gpu, name)) is not None]
        return f"{shape(values):.0f}{unit}" if values else ""

    return cell


def gib(mib: float) -> str:
    return f"{mib / 1024:.1f}"


def _rates(first: float, second: float) -> str:
    """Two rates in MiB/s."""
    return f"{first:.1f}/{second:.1f}"


def _value(name: str) -> Callable[[NodeView], float]:
    return lambda node: float(getattr(node.usage, name)) if node.usage else -1.0


def _busiest(node: NodeView) -> float:
    return max((float(gpu.utilization_percent or 0) for gpu in _gpus(node)), default=-1.0)


COLUMNS: tuple[NodeColumn, ...] = (
    NodeColumn(title="#", drop=4, width=2, right=True,
               cell=lambda node: "" if node.node_rank is None else str(node.node_rank)),
    NodeColumn(title="node", drop=0, width=NAME_COLUMNS, cell=_name),
    NodeColumn(title="state", drop=0, width=11, cell=node_state),
    NodeColumn(title="CPU", drop=1, width=5, right=True, cell=_cpu, key=_value("cpu_percent")),
    NodeColumn(title="memory", drop=2, width=10, right=True, key=_value("ram_used_mib"),
               cell=_of_usage(lambda usage: f"{gib(usage.ram_used_mib)}/{gib(usage.ram_limit_mib)} G")),
    NodeColumn(title="GPU", drop=3, width=6, right=True, cell=_gpu_busy, key=_busiest),
    NodeColumn(title="GPU mem", drop=6, width=10, right=True, cell=_gpu_memory),
    NodeColumn(title="temp", drop=8, width=5, right=True, cell=_highest("temperature_c", " °C")),
    NodeColumn(title="power", drop=9, width=5, right=True, cell=_highest("power_w", " W", sum)),
    NodeColumn(title="clock", drop=12, width=8, right=True, cell=_highest("clock_mhz", " MHz", min)),
    NodeColumn(title="swap", drop=10, width=6, right=True, key=_value("swap_used_mib"),
               cell=_of_usage(lambda usage: f"{gib(usage.swap_used_mib)} G" if usage.swap_used_mib else "")),
    NodeColumn(title="disk MiB/s", drop=11, width=10, right=True, key=_value("disk_write_mib_s"),
               cell=_of_usage(lambda usage: _rates(usage.disk_read_mib_s, usage.disk_write_mib_s))),
    NodeColumn(title="net MiB/s", drop=7, width=9, right=True, key=_value("network_out_mib_s"),
               cell=_of_usage(lambda usage: _rates(usage.network_in_mib_s, usage.network_out_mib_s))),
    NodeColumn(title="part of step", drop=13, width=12, right=True, key=lambda node: node.compute_s or -1.0,
               cell=lambda node: "" if node.compute_s is None else f"{node.compute_s:.3g} s"),
    NodeColumn(title="note", drop=5, width=12, cell=_note),
)  # fmt: skip
"""Columns, the most important first."""


def _text(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell


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
