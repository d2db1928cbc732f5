"""The run's data on this node, by the variables that name their folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from contract.environment import DATA_DIR


def leads_to_data(path: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a path as a rank wrote it, relative to the folder of the code, leads into the run's data."""
    if not path or "\0" in path:
        return False
    folders = {environ[name] for name in environ if name == DATA_DIR or name.startswith(f"{DATA_DIR}_")}
    place = Path(os.path.realpath(path))
    return any(place.is_relative_to(os.path.realpath(folder)) for folder in folders)
