"""Files of a tar archive that another machine writes, read while it arrives, within bounds."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, cast

from orchestrator.nodes.archive import CHUNK, as_tar_error

LONGEST_HEADER = 8 * CHUNK
"""Bytes before a file's content: its name, and where the data of a sparse file are."""

Pieces = Iterator[tuple[int, bytes]]
"""Offset and data in ascending order; what lies between them is a hole, which reads as zeros."""


def received_files(chunks: Iterable[bytes], most: Mapping[str, int]) -> Iterator[tuple[tarfile.TarInfo, Pieces]]:
    """Yield the regular files of an archive while it arrives from another machine, and the data of each.

    `most`: bytes by the name of each file that is expected. TarError: any other name, a link, a larger file, or no
    archive; no more than these bytes are read.
    """
    stream = _Limited(chunks)
    with as_tar_error(), tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=CHUNK) as archive:
        while (member := _next(archive, stream)) is not None:
            if member.name not in most:
                raise tarfile.ReadError(f"{member.name}, which was not asked for")
            if not member.isreg():
                raise tarfile.ReadError(f"{member.name} is no regular file")
            if member.size > most[member.name]:
                raise tarfile.ReadError(f"{member.name} is larger than it was")
            stream.left = member.size + LONGEST_HEADER
            yield member, _pieces(archive, member)
        stream.left = LONGEST_HEADER
        while stream.read(CHUNK):  # the exit code of tar comes at the end
            pass


def _next(archive: tarfile.TarFile, stream: _Limited) -> tarfile.TarInfo | None:
    stream.left = LONGEST_HEADER
    return archive.next()


def _pieces(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Pieces:
    with as_tar_error():
        stream = cast("IO[bytes]", archive.fileobj)
        stream.seek(member.offset_data)
        parts = cast("list[tuple[int, int]] | None", member.sparse)
        for start, size in [(0, member.size)] if parts is None else parts:
            end = start + size
            if not 0 <= start <= end <= member.size:
                raise tarfile.ReadError(f"{member.name} has data outside its size")
            while start < end:
                piece = stream.read(min(CHUNK, end - start))
                if not piece:
                    raise tarfile.ReadError(f"{member.name} is cut off")
                yield start, piece
                start += len(piece)


class _Limited:
    """Chunks as a file; TarError after `left` bytes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._rest, self.left = iter(chunks), b"", LONGEST_HEADER

    def read(self, count: int) -> bytes:
        while len(self._rest) < count and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        given, self._rest = self._rest[:count], self._rest[count:]
        self.left -= len(given)
        if self.left < 0:
            raise tarfile.ReadError("more data than the files have")
        return given
