"""Checkpoints as a table, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.render.table import Column, Table
from orchestrator.specs.checkpoint import CheckpointCopy

MINUTE, HOUR, DAY = 60, 3600, 86400


def checkpoint_table(
    held: Sequence[CheckpointCopy], copies: Mapping[tuple[int, str], int], *, wide: bool = False
) -> Table:
    """One line for each node that holds one."""
    columns = (
        Column("run"), Column("node", 1), Column("state"), Column("step", right=True), Column("size", 3, right=True),
        Column("age", 4, right=True), Column("copies", 2, right=True), Column("folder", wide=True),
    )  # fmt: skip
    rows = [
        (one.run_id, one.node, state(one), str(one.step), size(one.size), age(one.age_s),
         "-" if one.problem else str(copies[one.identity]), one.folder)
        for one in held
    ]  # fmt: skip
    return Table(columns=columns, rows=rows, styles=["bold red" if one.problem else "" for one in held], wide=wide)


def in_order(held: Sequence[CheckpointCopy]) -> list[CheckpointCopy]:
    """The run that was written to last comes first; in it, the newest step."""
    youngest: dict[str, float] = {}
    for one in held:
        youngest[one.run_id] = min(one.age_s, youngest.get(one.run_id, one.age_s))
    return sorted(held, key=lambda one: (youngest[one.run_id], one.run_id, -one.step))


def checkpoint_data(one: CheckpointCopy, copies: Mapping[tuple[int, str], int]) -> dict[str, Any]:
    """Build the object for `--json`."""
    return {
        "run_id": one.run_id,
        "step": one.step,
        "node": one.node,
        "folder": one.folder,
        "bytes": one.size,
        "age_s": one.age_s,
        "problem": one.problem,
        "hashed": one.hashed,
        "best": one.best,
        "copies": copies.get(one.identity, 0) if not one.problem else 0,
    }


def state(one: CheckpointCopy) -> str:
    """`complete` is what a look at sizes can tell, `sound` what hashes say; why one is damaged, `damage` tells."""
    words = "damaged" if one.problem else "sound" if one.hashed else "complete"
    return f"{words}, best" if one.best else words


def damage(held: Sequence[CheckpointCopy]) -> Iterator[str]:
    """A line for each that is damaged."""
    return (f"✗ {one.node}: {one.folder}: {one.problem}" for one in held if one.problem)


def size(count: int) -> str:
    """Bytes with the unit that leaves few digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def age(seconds: float) -> str:
    """Format an age in the largest unit that it has two of."""
    for unit, length in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
