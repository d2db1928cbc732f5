"""A snapshot of machines and their run for people: a few lines about the run, a row for each node, details of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from contract.cost_model.units import duration
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.checks.output_progress import LONGEST_S
from orchestrator.render.bars import bar, sparkline
from orchestrator.render.console import colour_of
from orchestrator.render.live import STALLED_S, Fault, LiveNode, LiveRun, LiveSnapshot
from orchestrator.render.printable import counted, printable
from orchestrator.render.runs import STYLES, SWAP_MIB
from orchestrator.render.table import GAP, Column, Table
from orchestrator.render.times import clock
from orchestrator.specs.run import State

SHARE = 0.05
"""Least share of the time that is shown."""
GREY = "bright_black"
NAME_COLUMNS = 14
"""Most columns of a node's name on a narrow terminal."""
MARK = "◀"


@dataclass(frozen=True, kw_only=True)
class NodeColumn:
    """A column of the table of nodes."""

    title: str
    drop: int
    """The highest is left out first where columns are scarce; 0 never."""
    width: int
    """Columns that it usually takes."""
    cell: Callable[[LiveNode, LiveSnapshot], str | Text]
    key: Callable[[LiveNode, LiveSnapshot], float | str] | None = None
    """Order by this value, the largest first; None: no order."""
    right: bool = False


# ── The run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_lines(shown: LiveSnapshot, width: int, *, ascii_only: bool = False) -> list[Text]:
    """A few lines of at most `width` columns about the run; without a run, about the machines."""
    run = shown.run
    if run is None:
        known = "no run" if shown.looked else "looking for a run"
        heard = sum(not node.silent and node.heard_s is not None for node in shown.nodes)
        return [_cut(Text.assemble((known, "bold"), f"  {heard} of {counted(len(shown.nodes), 'node')} answer"), width)]
    silent = [node.name for node in shown.nodes if node.silent and node.node_rank is not None]
    state = Text(run.state, _style(run.state))
    title = Text.assemble("run ", (printable(run.run_id), "bold"), "  ", state)
    if silent and run.state == State.RUNNING.value:
        title.append(f", {', '.join(silent)} silent", "bold red")
    if run.attempt and run.attempt > 1:
        title.append(f"  attempt {run.attempt}")
    if run.restarting:
        title.append("  restarting", "bold yellow")
    if run.as_of:
        title.append("  from the record on this computer", GREY)
    parts = [*_progress(run, shown, width, ascii_only=ascii_only), *_figures(run)]
    lines = [title, *_flow(parts, width)]
    if run.losses:
        room = max(1, min(60, width - 14))
        lines.append(Text.assemble("loss ", (sparkline(run.losses, room, ascii_only=ascii_only), "cyan"), _loss(run)))
    if why := run.straggler:
        where = f"{why.node} " if why.node else ""
        lines.append(Text.assemble((f"{why.reason}: ", "bold yellow"), f"{where}{why.text}"))
    if run.said:
        lines.append(Text(run.said, GREY))
    if run.reason:
        lines.append(Text(run.reason))
    return [_cut(line, width) for line in lines]


def _progress(run: LiveRun, shown: LiveSnapshot, width: int, *, ascii_only: bool) -> Iterator[Text]:
    if run.step is None and run.output:
        yield Text(run.output)
        return
    if run.step is None:
        yield Text("no step reported yet" if run.state == State.RUNNING.value else "no step reported", GREY)
        return
    if run.progress is not None and run.final_step:
        if width >= 70 and not ascii_only:
            done = bar(run.progress, 1.0, width=20, style="green")
            yield Text.assemble(done, ("·" * (20 - done.cell_len), GREY), f" {run.progress:.0%}")
        yield Text(f"step {run.step:,}/{run.final_step:,}" + f" ({run.progress:.0%})" * (width < 70 or ascii_only))
    else:
        yield Text(f"step {run.step:,}")
    if run.remaining_s is not None and 0 < run.remaining_s < LONGEST_S:
        yield Text(f"{duration(run.remaining_s)} left, until {clock(shown.at + run.remaining_s, shown.at)}", "bold")
    if run.liveness:
        yield Text(run.liveness, "bold red" if run.liveness.startswith("!") else "yellow")
    elif run.step_age_s is not None and run.step_age_s > STALLED_S and run.state == State.RUNNING.value:
        yield Text(f"last step {duration(run.step_age_s)} ago")


def _figures(run: LiveRun) -> Iterator[Text]:
    if run.per_s is not None and not run.restarting and not run.output:
        forecast = f" ({run.of_forecast:.0%} of the forecast)" if run.of_forecast else ""
        yield Text(f"{run.per_s:,.0f} {run.unit}/s{forecast}")
    for share, what in ((run.waiting, "waiting for data"), (run.exchanging, "exchanging")):
        if share is not None and share >= SHARE:
            yield Text(f"{share:.0%} {what}")
    if run.restarts:
        yield Text(counted(run.restarts, "restart"), "yellow")


def _loss(run: LiveRun) -> str:
    return "" if run.loss is None else f" {run.loss:.4g}"


def _flow(parts: Sequence[Text], width: int) -> list[Text]:
    """The parts, as many on a line as fit."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append(" · ").append(part)
        else:
            lines.append(part.copy())
    return lines


def _cut(line: Text, width: int) -> Text:
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def _style(state: str) -> str:
    return next((style for known, style in STYLES.items() if known.value == state), "")


# ── Nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fitting(width: int, shown: LiveSnapshot) -> list[NodeColumn]:
    """The columns of which something is known, as many as fit into `width`; the first ones always."""
    known = [one for one in COLUMNS if not one.drop or any(_text(one.cell(node, shown)) for node in shown.nodes)]
    names = max((len(node.name) for node in shown.nodes), default=0)

    def needed() -> int:
        return sum((min(names, NAME_COLUMNS) if one.title == "node" else one.width) + GAP for one in known) - GAP

    while needed() > width and any(one.drop for one in known):
        known.remove(max(known, key=lambda one: one.drop))
    return known


def node_cells(node: LiveNode, shown: LiveSnapshot, columns: Sequence[NodeColumn]) -> list[Text]:
    """The cells of a row. All of a silent node are grey: they are old."""
    cells = []
    for column in columns:
        cell = column.cell(node, shown)
        text = cell.copy() if isinstance(cell, Text) else Text(printable(cell))
        if node.silent:
            text = Text(text.plain, "bold red" if column.title == "state" else GREY)
        cells.append(text)
    return cells


def ordered(shown: LiveSnapshot, by: str) -> list[LiveNode]:
    """The nodes in the order of a column's values, the largest first; in their own order for any other word."""
    column = next((one for one in COLUMNS if one.title == by and one.key), None)
    if column is None or column.key is None:
        return list(shown.nodes)
    key = column.key
    return sorted(shown.nodes, key=lambda node: key(node, shown), reverse=True)


def orders() -> tuple[str, ...]:
    """Words for `ordered`."""
    return ("node", *(one.title for one in COLUMNS if one.key))


def node_table(shown: LiveSnapshot, width: int) -> Table:
    """The nodes as a table without a terminal's abilities."""
    columns = fitting(width, shown)
    return Table(
        columns=[Column(one.title, right=one.right) for one in columns],
        rows=[node_cells(node, shown, columns) for node in shown.nodes],
        wide=True,
    )


def _name(node: LiveNode, _shown: LiveSnapshot) -> Text:
    return Text(printable(node.name), "" if node.node_rank is None else colour_of(node.node_rank))


def _state(node: LiveNode, _shown: LiveSnapshot) -> Text:
    if node.silent:
        return Text("no answer" if node.heard_s is None else f"silent {_brief(node.heard_s)}", "bold red")
    return Text(node.state, _style(node.state) or (GREY if node.state in ("idle", "connecting") else ""))


def _brief(seconds: float) -> str:
    """`7 s`, `12 min`, `3 h`."""
    for limit, unit, size in ((100, "s", 1), (6000, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _note(node: LiveNode, shown: LiveSnapshot) -> Text:
    why = shown.run.straggler if shown.run else None
    if why and why.node == node.name:
        return Text(f"{MARK} {why.reason}", "bold yellow")
    if slowed := sorted({gpu.slowed_by for gpu in _gpus(node) if gpu.slowed_by}):
        return Text(printable(f"GPU slowed: {', '.join(slowed)}"), "yellow")
    if node.usage and node.usage.swap_used_mib >= SWAP_MIB:
        return Text("swapping", "yellow")
    return Text(printable(node.problem), GREY)


def _gpus(node: LiveNode) -> tuple[GpuUsage, ...]:
    return node.usage.gpus if node.usage else ()


def _of_usage(shape: Callable[[ResourceUsage], str]) -> Callable[[LiveNode, LiveSnapshot], str]:
    return lambda node, _shown: shape(node.usage) if node.usage else ""


def _cpu(node: LiveNode, _shown: LiveSnapshot) -> Text:
    return _percent(node.usage.cpu_percent) if node.usage else Text()


def _percent(value: float) -> Text:
    return Text(f"{value:.0f} %", "" if value < 95 else "bold")


def _gpu_busy(node: LiveNode, _shown: LiveSnapshot) -> str:
    busy = [gpu.utilization_percent for gpu in _gpus(node) if gpu.utilization_percent is not None]
    several = f"{len(_gpus(node))}x " if len(_gpus(node)) > 1 else ""
    return f"{several}{fmean(busy):.0f} %" if busy else several.rstrip()


def _gpu_memory(node: LiveNode, _shown: LiveSnapshot) -> str:
    used = [gpu.memory_used_mib for gpu in _gpus(node) if gpu.memory_used_mib is not None]
    total = [gpu.memory_total_mib for gpu in _gpus(node) if gpu.memory_total_mib is not None]
    return f"{_gib(sum(used))}/{_gib(sum(total))} G" if used and total else ""


def _highest(
    name: str, unit: str, shape: Callable[[list[float]], float] = max
) -> Callable[[LiveNode, LiveSnapshot], str]:
    def cell(node: LiveNode, _shown: LiveSnapshot) -> str:
        values = [value for gpu in _gpus(node) if (value := getattr(gpu, name)) is not None]
        return f"{shape(values):.0f}{unit}" if values else ""

    return cell


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f}"


def _rates(first: float, second: float) -> str:
    """Two rates in MiB/s."""
    return f"{first:.1f}/{second:.1f}"


def _value(name: str) -> Callable[[LiveNode, LiveSnapshot], float]:
    return lambda node, _shown: float(getattr(node.usage, name)) if node.usage else -1.0


def _busiest(node: LiveNode, _shown: LiveSnapshot) -> float:
    return max((float(gpu.utilization_percent or 0) for gpu in _gpus(node)), default=-1.0)


COLUMNS: tuple[NodeColumn, ...] = (
    NodeColumn(title="#", drop=4, width=2, right=True,
               cell=lambda node, _: "" if node.node_rank is None else str(node.node_rank)),
    NodeColumn(title="node", drop=0, width=NAME_COLUMNS, cell=_name),
    NodeColumn(title="state", drop=0, width=11, cell=_state),
    NodeColumn(title="CPU", drop=1, width=5, right=True, cell=_cpu, key=_value("cpu_percent")),
    NodeColumn(title="memory", drop=2, width=10, right=True, key=_value("ram_used_mib"),
               cell=_of_usage(lambda usage: f"{_gib(usage.ram_used_mib)}/{_gib(usage.ram_limit_mib)} G")),
    NodeColumn(title="GPU", drop=3, width=6, right=True, cell=_gpu_busy, key=_busiest),
    NodeColumn(title="GPU mem", drop=6, width=10, right=True, cell=_gpu_memory),
    NodeColumn(title="temp", drop=8, width=5, right=True, cell=_highest("temperature_c", " °C")),
    NodeColumn(title="power", drop=9, width=5, right=True, cell=_highest("power_w", " W", sum)),
    NodeColumn(title="clock", drop=12, width=8, right=True, cell=_highest("clock_mhz", " MHz", min)),
    NodeColumn(title="swap", drop=10, width=6, right=True, key=_value("swap_used_mib"),
               cell=_of_usage(lambda usage: f"{_gib(usage.swap_used_mib)} G" if usage.swap_used_mib else "")),
    NodeColumn(title="disk MiB/s", drop=11, width=10, right=True, key=_value("disk_write_mib_s"),
               cell=_of_usage(lambda usage: _rates(usage.disk_read_mib_s, usage.disk_write_mib_s))),
    NodeColumn(title="net MiB/s", drop=7, width=9, right=True, key=_value("network_out_mib_s"),
               cell=_of_usage(lambda usage: _rates(usage.network_in_mib_s, usage.network_out_mib_s))),
    NodeColumn(title="part of step", drop=13, width=12, right=True, key=lambda node, _: node.compute_s or -1.0,
               cell=lambda node, _: "" if node.compute_s is None else f"{node.compute_s:.3g} s"),
    NodeColumn(title="note", drop=5, width=12, cell=_note),
)  # fmt: skip
"""Columns, the most important first."""


# ── Details and faults ────────────────────────────────────────────────────────────────────────────────────────────────


def detail_lines(node: LiveNode, shown: LiveSnapshot, width: int) -> list[Text]:
    """All that is known of one node: each GPU on a line of its own."""
    lines = [Text.assemble((printable(node.name), "bold"), "  ", _state(node, shown))]
    if node.problem:
        lines.append(Text(printable(node.problem)))
    if node.usage is None:
        return [*lines, Text("its resources are not known yet", GREY)]
    use = node.usage
    lines += [
        _labelled("CPU", f"{use.cpu_percent:.0f} % of {use.cpus:g}", node.cpu_history, width),
        Text(f"memory   {_gib(use.ram_used_mib)} of {_gib(use.ram_limit_mib)} GiB, swap {_gib(use.swap_used_mib)} GiB"),
        Text(
            f"disk     {use.disk_read_mib_s:.1f} read, {use.disk_write_mib_s:.1f} written MiB/s"
            + ("" if use.disk_free_mib is None else f", {_gib(use.disk_free_mib)} GiB free")
        ),
        Text(f"network  {use.network_in_mib_s:.1f} in, {use.network_out_mib_s:.1f} out MiB/s"),
    ]
    if node.compute_s is not None:
        lines.append(Text(f"step     {node.compute_s:.3g} s for its part"))
    lines += [_gpu_line(gpu) for gpu in use.gpus] or [Text("GPU      none")]
    if node.gpu_history:
        lines.append(_labelled("GPUs", "", node.gpu_history, width))
    if node.silent and node.usage_age_s is not None:
        lines.append(Text(f"as of {_brief(node.usage_age_s)} ago", "bold red"))
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
        words.append(f"{_gib(gpu.memory_used_mib)} of {_gib(gpu.memory_total_mib)} GiB")
    for value, unit in ((gpu.temperature_c, "°C"), (gpu.power_w, "W"), (gpu.clock_mhz, "MHz")):
        words += [] if value is None else [f"{value:.0f} {unit}"]
    line = Text(f"GPU {gpu.index:<4} {', '.join(words)}")
    return line.append(printable(f", slowed by {gpu.slowed_by}"), "yellow") if gpu.slowed_by else line


def fault_line(fault: Fault, now: float) -> Text:
    return Text.assemble((f"{clock(fault.at, now)} ", GREY), printable(fault.text))


def fault_lines(shown: LiveSnapshot, most: int) -> list[Text]:
    """The newest faults, the newest last."""
    return [fault_line(fault, shown.at) for fault in shown.faults[-most:]] if most > 0 else []


def _text(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell
