"""The archive of an image as its engine saves it, and the parts of it that a node lacks."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO

from orchestrator.fleet.images.build_context import spool_folder
from orchestrator.fleet.relay import FolderToSend
from orchestrator.fleet.relay_messages import FileToSend
from orchestrator.nodes.archive import CHUNK
from orchestrator.nodes.interface import Engine
from orchestrator.specs.errors import EngineError

_BLOCK = 8 * CHUNK
_LEVEL = 1
"""Measured on an image of 1.2 GB: a third of the bytes at 80 MB/s and core; higher levels cost more than they save."""


SAVING, COMPRESSING = "saving the image here", "compressing the image"


def _unreported(_what: str, _done: int, _total: int) -> None:
    return


class ImageArchive:
    """`docker save`, spooled. Close it: the spool is as big as the image."""

    def __init__(self, engine: Engine, reference: str, report: Callable[[str, int, int], None] = _unreported) -> None:
        """`report` gets what is done now, and how many bytes of how many; 0: not known."""
        self._report = report
        self._closing = ExitStack()
        self._raw = self._spool()
        self._packed: dict[int, tuple[IO[bytes], int]] = {}
        self._lock = Lock()
        try:
            for chunk in engine.save(reference):
                self._raw.write(chunk)
                report(SAVING, self._raw.tell(), 0)
            self._spans = _spans(self._raw, reference)
            self.whole_size = self._raw.seek(0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ImageArchive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary files."""
        self._closing.close()

    def chunks(self, layers_held: int) -> Iterator[bytes]:
        """The archive for a node that holds this many layers, compressed. Several nodes may read at once."""
        for layer in sorted(self._spans):
            if layer == -1 or layer >= layers_held:
                yield from self._read(*self._compressed(layer))
        yield _END

    def size(self, layers_held: int) -> int:
        """Approximate number of bytes that `chunks` yields."""
        needed = [layer for layer in self._spans if layer == -1 or layer >= layers_held]
        sizes = {layer: sum(end - start for start, end in self._spans[layer]) for layer in needed}
        size, done, total = 0, 0, sum(sizes.values())
        for layer in needed:
            size += self._compressed(layer, partial(self._report_compressed, done, total))[1]
            done += sizes[layer]
        return size

    def _report_compressed(self, before: int, total: int, done: int) -> None:
        self._report(COMPRESSING, before + done, total)

    def layers(self, layers_held: int) -> list[int]:
        """Layers of the archive above those that are held, base first; -1, for all else, is the last."""
        return [*(layer for layer in sorted(self._spans) if layer >= layers_held), -1]

    def folder(self, layers_held: int) -> FolderToSend:
        """The compressed archive as files, in the order of `layers`: concatenated, they are what `chunks` yields."""
        parts = {f"{layer:03}.gz": self._compressed(layer) for layer in self.layers(layers_held)}

        def read(file: FileToSend, offset: int) -> Iterator[bytes]:
            spool, size = parts[file.name]
            yield from self._read(spool, size, offset)
            yield _END if file.name == "-01.gz" and offset <= size else b""

        files = []
        for name, (spool, size) in parts.items():
            content = hashlib.sha256()
            for chunk in self._read(spool, size):
                content.update(chunk)
            if name == "-01.gz":
                content.update(_END)
                size += len(_END)
            files.append(FileToSend(name=name, size=size, sha256=content.hexdigest()))
        return FolderToSend(what="the image", files=files, read=read)

    def whole(self) -> Iterator[bytes]:
        """The archive as the engine saved it, for engines that refuse an incomplete one."""
        return self._read(self._raw, self.whole_size)

    def _compressed(self, layer: int, report: Callable[[int], None] = lambda _done: None) -> tuple[IO[bytes], int]:
        """The members of one layer as gzip, made once, on all cores: gzip members may be concatenated. `report` gets
        the number of bytes that were read."""

        def pack(block: tuple[int, int]) -> bytes:
            return _gzip(os.pread(self._raw.fileno(), block[1], block[0]))

        with self._lock:
            if layer not in self._packed:
                spool = self._spool()
                blocks = (
                    (at, min(_BLOCK, end - at)) for start, end in self._spans[layer] for at in range(start, end, _BLOCK)
                )
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    for number, packed in enumerate(pool.map(pack, blocks)):
                        spool.write(packed)
                        report(number * _BLOCK)
                spool.flush()
                self._packed[layer] = (spool, spool.tell())
            return self._packed[layer]

    def _read(self, spool: IO[bytes], size: int, offset: int = 0) -> Iterator[bytes]:
        """Read by position, because several nodes read the same file at once."""
        for start in range(offset, size, CHUNK):
            yield os.pread(spool.fileno(), min(CHUNK, size - start), start)

    def _spool(self) -> IO[bytes]:
        return self._closing.enter_context(TemporaryFile(dir=spool_folder()))


def _gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=31)  # zlib.compress takes wbits from Python 3.11 on
    return packer.compress(content) + packer.flush()


_END = _gzip(bytes(2 * tarfile.BLOCKSIZE))
"""End of a tar archive."""


def layers_in_common(layers: Sequence[str], held: Sequence[Sequence[str]]) -> int:
    """How many of an image's layers, from its base upwards, some other image has too."""
    same = (takewhile(lambda pair: pair[0] == pair[1], zip(layers, other, strict=False)) for other in held)
    return max((len(list(pairs)) for pairs in same), default=0)


def _spans(spool: IO[bytes], reference: str) -> dict[int, list[tuple[int, int]]]:
    """Start and end of the archive's members, with header and padding, by layer: base first, -1 for all else.

    A file that serves two layers (an empty one may occur twice) belongs to the upper: it is needed for longer.
    """
    spool.flush()
    spool.seek(0)
    try:
        with tarfile.open(fileobj=spool, mode="r:") as archive:
            members = archive.getmembers()
            manifest = archive.extractfile("manifest.json")
            layers = [str(name) for name in json.loads(manifest.read() if manifest else b"")[0]["Layers"]]
            end = archive.offset
    except (tarfile.TarError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise EngineError(f"the engine's archive of {reference} cannot be read: {error}") from error
    numbers = {name: number for number, name in enumerate(layers)}
    spans: dict[int, list[tuple[int, int]]] = {}
    for member, after in zip(members, [*(member.offset for member in members[1:]), end], strict=True):
        layer = numbers.get(member.name, -1) if member.isreg() else -1
        spans.setdefault(layer, []).append((member.offset, after))
    return spans
