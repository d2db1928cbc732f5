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
from typing import IO, Literal

import zstandard

from orchestrator.fleet.images.build_context import spool_folder
from orchestrator.fleet.relay import FolderToSend
from orchestrator.fleet.relay_messages import FileToSend
from orchestrator.nodes.archive import CHUNK
from orchestrator.nodes.interface import Engine
from orchestrator.specs.errors import EngineError

Packing = Literal["zst", "gz"]
"""zstd where each receiver can unpack it, otherwise gzip. Measured on the CPU image of 1.48 GB: gzip's level 1 packs to
485 MB in 24 s of CPU; zstd's levels 1, 2 and 3 to 440, 406 and 379 MB in 7, 10 and 16 s."""
_BLOCK = 8 * CHUNK
_GZIP_LEVEL, _ZSTD_LEVEL = 1, 2

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
        self._packed: dict[tuple[int, Packing], tuple[IO[bytes], int]] = {}
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

    def chunks(self, layers_held: int, packing: Packing) -> Iterator[bytes]:
        """The archive for a node that holds this many layers, compressed. Several nodes may read at once."""
        for layer in sorted(self._spans):
            if layer == -1 or layer >= layers_held:
                yield from self._read(*self._compressed(layer, packing))
        yield _PACK[packing](_END)

    def size(self, layers_held: int, packing: Packing) -> int:
        """Approximate number of bytes that `chunks` yields."""
        needed = [layer for layer in self._spans if layer == -1 or layer >= layers_held]
        sizes = {layer: sum(end - start for start, end in self._spans[layer]) for layer in needed}
        size, done, total = 0, 0, sum(sizes.values())
        for layer in needed:
            size += self._compressed(layer, packing, partial(self._report_compressed, done, total))[1]
            done += sizes[layer]
        return size

    def _report_compressed(self, before: int, total: int, done: int) -> None:
        self._report(COMPRESSING, before + done, total)

    def layers(self, layers_held: int) -> list[int]:
        """Layers of the archive above those that are held, base first; -1, for all else, is the last."""
        return [*(layer for layer in sorted(self._spans) if layer >= layers_held), -1]

    def folder(self, layers_held: int, packing: Packing) -> FolderToSend:
        """The compressed archive as files, in the order of `layers`: concatenated, they are what `chunks` yields."""
        parts = {f"{layer:03}.{packing}": self._compressed(layer, packing) for layer in self.layers(layers_held)}
        last, end = f"-01.{packing}", _PACK[packing](_END)

        def read(file: FileToSend, offset: int) -> Iterator[bytes]:
            spool, size = parts[file.name]
            yield from self._read(spool, size, offset)
            yield end if file.name == last and offset <= size else b""

        files = []
        for name, (spool, size) in parts.items():
            content = hashlib.sha256()
            for chunk in self._read(spool, size):
                content.update(chunk)
            if name == last:
                content.update(end)
                size += len(end)
            files.append(FileToSend(name=name, size=size, sha256=content.hexdigest()))
        return FolderToSend(what="the image", files=files, read=read)

    def whole(self) -> Iterator[bytes]:
        """The archive as the engine saved it, for engines that refuse an incomplete one."""
        return self._read(self._raw, self.whole_size)

    def _compressed(
        self, layer: int, packing: Packing, report: Callable[[int], None] = lambda _done: None
    ) -> tuple[IO[bytes], int]:
        """The members of one layer, made once, on all cores: frames of zstd and members of gzip may be concatenated.
        `report` gets the number of bytes that were read."""

        def pack(block: tuple[int, int]) -> bytes:
            return _PACK[packing](os.pread(self._raw.fileno(), block[1], block[0]))

        with self._lock:
            if (layer, packing) not in self._packed:
                spool = self._spool()
                blocks = (
                    (at, min(_BLOCK, end - at)) for start, end in self._spans[layer] for at in range(start, end, _BLOCK)
                )
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    for number, packed in enumerate(pool.map(pack, blocks)):
                        spool.write(packed)
                        report(number * _BLOCK)
                spool.flush()
                self._packed[layer, packing] = (spool, spool.tell())
            return self._packed[layer, packing]

    def _read(self, spool: IO[bytes], size: int, offset: int = 0) -> Iterator[bytes]:
        """Read by position, because several nodes read the same file at once."""
        for start in range(offset, size, CHUNK):
            yield os.pread(spool.fileno(), min(CHUNK, size - start), start)

    def _spool(self) -> IO[bytes]:
        return self._closing.enter_context(TemporaryFile(dir=spool_folder()))


def _gzip(content: bytes) -> bytes:
    return zlib.compress(content, _GZIP_LEVEL, wbits=31)


def _zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(_ZSTD_LEVEL).compress(content)  # one a thread, by its documentation


_PACK: dict[Packing, Callable[[bytes], bytes]] = {"zst": _zstd, "gz": _gzip}
_END = bytes(2 * tarfile.BLOCKSIZE)
"""End of a tar archive."""


def layers_in_common(layers: Sequence[str], held: Sequence[Sequence[str]]) -> int:
    """Count the layers of an image, from its base upwards, that some other image has too."""
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
