"""Ranks and their positions in words."""

from __future__ import annotations

from collections.abc import Collection


def position_line(rank: int, node: str, *, line: str = "", step: int | None = None, cpu: float | None = None) -> str:
    """`rank 1 beta  train.py:88 evaluate  step 1,204  98 % CPU`."""
    at = line.replace(" in ", " ", 1) or "position unknown"
    parts = [f"rank {rank} {node}", at]
    parts += [f"step {step:,}"] if step else []
    parts += [f"{100 * cpu:.0f} % CPU"] if cpu is not None else []
    return "  ".join(parts)


def work_line(steps: int, per_s: float | None = None, *, is_over: bool = False) -> str:
    """`1,204 optimizer steps · 3.1/s`; `at least 1,204 optimizer steps` of a run that is over: the newest sample is
    older than its last step."""
    return f"{'at least ' * is_over}{steps:,} optimizer steps" + ("" if per_s is None else f" · {per_s:,.3g}/s")


def together_line(collectives_per_step: float) -> str:
    """`together: 1.0 collectives per step`."""
    return f"together: {collectives_per_step:,.1f} collectives per step"


def ranks(numbers: Collection[int]) -> str:
    """`rank 3`, `ranks 0, 2`, `ranks 0-7`."""
    ordered = sorted(set(numbers))
    starts = [number for number in ordered if number - 1 not in ordered]
    ends = [number for number in ordered if number + 1 not in ordered]
    parts = []
    for start, end in zip(starts, ends, strict=True):
        parts += [f"{start}"] if start == end else [f"{start}, {end}"] if end == start + 1 else [f"{start}-{end}"]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"


def are(numbers: Collection[int]) -> str:
    """`is` of one rank, `are` of several."""
    return "are" if len(numbers) > 1 else "is"


def have(numbers: Collection[int]) -> str:
    """`has` of one rank, `have` of several."""
    return "have" if len(numbers) > 1 else "has"


def place(line: str) -> str:
    """`train.py:88` of `train.py:88 in evaluate`."""
    return line.partition(" in ")[0]


def elements(number: int) -> str:
    """`1 element`, `16 elements`."""
    return f"{number} element{'s' if number > 1 else ''}"
