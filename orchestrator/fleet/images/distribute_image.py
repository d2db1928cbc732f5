"""Send one image to every node without it: nodes in parallel, and to each only its missing layers."""

from __future__ import annotations

import json
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.images.build_context import spool_folder
from orchestrator.nodes.archive import CHUNK
from orchestrator.nodes.interface import Engine, Node, Progress
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.image import Delivery

TRANSFER_TIMEOUT_S = 3600.0
Notify = Callable[[str, Progress], None]


class _Source:
    """The archive, saved when the first node turns out to need it, and never where none does."""

    def __init__(self, engine: Engine, reference: str) -> None:
        self._engine = engine
        self._reference = reference
        self._archive: ImageArchive | None = None
        self._lock = Lock()

    def archive(self) -> ImageArchive:
        with self._lock:
            if self._archive is None:
                self._archive = ImageArchive(self._engine, self._reference)
            return self._archive

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()


def distribute_image(
    image: ImageFacts, tags: Sequence[str], source: Engine, nodes: Sequence[Node], notify: Notify
) -> tuple[Outcome[Node, Delivery], ...]:
    """One outcome for each node. A failed transfer is the outcome of its node; the others continue."""
    saved = _Source(source, tags[0] if tags else image.id)
    try:
        return fan_out(nodes, lambda node: _deliver(image, tags, saved, node, notify), timeout_s=TRANSFER_TIMEOUT_S)
    finally:
        saved.close()


def _deliver(image: ImageFacts, tags: Sequence[str], saved: _Source, node: Node, notify: Notify) -> Delivery:
    began = time.monotonic()
    moved = 0
    if node.engine.image(image.id) is None:
        notify(node.name, Progress(text="waiting for the image to be saved"))
        moved = _send(image, saved.archive(), node, notify)
    for tag in tags:
        node.engine.tag(image.id, tag)
    notify(node.name, Progress(text="has the image", done=1, total=1))
    return Delivery(
        image_id=image.id, size_bytes=image.size_bytes, moved_bytes=moved, duration_s=time.monotonic() - began
    )


def _send(image: ImageFacts, archive: ImageArchive, node: Node, notify: Notify) -> int:
    """Bytes sent. An engine that wants the layers it already holds (its store is not by layer) gets all of them."""
    held = layers_in_common(image.layers, [other.layers for other in node.engine.images()])
    counter = _Counter(node.name, notify)
    try:
        node.engine.load(counter.count(archive.chunks(held), archive.size(held)))
        if node.engine.image(image.id) is not None:
            return counter.moved
        reason = "it does not show the image afterwards"
    except EngineError as error:
        if not held:
            raise
        reason = error.message
    notify(node.name, Progress(text=f"sending all layers: {reason}"))
    node.engine.load(counter.count(archive.whole(), archive.whole_size))
    if node.engine.image(image.id) is None:
        raise EngineError(
            f"took the archive of {image.id[:19]} but shows no image of this id",
            node=node.name,
            hint="orch build --each-node",
        )
    return counter.moved


@dataclass
class _Counter:
    """Counts the bytes sent and reports progress."""

    node: str
    notify: Notify
    moved: int = 0

    def count(self, chunks: Iterable[bytes], total: int) -> Iterator[bytes]:
        before = self.moved
        for chunk in chunks:
            yield chunk
            self.moved += len(chunk)
            self.notify(self.node, Progress(text="sending", done=self.moved - before, total=total))
        self.notify(self.node, Progress(text="unpacking"))


_BLOCK = 8 * CHUNK
_LEVEL = 1
"""Measured on an image of 1.2 GB: a third of the bytes at 80 MB/s and core; higher levels cost more than they save."""


@dataclass(frozen=True, kw_only=True)
class _Span:
    """One member of the archive with its header and padding."""

    start: int
    end: int
    layer: int
    """Which layer's file it is, base first; -1 for everything else."""


class ImageArchive:
    """`docker save`, spooled. Close it: the spool is as big as the image."""

    def __init__(self, engine: Engine, reference: str) -> None:
        self._closing = ExitStack()
        self._raw = self._spool()
        self._packed: dict[int, tuple[IO[bytes], int]] = {}
        self._lock = Lock()
        try:
            for chunk in engine.save(reference):
                self._raw.write(chunk)
            self._spans = _spans(self._raw, reference)
            self._size = self._raw.seek(0, os.SEEK_END)
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
        for layer in range(-1, max((span.layer for span in self._spans), default=-1) + 1):
            if layer == -1 or layer >= layers_held:
                yield from self._read(*self._compressed(layer))
        yield _gzip(bytes(2 * tarfile.BLOCKSIZE))

    def size(self, layers_held: int) -> int:
        """Approximate number of bytes that `chunks` yields."""
        wanted = {span.layer for span in self._spans if span.layer == -1 or span.layer >= layers_held}
        return sum(self._compressed(layer)[1] for layer in wanted)

    def whole(self) -> Iterator[bytes]:
        """The archive as the engine saved it, for engines that refuse an incomplete one."""
        return self._read(self._raw, self._size)

    @property
    def whole_size(self) -> int:
        return self._size

    def _compressed(self, layer: int) -> tuple[IO[bytes], int]:
        """The members of one layer as gzip, made once, on all cores: members of gzip may be strung together."""
        with self._lock:
            if layer not in self._packed:
                spool = self._spool()
                blocks = (
                    (start, min(start + _BLOCK, span.end))
                    for span in self._spans
                    if span.layer == layer
                    for start in range(span.start, span.end, _BLOCK)
                )
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    for packed in pool.map(lambda block: self._pack(*block), blocks):
                        spool.write(packed)
                spool.flush()
                self._packed[layer] = (spool, spool.tell())
            return self._packed[layer]

    def _pack(self, start: int, end: int) -> bytes:
        return _gzip(os.pread(self._raw.fileno(), end - start, start))

    def _read(self, spool: IO[bytes], size: int) -> Iterator[bytes]:
        """Read by position, because several nodes read the same file at once."""
        for start in range(0, size, CHUNK):
            yield os.pread(spool.fileno(), min(CHUNK, size - start), start)

    def _spool(self) -> IO[bytes]:
        return self._closing.enter_context(TemporaryFile(dir=spool_folder()))


def _gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=31)  # zlib.compress takes wbits from Python 3.11 on
    return packer.compress(content) + packer.flush()


def layers_in_common(layers: Sequence[str], held: Sequence[Sequence[str]]) -> int:
    """How many of an image's layers, from its base upwards, some other image has too."""
    best = 0
    for other in held:
        same = 0
        while same < min(len(layers), len(other)) and layers[same] == other[same]:
            same += 1
        best = max(best, same)
    return best


def _spans(spool: IO[bytes], reference: str) -> tuple[_Span, ...]:
    spool.flush()
    spool.seek(0)
    try:
        with tarfile.open(fileobj=spool, mode="r:") as archive:
            members = archive.getmembers()
            paths = json.loads(_content(archive, "manifest.json"))[0]["Layers"]
            end = archive.offset
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise EngineError(f"the engine's archive of {reference} cannot be read: {error}") from error
    ends = [*(member.offset for member in members[1:]), end]
    return tuple(
        _Span(start=member.offset, end=end, layer=_layer_of(member, paths))
        for member, end in zip(members, ends, strict=True)
    )


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    return content.read() if content else b""


def _layer_of(member: tarfile.TarInfo, paths: Sequence[str]) -> int:
    """A file that serves two layers (an empty one may occur twice) belongs to the upper: it is needed for longer."""
    if not member.isreg() or member.name not in paths:
        return -1
    return len(paths) - 1 - list(reversed(paths)).index(member.name)
