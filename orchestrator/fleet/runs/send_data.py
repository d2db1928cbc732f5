"""A data folder as `send_folder` takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.fleet.relay import CHUNK, FileToSend, FolderToSend


def folder_to_send(folder: Path, sums: Mapping[str, str]) -> FolderToSend:
    """Everything in the folder, with the SHA-256 of each file. A link to a file outside becomes that file."""
    inside, links, folders, files = folder.resolve(), dict[str, str](), list[str](), list[str]()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() and not (path.is_file() and not path.resolve().is_relative_to(inside)):
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


def _file(folder: Path, name: str, sha256: str) -> FileToSend:
    facts = (folder / name).stat()
    return FileToSend(name=name, size=facts.st_size, sha256=sha256, mode=facts.st_mode & 0o777)
