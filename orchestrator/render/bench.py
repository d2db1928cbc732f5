"""Measurements of speed, memory, disk and links as tables, bars and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.cost_model.measurement import HostStats, Measurement, NodeSpeed
from contract.cost_model.units import seconds
from orchestrator.checks.slow_links import SlowLinks
from orchestrator.render.bars import bar
from orchestrator.render.printable import printable
from orchestrator.render.table import Column, Table
from orchestrator.specs.connectivity import ConnectivityResult, Matrix

GIB = 1 << 30
TIGHT = 0.9
"""Share of the memory above which evaluation and checkpoints, which were not measured, may not fit."""
STARVED = 1.25
"""A dataloader is a bottleneck below this many times the samples that are computed."""


def bench_view(measured: Measurement, *, wide: bool = False) -> RenderableType:
    """Return the table, the bars, the links, and remarks."""
    return Group(_table(measured, wide=wide), Text(), *_bars(measured), *_links(measured), *_remarks(measured))


def computed_per_s(node: NodeSpeed, measured: Measurement) -> float:
    """Samples per second of this node in a training whose step is shared equally."""
    share = measured.samples_per_step / len(measured.nodes)
    return share / (share * node.sample_s + node.step_s)


def _around(measured: Measurement) -> tuple[HostStats, ...]:
    return measured.around if len(measured.around) == len(measured.nodes) else (HostStats(),) * len(measured.nodes)


def _table(measured: Measurement, *, wide: bool) -> Table:
    unit = "" if measured.unit == "samples" else f"{measured.unit}/s"
    columns = (
        Column("node"), Column("a sample", 2, right=True), Column("optimizer", 5, right=True),
        Column("batch", 4, right=True), Column("samples/s", right=True), Column(unit, 1, right=True),
        Column("loader/s", 6, right=True), Column("memory", 3, right=True), Column("disk write", 7, right=True),
        Column("read", 8, right=True),
    )  # fmt: skip
    rows = []
    for node, around in zip(measured.nodes, _around(measured), strict=True):
        rate = computed_per_s(node, measured)
        rows.append(
            (
                node.node, seconds(node.sample_s), seconds(node.step_s), str(node.micro_batch), _number(rate),
                _number(rate * measured.units_per_sample) if unit else "", _number(around.loaded_per_s),
                _memory(around), _rate(around.disk_write), _rate(around.disk_read),
            )
        )  # fmt: skip
    return Table(columns=columns, rows=rows, wide=wide)


def _bars(measured: Measurement) -> Iterator[Text]:
    rates = [computed_per_s(node, measured) * measured.units_per_sample for node in measured.nodes]
    width = max(len(node.node) for node in measured.nodes)
    for name, rate in zip((node.node for node in measured.nodes), rates, strict=True):
        head = Text(printable(f"{name:<{width}}  "))
        yield Text.assemble(head, bar(rate, max(rates), style="green"), f" {_number(rate)} {measured.unit}/s")


def _links(measured: Measurement) -> Iterator[RenderableType]:
    if len(measured.nodes) < 2:
        return
    if measured.links:
        yield Text()
        mbit_s = tuple(tuple(rate * 8 / 1e6 or None for rate in row) for row in measured.links)
        yield link_matrix([node.node for node in measured.nodes], mbit_s, (), "Mbit/s to")
    yield Text(f"all nodes sent at once; one round takes {measured.latency_s * 1e3:.2g} ms", style="dim")


def _remarks(measured: Measurement) -> Iterator[Text]:
    for node, around in zip(measured.nodes, _around(measured), strict=True):
        peak, limit = _held(around)
        if limit and peak > TIGHT * limit:
            yield _warning(f"{node.node} holds {_memory(around)}: a smaller --micro-batch-size leaves room")
        if 0 < around.loaded_per_s < STARVED / node.sample_s:
            yield _warning(
                f"{node.node} loads {_number(around.loaded_per_s)} samples/s and computes {_number(1 / node.sample_s)}:"
                " --num-workers, or prepared data, would let it compute more"
            )


def _held(around: HostStats) -> tuple[float, float]:
    """Peak and limit of the GPU's memory, or of the host's without a GPU."""
    if around.gpu_memory:
        return around.gpu_peak, around.gpu_memory
    return around.memory_peak, around.memory_limit


def _memory(around: HostStats) -> str:
    peak, limit = _held(around)
    return f"{peak / GIB:.2g} of {limit / GIB:.2g} GiB" if limit else "–"


def _rate(value: float) -> str:
    return f"{value / 1e6:,.0f} MB/s" if value else "–"


def _number(value: float) -> str:
    return "–" if not value else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _warning(text: str) -> Text:
    return Text(printable(f"{SLOW} {text}"), style="yellow")


SLOW = "!"


def connectivity_view(verdict: ConnectivityResult, slow: SlowLinks) -> RenderableType:
    """The collectives, both matrices, and in words what is slow."""
    return Group(*_collectives(verdict), *_matrices(verdict, slow), *_in_words(verdict, slow))


def link_matrix(nodes: Sequence[str], matrix: Matrix, marked: Sequence[tuple[int, int]], head: str) -> Table:
    """Draw the links from row to column. `marked` pairs bear a mark, both ways."""
    found = {pair for first, second in marked for pair in ((first, second), (second, first))}
    rows = []
    for row, (node, cells) in enumerate(zip(nodes, matrix, strict=True)):
        values = (
            "–" if cell is None else f"{SLOW if (row, column) in found else ''}{_number(cell)}"
            for column, cell in enumerate(cells)
        )
        rows.append((node, *values))
    return Table(columns=(Column(head), *(Column(node, right=True) for node in nodes)), rows=rows)


def _collectives(verdict: ConnectivityResult) -> Iterator[Text]:
    ranks = len(verdict.nodes)
    yield Text(printable(f"✓ {verdict.backend} on {verdict.device}: right on all {ranks}: {', '.join(verdict.checks)}"))
    if verdict.lacking:
        yield Text(printable(f"  {verdict.backend} has no {', '.join(verdict.lacking)}"), style="dim")
    together = verdict.all_reduce
    if ranks > 1:
        yield Text(
            f"  all-reduce of {together.bytes / 1e6:.3g} MB in {_ms(together.seconds * 1e3)}: each sends"
            f" {_number(together.mbit_s)} Mbit/s; of a few bytes in {_ms(verdict.barrier_ms)}"
        )


def _matrices(verdict: ConnectivityResult, slow: SlowLinks) -> Iterator[RenderableType]:
    if len(verdict.nodes) < 2:
        return
    of_nodes = [pair for pair in verdict.pairs() if set(pair) & set(slow.nodes)]
    yield Text()
    yield link_matrix(verdict.nodes, verdict.mbit_s, [*slow.pairs, *of_nodes], "Mbit/s to")
    yield Text()
    yield link_matrix(verdict.nodes, verdict.latency_ms, slow.late, "ms there and back")


def _in_words(verdict: ConnectivityResult, slow: SlowLinks) -> Iterator[Text]:
    names, usual = verdict.nodes, _number(slow.typical_mbit_s)
    for rank in slow.nodes:
        best = max(verdict.rate(*pair) for pair in verdict.pairs() if rank in pair)
        yield _warning(
            f"{names[rank]}'s links carry {_number(best)} Mbit/s at most, the others' {usual}: Wi-Fi, a slow port, a"
            " bad cable?"
        )
    for first, second in slow.pairs:
        rate = _number(verdict.rate(first, second))
        yield _warning(f"{names[first]} and {names[second]} reach {rate} Mbit/s together, the others {usual}")
    for first, second in slow.late:
        took, typical = _ms(verdict.latency(first, second)), _ms(slow.typical_ms)
        yield _warning(f"a word between {names[first]} and {names[second]} takes {took}, usually {typical}")


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"
