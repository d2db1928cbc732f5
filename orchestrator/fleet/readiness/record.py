"""What the last `orch doctor` saw of the network, kept for launches, where trying every pair takes too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path as File

from platformdirs import user_state_path
from pydantic import TypeAdapter, ValidationError

from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.network import NetworkFacts, Path
from orchestrator.specs.node_report import Examined

MAX_AGE_S = 24 * 3600.0
"""Older than that, what was seen of a network says little of it now."""


@dataclass(frozen=True, kw_only=True)
class SeenNetwork:
    """One node's network as it was seen, and when."""

    at: datetime
    address: str
    network: NetworkFacts | None = None
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DoctorRecord:
    """The network of all nodes that were looked at."""

    nodes: Mapping[str, SeenNetwork]


_FORM = TypeAdapter(DoctorRecord)


def record_file() -> File:
    """Where it is kept."""
    return user_state_path("orch") / "doctor.json"


def keep(fleet: Sequence[Examined], now: datetime) -> None:
    """Put the network of these nodes on record; nodes that were not looked at keep what was known of them."""
    earlier = recall(now)
    nodes = dict(earlier.nodes) if earlier else {}
    for node in fleet:
        if node.facts and (node.network or node.paths):
            nodes[node.name] = SeenNetwork(at=now, address=node.facts.address, network=node.network, paths=node.paths)
    replace_file(record_file(), _FORM.dump_json(DoctorRecord(nodes=nodes)))


def recall(now: datetime) -> DoctorRecord | None:
    """What is on record, without what is too old; None where nothing is left, or it cannot be read."""
    try:
        record = _FORM.validate_json(record_file().read_bytes())
    except (OSError, ValidationError):
        return None
    young = {name: seen for name, seen in record.nodes.items() if 0 <= (now - seen.at).total_seconds() <= MAX_AGE_S}
    return DoctorRecord(nodes=young) if young else None
