"""A capacity plan as tables: step time by number of nodes and by sync method, effect of each node, larger steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.cost_model.capacity import CapacityPlan, NodeEffect
from contract.cost_model.step_time import StepTime
from contract.cost_model.units import seconds
from orchestrator.render.bars import bar, stacked
from orchestrator.render.forecast import CHOSEN, NAMED
from orchestrator.render.grid import grid
from orchestrator.render.printable import printable

COMPUTE, EXCHANGE = ("█", "green"), ("░", "yellow")
BAR = 30
EFFECT = {"helps": "green", "hurts": "red"}


def capacity_view(capacity: CapacityPlan) -> RenderableType:
    """Return four tables and the warnings."""
    return Group(
        *_by_size(capacity), *_by_sync(capacity), *_members(capacity), *_larger(capacity), *_warnings(capacity)
    )


def _by_size(capacity: CapacityPlan) -> Iterator[Text]:
    chosen, unit = capacity.chosen, capacity.unit
    finishes = capacity.samples is not None
    head = ["", "nodes", "sync", "step", f"{unit}/s", f"x {capacity.alone.nodes[0]}", "exchange"]
    lines = [head + ["done in"] * finishes]
    for row in capacity.by_size:
        # The choice prefers a more exact method within 5 % of the fastest one, and replaces it here.
        shown = chosen if len(row.nodes) == len(chosen.nodes) else row
        finish = capacity.finish_s(shown)
        lines.append([
            CHOSEN if shown is chosen else "", _names(shown.nodes), shown.sync, seconds(shown.step_s),
            f"{shown.per_s:,.0f}", f"{shown.speedup:.2f}", f"{shown.exchange_s / shown.step_s:.0%}",
            *([_duration(finish)] if finish is not None else []),
        ])  # fmt: skip
    styles = ["bold", *("bold green" if line[0] else "" for line in lines[1:])]
    yield Text(f"a step of {capacity.samples_per_step} samples, by number of nodes", style="bold")
    most = max(row.step_s for row in capacity.by_size)
    bars = [Text(f"  {COMPUTE[0]} compute {EXCHANGE[0]} exchange")]
    for row in capacity.by_size:
        shown = chosen if len(row.nodes) == len(chosen.nodes) else row
        bars.append(Text("  ") + _bar(shown, most))
    for line, drawn in zip(grid(lines, left=3, styles=styles), bars, strict=True):
        yield line + drawn


def _by_sync(capacity: CapacityPlan) -> Iterator[Text]:
    """Each sync method with its best number of nodes."""
    if not capacity.rows:
        return
    best: dict[str, StepTime] = {}
    for row in capacity.rows:
        if row.sync not in best or row.per_s > best[row.sync].per_s:
            best[row.sync] = row
    lines = [["--sync", "nodes", "step", f"{capacity.unit}/s", f"x {capacity.alone.nodes[0]}", "sent a step"]]
    for row in best.values():
        sent = f"{row.sent_bytes / 1e6:,.3g} MB"
        lines.append([
            row.sync + ("" if row.proven else " ?"), _names(row.nodes), seconds(row.step_s), f"{row.per_s:,.0f}",
            f"{row.speedup:.2f}", sent,
        ])  # fmt: skip
    most = max(row.step_s for row in best.values())
    drawn = [Text(), *(Text("  ") + _bar(row, most) for row in best.values())]
    yield from (Text(), Text("by sync method, each with its best nodes", style="bold"))
    styles = ["bold", *("" if row.proven else "dim" for row in best.values())]
    for line, tail in zip(grid(lines, left=2, styles=styles), drawn, strict=True):
        yield line + tail
    if not all(row.proven for row in best.values()):
        yield Text("? its loss is not known to stay within 0.5 % of fp32's: taken only where asked for", style="dim")


def _members(capacity: CapacityPlan) -> Iterator[Text]:
    lines = [["node", "", "with it", "without", "alone", "share", "passes of"]]
    for member in capacity.members:
        lines.append([
            member.node, member.effect, seconds(member.with_s), seconds(member.without_s) if member.without_s else "–",
            seconds(member.alone_s), *_share(member),
        ])  # fmt: skip
    yield from (Text(), Text("each node: a step with and without it, and its share so that all finish together",
                             style="bold"))  # fmt: skip
    styles = ["bold", *(EFFECT.get(member.effect, "") for member in capacity.members)]
    yield from grid(lines, left=2, styles=styles)


def _share(member: NodeEffect) -> tuple[str, str]:
    return (str(member.share), f"{member.passes} × {member.micro_batch}") if member.taken else ("–", "–")


def _larger(capacity: CapacityPlan) -> Iterator[Text]:
    yield from (Text(), Text("a larger step (--global-batch-size): the exchange stays the same", style="bold"))
    lines = [["", "samples", "nodes", "sync", "step", f"{capacity.unit}/s", "of all speeds"]]
    for each in capacity.larger:
        row = each.row
        lines.append([
            "enough" if each.samples_per_step == capacity.enough else "", str(each.samples_per_step),
            str(len(row.nodes)), row.sync, seconds(row.step_s), f"{row.per_s:,.0f}", f"{each.efficiency:.0%}",
        ])  # fmt: skip
    most = max(each.row.per_s for each in capacity.larger)
    drawn = [Text(), *(Text("  ") + bar(each.row.per_s, most, width=BAR, style="green") for each in capacity.larger)]
    for line, tail in zip(grid(lines, left=4, styles=["bold", *[""] * len(capacity.larger)]), drawn, strict=True):
        yield line + tail


def _warnings(capacity: CapacityPlan) -> Iterator[Text]:
    for warning in capacity.warnings:
        yield Text(printable(f"! {warning}"), style="yellow")


def _bar(row: StepTime, most: float) -> Text:
    return stacked([(row.compute_s, *COMPUTE), (row.exchange_s, *EXCHANGE)], most, width=BAR)


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= NAMED else f"{len(nodes)}: {', '.join(nodes[: NAMED - 1])}, …"


def _duration(value: float) -> str:
    """`48 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if value < limit:
            return f"{value / size:.0f} {unit}" if value / size >= 10 else f"{value / size:.1f} {unit}"
    return f"{value / 86400:.1f} days"
