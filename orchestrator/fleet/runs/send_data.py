"""A data folder, or one node's part of it, as `send_folder` takes it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from contract.data_parts import MANIFEST, divide, files_of
from orchestrator.fleet.relay import CHUNK, FolderToSend
from orchestrator.fleet.relay_messages import FileToSend
from orchestrator.nodes.archive import outside_file


def folder_to_send(folder: Path, sums: Mapping[str, str], only: Collection[str] = ()) -> FolderToSend:
    """Everything in the folder, with the SHA-256 of each file; or `only` these files. Links as `outside_file` says."""
    links, folders, files = dict[str, str](), list[str](), sorted(only)
    for path in sorted(folder.rglob("*")) if not only else ():
        name = str(path.relative_to(folder))
        if path.is_symlink() and not outside_file(path, folder):
            links[name] = str(path.readlink())
        elif path.is_file():
            files.append(name)
        elif path.is_dir() and not any(path.iterdir()):
            folders.append(name)

    def read(file: FileToSend, offset: int) -> Iterator[bytes]:
        with (folder / file.name).open("rb") as content:
            content.seek(offset)
            while chunk := content.read(CHUNK):
                yield chunk

    return FolderToSend(
        what="data",
        files=[_file(folder, name, sums[name]) for name in files],
        read=read,
        links=links,
        folders=folders,
    )


@contextmanager
def part_of_data(folder: Path, number: int, parts: int) -> Iterator[Path]:
    """A temporary folder with the manifest of a part, and links to its files."""
    manifest = divide(json.loads((folder / MANIFEST).read_text("utf-8")), parts)[number]
    with TemporaryDirectory(prefix="orch-part-") as name:
        part = Path(name)
        for file in files_of(manifest):
            (part / file).symlink_to((folder / file).resolve())
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False))
        yield part


def _file(folder: Path, name: str, sha256: str) -> FileToSend:
    facts = (folder / name).stat()
    return FileToSend(name=name, size=facts.st_size, sha256=sha256, mode=facts.st_mode & 0o777)
