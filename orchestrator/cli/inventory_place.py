"""The file of the inventory: where it is, before it is read."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.cli.report import invocation

GIVEN = "(given by -i)"
HERE = "in this folder"
IN_FOLDER = Path("inventory.yaml")


def inventory_place(path: Path | None) -> tuple[Path, str]:
    """Return the file of the inventory and, for a message, its origin; empty: the lab's.

    It is `path` or that of `-i`, otherwise $ORCH_INVENTORY, ./inventory.yaml, or the lab's while one is up.
    """
    from orchestrator.lab.state import inventory_file

    if given := path or invocation.current.inventory:
        return given, GIVEN
    if variable := os.environ.get("ORCH_INVENTORY"):
        return Path(variable), "(given by $ORCH_INVENTORY)"
    lab = inventory_file()
    return (lab, "") if lab.exists() and not IN_FOLDER.exists() else (IN_FOLDER, HERE)
