"""Folders of the controller that the nodes need: code for each run, data once by its content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.nodes.seam import Node
from orchestrator.specs.errors import ConfigError

DIGEST_LENGTH = 16
CHUNK = 1024 * 1024


def folder_digest(folder: Path) -> str:
    """A name for a folder's content: file names and bytes decide, times and owners do not."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        inner = hashlib.sha256()
        with path.open("rb") as content:
            while chunk := content.read(CHUNK):
                inner.update(chunk)
        whole.update(f"{path.relative_to(folder)}\0{inner.hexdigest()}\n".encode())
    return whole.hexdigest()[:DIGEST_LENGTH]


def upload_data(node: Node, source: Path, target: str) -> None:
    """Bring a folder to `target`, whose name is its digest. Copied aside and renamed: the name means complete."""
    aside = f"{target}.partial"
    node.run(["rm", "-rf", aside]).check("clearing a copy that broke off")
    node.put(source, aside)
    node.run(["mv", "-T", aside, target]).check(f"finishing {target}")
