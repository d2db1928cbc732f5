"""Results of a connectivity test, for people: who sends how much to whom, and whom to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.checks.slow_links import SlowLinks
from orchestrator.render.printable import printable
from orchestrator.render.table import Column, Table
from orchestrator.specs.connectivity import ConnectivityResult, Matrix

SLOW = "!"


def connectivity_view(verdict: ConnectivityResult, slow: SlowLinks) -> RenderableType:
    """The collectives, both matrices, and in words what is slow."""
    return Group(*_collectives(verdict), *_matrices(verdict, slow), *_in_words(verdict, slow))


def link_matrix(nodes: Sequence[str], matrix: Matrix, marked: Sequence[tuple[int, int]], head: str) -> Table:
    """From row to column. `marked` pairs bear a mark, both ways."""
    found = {pair for first, second in marked for pair in ((first, second), (second, first))}
    rows = []
    for row, (node, cells) in enumerate(zip(nodes, matrix, strict=True)):
        values = (
            "–" if cell is None else f"{SLOW if (row, column) in found else ''}{_short(cell)}"
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
            f" {_short(together.mbit_s)} Mbit/s; of a few bytes in {_ms(verdict.barrier_ms)}"
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
    names, usual = verdict.nodes, _short(slow.typical_mbit_s)
    for rank in slow.nodes:
        best = max(verdict.rate(*pair) for pair in verdict.pairs() if rank in pair)
        yield _warning(
            f"{names[rank]}'s links carry {_short(best)} Mbit/s at most, the others' {usual}: Wi-Fi, a slow port, a bad"
            " cable?"
        )
    for first, second in slow.pairs:
        rate = _short(verdict.rate(first, second))
        yield _warning(f"{names[first]} and {names[second]} reach {rate} Mbit/s together, the others {usual}")
    for first, second in slow.late:
        took, typical = _ms(verdict.latency(first, second)), _ms(slow.typical_ms)
        yield _warning(f"a word between {names[first]} and {names[second]} takes {took}, usually {typical}")


def _warning(text: str) -> Text:
    return Text(printable(f"{SLOW} {text}"), style="yellow")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"
