"""The network of each node as the last `orch doctor` saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path as File
from typing import Literal

from platformdirs import user_state_path
from pydantic import TypeAdapter, ValidationError

from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.network import NetworkFacts, Path
from orchestrator.specs.node_report import Examined

MAX_AGE_S = 24 * 3600.0
"""Age of a record after which it says little about the network."""


@dataclass(frozen=True, kw_only=True)
class SeenNetwork:
    """Network of one node as the doctor saw it."""

    at: datetime
    address: str
    network: NetworkFacts | None = None
    paths: tuple[Path, ...] = ()


_FORM = TypeAdapter(dict[Literal["nodes"], dict[str, SeenNetwork]])


def record_file() -> File:
    return user_state_path("orch") / "doctor.json"


def save_doctor_record(fleet: Sequence[Examined], now: datetime) -> None:
    """Save the network of these nodes; what is on record of other nodes stays."""
    nodes = load_doctor_record(now)
    for node in fleet:
        if node.facts and (node.network or node.paths):
            nodes[node.name] = SeenNetwork(at=now, address=node.facts.address, network=node.network, paths=node.paths)
    replace_file(record_file(), _FORM.dump_json({"nodes": nodes}))


def load_doctor_record(now: datetime) -> dict[str, SeenNetwork]:
    """Networks by node, without records that are too old; empty if the file cannot be read."""
    try:
        nodes = _FORM.validate_json(record_file().read_bytes())["nodes"]
    except (OSError, ValidationError, KeyError):
        return {}
    return {name: seen for name, seen in nodes.items() if 0 <= (now - seen.at).total_seconds() <= MAX_AGE_S}
