"""Bring one image to every node that lacks it: nodes in parallel, only the layers that each lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.images.image_archive import ImageArchive, layers_in_common
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
    """One outcome for each node. A broken transfer is that node's outcome; the others go on."""
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
    """Counts what passes, and tells."""

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
