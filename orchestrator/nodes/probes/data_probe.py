"""Compare the data on a node with the sums of what was sent, by the node's own Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contract import data_check
from orchestrator.nodes.interface import Node
from orchestrator.specs.data import ComparedData, DamagedFile
from orchestrator.specs.numbers import whole

DEEP_S = 24 * 3600.0
"""Limit of a comparison: 10 TB at 120 MB/s."""


def ask(node: Node, folder: str) -> ComparedData:
    """Read all data in the project's folder, which may begin with `~`."""
    source = Path(data_check.__file__).read_text("utf-8")
    answer = node.run(["python3", "-c", source, "deep", folder], timeout_s=DEEP_S)
    return parse(answer.check("comparing its data", hint="it needs python3, version 3.8 or newer"))


def parse(text: str) -> ComparedData:
    """The answer of the program. Lines of another form are left out."""
    found = list(_objects(text))
    return ComparedData(
        damaged=tuple(
            DamagedFile(
                data=str(one["data"]), file=str(one["file"]), wrong=str(one.get("wrong")),
                offset=whole(str(one.get("offset"))) or 0,
            )
            for one in found if "file" in one
        ),
        unchecked=tuple(str(one["data"]) for one in found if "unchecked" in one),
        size_bytes=sum(whole(str(one["bytes"])) or 0 for one in found if "bytes" in one),
    )  # fmt: skip


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and data_check.NAME.fullmatch(str(value.get("data"))):
            yield value
