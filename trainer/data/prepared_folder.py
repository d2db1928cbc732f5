"""Folders of prepared data: files with their content's hash in their name, and a manifest with the length and hash of
each, which is replaced last: a folder is never partly new."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from contract import environment
from contract.data_parts import MANIFEST, is_part
from trainer.data.files import sha256, sync_folder, write_atomic
from trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

LEAST_SHARD = 1 << 20
"""Bytes."""
SHARDS_BEFORE = 32
NAMES = re.compile(r"[a-z-]+-[0-9a-f]{12}\.[a-z]+")
"""Names of files that are written here: no others are ever removed."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    format: int
    source: str
    """Option of `prepare` for the source, with an example value."""
    read_by: tuple[str, ...]
    """Workloads; the `prepare` of the first makes the data."""

    @property
    def workload(self) -> str:
        return self.read_by[0]

    def prepare_line(self, folder: Path | str) -> str:
        """The controller's command that makes the data, without defaults."""
        where = "" if str(folder) == "Data" else f" --data {shlex.quote(str(folder))}"
        return f"orch prepare{where} -- {self.workload} {self.source}"

    def make(self, folder: Path) -> str:
        """The command that makes the data, where the message is read."""
        if os.environ.get(environment.RUN_ID):  # `folder` is the container's; it has another name on the controller
            return self.prepare_line("Data")
        return f"python -m trainer {self.workload} prepare {self.source} --data-dir {folder}"


TOKENS = Kind(name="tokens", format=1, read_by=("gpt2",), source="--text spanish")
IMAGES = Kind(name="images", format=1, read_by=("vision",), source="--images ./photos")
LABELLED_TEXT = Kind(name="labelled text", format=1, read_by=("text",), source="--csv ./texts.csv")
TRACES = Kind(name="traces", format=1, read_by=("traces-lstm", "traces-gnn"), source="--input ./traces.jsonl")
KINDS = (TOKENS, IMAGES, LABELLED_TEXT, TRACES)


@dataclass(frozen=True, kw_only=True)
class PreparedFolder:
    kind: ClassVar[Kind]
    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the manifest and check the length of every file (not its content: see `is_sound`)."""
        return cls(folder=folder, manifest=read_manifest(folder, cls.kind))

    @classmethod
    def existing(cls, folder: Path, **expected: object) -> Self | None:
        """Return existing data if its manifest has the expected values and every hash is right."""
        try:
            there = cls.open(folder)
        except ConfigurationError:
            return None
        same = all(there.manifest.get(name) == value for name, value in expected.items())
        return there if same and there.is_sound() else None

    @classmethod
    def finish(cls, folder: Path, manifest: dict[str, Any]) -> Self:
        """Write the manifest and remove the files of an earlier preparation."""
        whole = {"kind": cls.kind.name, "format": cls.kind.format, **manifest}
        write_atomic(folder / MANIFEST, json.dumps(whole, indent=2, ensure_ascii=False).encode())
        prepared = cls(folder=folder, manifest=whole)
        remove_all_but(folder, {str(entry["file"]) for entry in prepared.files})
        return prepared

    @property
    def files(self) -> list[dict[str, Any]]:
        return list(_entries(self.manifest))

    @property
    def is_part(self) -> bool:
        """True if it holds only a part of the training shards."""
        return is_part(self.manifest)

    def is_sound(self) -> bool:
        """Return whether every file has the content of its hash."""
        return all(sha256(self.folder / str(entry["file"])) == entry["sha256"] for entry in self.files)


def read_manifest(folder: Path, kind: Kind) -> dict[str, Any]:
    """Read the manifest. ConfigurationError: other data, or a file is missing or has another length."""
    path, make = folder / MANIFEST, kind.make(folder)
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
        identity = manifest.get("kind"), manifest.get("format")
        wrong = [
            f"{file}: expected {entry['bytes']} bytes, found {found}"
            for entry in _entries(manifest)
            if (found := _length_of(file := folder / str(entry["file"]))) != entry["bytes"]
        ]
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no prepared data here; make it with: {make}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: not a manifest of prepared data ({error!r}): prepare again: {make}"
        ) from None
    if identity != (kind.name, kind.format):
        raise ConfigurationError(
            f"{path}: data of another workload, or of another version of this one ({identity[0]}, format"
            f" {identity[1]}, where {kind.name}, format {kind.format}, is read): prepare again: {make}"
        )
    if wrong:
        raise ConfigurationError("\n".join([*wrong, f"prepare again: {make}"]))
    return manifest


def kind_of(folder: Path) -> str:
    """Return the kind of data in a folder; empty: no manifest, or none with a kind."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(manifest.get("kind", "")) if isinstance(manifest, dict) else ""


def store(folder: Path, stem: str, suffix: str, content: bytes) -> dict[str, Any]:
    """Write a file and return its entry for the manifest."""
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}-{digest[:12]}{suffix}"
    write_atomic(folder / name, content)
    return {"file": name, "bytes": len(content), "sha256": digest}


def shard_limit(before: int, most: int) -> int:
    """Bytes of the next shard, after so many bytes in earlier ones. Small data has several shards too, which can be
    divided among nodes, and large data not too many."""
    return min(most, max(LEAST_SHARD, before // SHARDS_BEFORE))


def remove_all_but(folder: Path, remaining: Set[str]) -> None:
    """Remove the files of an earlier preparation, or of one that failed."""
    for path in folder.iterdir():
        if NAMES.fullmatch(path.name) and path.name not in remaining:
            path.unlink()
    sync_folder(folder)


def _length_of(path: Path) -> int | str:
    return path.stat().st_size if path.exists() else "no file"


def _entries(part: object) -> Iterator[dict[str, Any]]:
    """Entries of files anywhere in a manifest."""
    if isinstance(part, dict) and "file" in part:
        yield part
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _entries(inner)
