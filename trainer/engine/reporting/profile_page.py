"""The page that `--profile` leaves: figures in, Markdown and advice out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = 15


@dataclass(frozen=True, kw_only=True)
class Operator:
    name: str
    ms: float
    """Milliseconds in one step."""
    calls: int


@dataclass(frozen=True, kw_only=True)
class Page:
    device: str
    steps: int
    step_ms: float
    parts: Mapping[str, float]
    """Milliseconds of a step, by the names that the loop gives its parts."""
    operators: Sequence[Operator]
    """All operators, those with the longest time first."""
    memory_mib: float
    """Peak of allocated memory."""
    busy: float | None
    """Share of the time in which the GPU computed; None on a CPU."""
    trace: str


def write_page(page: Page, folder: Path) -> Path:
    path = folder / "summary.md"
    path.write_text(render(page), "utf-8")
    return path


def render(page: Page) -> str:
    rest = page.step_ms - sum(page.parts.values())
    parts = [*page.parts.items(), ("between them", max(0.0, rest))]
    total = sum(operator.ms for operator in page.operators) or 1.0
    idle = [] if page.busy is None else [f"- the GPU was idle for {1 - page.busy:.0%} of the time"]
    lines = [
        "# Where the time goes",
        "",
        f"- {page.steps} steps on {page.device}, {page.step_ms:.1f} ms each; being recorded slows them a little",
        f"- waiting for data: {_share(page, 'data'):.0%} of the time",
        *idle,
        f"- memory at its peak: {page.memory_mib:.0f} MiB",
        f"- the trace: `{page.trace}`, for https://ui.perfetto.dev or chrome://tracing",
        "",
        *advice(page),
        "",
        "| part of a step | ms | share |",
        "|---|---:|---:|",
        *(f"| {name} | {ms:.2f} | {ms / page.step_ms:.1%} |" for name, ms in parts),
        "",
        f"The {min(TOP, len(page.operators))} {'operators' if page.busy is None else 'kernels'} with most time of"
        " their own, in a step:",
        "",
        "| name | ms | share | calls |",
        "|---|---:|---:|---:|",
        *(f"| {_cell(o.name)} | {o.ms:.2f} | {o.ms / total:.1%} | {o.calls} |" for o in page.operators[:TOP]),
    ]
    return "\n".join(lines) + "\n"


def advice(page: Page) -> list[str]:
    """The one or two sentences that this page comes down to."""
    lines = []
    if _share(page, "data") > 0.2:
        lines.append(
            f"{_share(page, 'data'):.0%} of a step is waiting for data: try more --num-workers, or prepare the data"
            " further in advance."
        )
    if _share(page, "reduce") > 0.2:
        lines.append(
            f"{_share(page, 'reduce'):.0%} of a step is spent among the ranks: try a larger --grad-accum, a faster"
            " network, or ranks of equal speed."
        )
    if _share(page, "optimizer") > 0.2:
        lines.append(
            f"The optimizer takes {_share(page, 'optimizer'):.0%} of a step: a larger --batch-size or --grad-accum"
            " needs it less often."
        )
    if page.busy is not None and page.busy < 0.8 and _share(page, "data") <= 0.2:
        lines.append(
            f"The GPU is idle for {1 - page.busy:.0%} of the time although data is there: it is handed too little at"
            " once. Try a larger --micro-batch-size, or --compile."
        )
    if lines:
        return [" ".join(lines[:2])]
    longest = max(page.parts, key=lambda name: page.parts[name], default="")
    if not longest:
        return ["No part of the steps was marked."]
    return [
        f"Nothing stands out: most of a step is {longest} ({_share(page, longest):.0%}), as it should be in training."
        if longest in ("forward", "backward")
        else f"Most of a step is {longest} ({_share(page, longest):.0%})."
    ]


def _share(page: Page, part: str) -> float:
    return page.parts.get(part, 0.0) / page.step_ms if page.step_ms else 0.0


def _cell(name: str) -> str:
    """Kernels have names with template arguments that fill a screen, and | would end the cell."""
    return "`" + (name if len(name) <= 70 else name[:69] + "…").replace("|", "\\|") + "`"


# ── How busy the GPU was ──────────────────────────────────────────────────────────────────────────

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def read_trace(path: Path) -> Mapping[str, Any]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    trace: Mapping[str, Any] = json.loads(text)
    return trace


def device_intervals(trace: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Beginning and end of everything that the GPU did, in microseconds."""
    return [
        (event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("cat") in ON_DEVICE and "dur" in event
    ]


def busy_share(intervals: Iterable[tuple[float, float]], whole_us: float) -> float:
    """Share of the whole in which at least one of them ran: streams overlap."""
    busy, reached = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return min(1.0, busy / whole_us) if whole_us else 0.0
