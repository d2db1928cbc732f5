"""Saved measurements: one file for each workload and set of nodes, with the newest measurement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from platformdirs import user_state_path

from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.measurement import SavedMeasurement, core, read_saved


def measurements_folder() -> Path:
    """Folder of the saved measurements."""
    return user_state_path("orch") / "measurements"


def keep(measurement: SavedMeasurement) -> Path:
    """Save a measurement; replace an older one of the same workload on the same nodes."""
    what = json.dumps([measurement.project, core(measurement.command), sorted(measurement.nodes)])
    file = measurements_folder() / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.json"
    replace_file(file, json.dumps(asdict(measurement)))
    return file


def recall(project: str, command: Sequence[str], nodes: Sequence[str]) -> SavedMeasurement | None:
    """Return the newest measurement of this workload with all these nodes, preferably with no others."""
    found = []
    for file in measurements_folder().glob("*.json"):
        with suppress(OSError, ValueError):  # one bad file hides no other measurement
            saved = read_saved(json.loads(file.read_text(encoding="utf-8")))
            same = saved and (saved.project, core(saved.command)) == (project, core(command))
            if saved and same and set(nodes) <= set(saved.nodes):
                found.append(saved)
    return max(found, key=lambda saved: (set(saved.nodes) == set(nodes), saved.time), default=None)
