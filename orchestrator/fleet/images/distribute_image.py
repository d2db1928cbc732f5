"""Send one image to every node without it: over the controller's link once, and only missing layers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Lock

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.fleet.images.image_archive import ImageArchive, layers_in_common
from orchestrator.fleet.relay import RELAYED_FROM, Delivered, Destination, send_folder
from orchestrator.nodes.interface import Engine, Node, Progress
from orchestrator.specs.errors import EngineError, OrchError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.image import Delivery
from orchestrator.specs.plan import DIGEST_LENGTH

TRANSFER_TIMEOUT_S = 3600.0
ASK_S = 60.0
# A constant. $1: the folder with the compressed parts of the archive, which is removed; then their names.
_LOAD = """
folder=$1; shift
cd -- "$folder" && cat -- "$@" | docker load --quiet
cd / && rm -rf -- "$folder" && rmdir -- "$(dirname -- "$folder")" 2>/dev/null
"""


def distribute_image(
    image: ImageFacts,
    tags: Sequence[str],
    source: Engine,
    nodes: Sequence[Node],
    folders: Mapping[str, str],
    notify: Notify,
) -> tuple[Outcome[Node, Delivery], ...]:
    """One outcome for each node. A failed transfer is the outcome of its node; the others continue.

    Several nodes without it send it on to each other, by way of their project `folders`; a single one, and one that
    lacks it even then, gets it from the source.
    """
    lock, archives, closing = Lock(), list[ImageArchive](), ExitStack()

    def archive() -> ImageArchive:
        """Save the image for the first node that needs it."""
        with lock:
            if not archives:
                archives.append(closing.enter_context(ImageArchive(source, tags[0] if tags else image.id)))
            return archives[0]

    def deliver(node: Node) -> Delivery:
        began, moved = time.monotonic(), relayed.get(node.name, 0)
        if node.engine.image(image.id) is None:
            notify(node.name, Progress(text="waiting for the image to be saved"))
            moved += _send(image, archive(), node, notify)
        for tag in tags:
            node.engine.tag(image.id, tag)
        notify(node.name, Progress(text="has the image", done=1, total=1))
        took = time.monotonic() - (start if relayed.get(node.name) else began)
        return Delivery(image_id=image.id, size_bytes=image.size_bytes, moved_bytes=moved, duration_s=took)

    start, relayed = time.monotonic(), dict[str, int]()
    with closing:
        lacking = _layers_held(image, nodes)
        if len(lacking) > 1:
            for node, _ in lacking:
                notify(node.name, Progress(text="waiting for the image to be saved"))
            with suppress(OrchError):  # the image cannot be saved or read: each node's own try shows it
                relayed.update(_send_on(image, archive(), lacking, folders, notify))
        return fan_out(nodes, deliver, timeout_s=TRANSFER_TIMEOUT_S)


def _layers_held(image: ImageFacts, nodes: Sequence[Node]) -> list[tuple[Node, int]]:
    """Nodes that answer and lack the image, with how many of its layers they have."""

    def held(node: Node) -> int | None:
        if node.engine.image(image.id) is not None:
            return None
        return layers_in_common(image.layers, [other.layers for other in node.engine.images()])

    outcomes = fan_out(nodes, held, timeout_s=ASK_S)
    return [(one.item, one.result) for one in outcomes if one.error is None and one.result is not None]


def _send_on(
    image: ImageFacts,
    archive: ImageArchive,
    lacking: Sequence[tuple[Node, int]],
    folders: Mapping[str, str],
    notify: Notify,
) -> dict[str, int]:
    """Bytes that have reached nodes by way of each other, by name. Afterwards these may still lack the image."""
    fewest = min(held for _, held in lacking)
    if archive.size(fewest) < RELAYED_FROM:
        return {}
    content, layers = archive.folder(fewest), archive.layers(fewest)
    digest = image.id.removeprefix("sha256:")[:DIGEST_LENGTH]
    targets = [
        Destination(
            node=node,
            folder=f"{folders[node.name]}/images/{digest}",
            skipped=sum(0 <= layer < held for layer in layers),
        )
        for node, held in lacking
    ]

    def load(outcome: Outcome[Destination, Delivered]) -> None:
        """Hand the files to the engine. One that refuses them gets the image from the source."""
        target, folder = outcome.item, outcome.value().folder
        if not folder:
            return
        names = [file.name for file in content.files[target.skipped :]]
        notify(target.node.name, Progress(text="unpacking"))
        target.node.run(["sh", "-c", _LOAD, "sh", folder, *names], timeout_s=TRANSFER_TIMEOUT_S)

    sent = send_folder(content, targets, notify, otherwise=lambda _target: Delivered(folder="", came=0, fed=0))
    fan_out(sent, load, timeout_s=TRANSFER_TIMEOUT_S)
    return {one.item.node.name: one.result.came for one in sent if one.result}


def _send(image: ImageFacts, archive: ImageArchive, node: Node, notify: Notify) -> int:
    """Bytes sent. An engine that wants the layers it already holds (its store is not by layer) gets all of them."""
    moved = 0

    def counted(chunks: Iterable[bytes], total: int) -> Iterator[bytes]:
        nonlocal moved
        before = moved
        for chunk in chunks:
            yield chunk
            moved += len(chunk)
            notify(node.name, Progress(text="sending", done=moved - before, total=total))
        notify(node.name, Progress(text="unpacking"))

    held = layers_in_common(image.layers, [other.layers for other in node.engine.images()])
    try:
        node.engine.load(counted(archive.chunks(held), archive.size(held)))
        if node.engine.image(image.id) is not None:
            return moved
        reason = "it does not show the image afterwards"
    except EngineError as error:
        if not held:
            raise
        reason = error.message
    notify(node.name, Progress(text=f"sending all layers: {reason}"))
    node.engine.load(counted(archive.whole(), archive.whole_size))
    if node.engine.image(image.id) is None:
        problem = f"took the archive of {image.id[:19]} but shows no image of this id"
        raise EngineError(problem, node=node.name, hint="orch build --each-node")
    return moved
