"""Send one image to every node without it: over the controller's link once, and only missing layers; or through a
registry, to which its builder pushes it once and from which every node pulls it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from threading import Lock

from docker import auth

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.fleet.images.image_archive import ImageArchive, Packing, layers_in_common
from orchestrator.fleet.relay import RELAYED_FROM, Delivered, Destination, send_folder
from orchestrator.nodes.interface import Engine, Login, Node, Progress
from orchestrator.specs.data import DIGEST_LENGTH
from orchestrator.specs.errors import EngineError, EngineRefusedError, OrchError, UsageError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.image import REGISTRY, REGISTRY_EXPECTED, Delivery

TRANSFER_TIMEOUT_S = 3600.0
ASK_S = 60.0
ZSTD_SINCE = 23
"""Docker's version from which its engine reads zstd (moby/moby#41759)."""
HAS_ZSTD = ("sh", "-c", "command -v zstd")
# A constant. $1: the folder with the compressed parts of the archive, which is removed; then their names.
_LOAD = """
folder=$1; shift
unpack=cat
case $1 in *.zst) if command -v zstd >/dev/null; then unpack='zstd -dcq'; fi ;; esac
cd -- "$folder" && cat -- "$@" | $unpack | docker load --quiet
cd / && rm -rf -- "$folder" && rmdir -- "$(dirname -- "$folder")" 2>/dev/null
"""
_SPEAKS_HTTP = "server gave HTTP response to HTTPS client"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A node that lacks the image."""

    node: Node
    layers_held: int
    reads_zstd: bool
    """True if its engine or a program of its own unpacks zstd."""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry that all nodes reach."""

    address: str
    """Host with port, and the part of the path that all its images share: `192.168.1.5:5000/team`."""

    @classmethod
    def of(cls, text: str) -> Registry:
        """UsageError: it is no address."""
        if not re.fullmatch(REGISTRY, text):
            raise UsageError(f"--registry {text}: expected {REGISTRY_EXPECTED}")
        return cls(address=text.removeprefix("https://").removeprefix("http://").rstrip("/"))

    @property
    def host(self) -> str:
        return self.address.partition("/")[0]

    def name_of(self, reference: str) -> str:
        """The image's name there. A name with the registry in it stays as it is."""
        return reference if reference.startswith(f"{self.address}/") else f"{self.address}/{reference}"


def distribute(
    image: ImageFacts,
    tags: Sequence[str],
    source: Node,
    nodes: Sequence[Node],
    by: Registry | Mapping[str, str],
    notify: Notify,
) -> tuple[Outcome[Node, Delivery], ...]:
    """Bring an image of `source` to the nodes, through a registry, or by way of their project folders; one outcome for
    each."""
    if isinstance(by, Registry):
        return distribute_by_registry(image, tags, by, source, nodes, notify)
    return distribute_image(image, tags, source.engine, nodes, by, notify)


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
                saved = ImageArchive(source, tags[0] if tags else image.id, report)
                archives.append(closing.enter_context(saved))
            return archives[0]

    def report(what: str, done: int, total: int) -> None:
        total = total or image.size_bytes
        for name in sorted(waiting):
            notify(name, Progress(text=what, done=min(done, total - 1), total=total))

    def deliver(node: Node) -> Delivery:
        began, moved = time.monotonic(), relayed.get(node.name, 0)
        if node.engine.image(image.id) is None:
            waiting.add(node.name)
            moved += _send(image, archive(), node, notify)
        for tag in tags:
            node.engine.tag(image.id, tag)
        notify(node.name, Progress(text="has the image", done=1, total=1))
        took = time.monotonic() - (start if relayed.get(node.name) else began)
        return Delivery(image_id=image.id, size_bytes=image.size_bytes, moved_bytes=moved, duration_s=took)

    start, relayed, waiting = time.monotonic(), dict[str, int](), set[str]()
    with closing:
        receivers = _without(image, nodes)
        if len(receivers) > 1:
            waiting.update(one.node.name for one in receivers)
            with suppress(OrchError):  # the image cannot be saved or read: each node's own try shows it
                relayed.update(_send_on(image, archive(), receivers, folders, notify))
        return fan_out(nodes, deliver, timeout_s=TRANSFER_TIMEOUT_S)


def _without(image: ImageFacts, nodes: Sequence[Node]) -> list[Waiting]:
    """Nodes that answer and lack the image."""

    def look(node: Node) -> Waiting | None:
        if node.engine.image(image.id) is not None:
            return None
        held = layers_in_common(image.layers, [other.layers for other in node.engine.images()])
        reads_zstd = _reads_zstd(node.engine) or node.run(HAS_ZSTD).exit_code == 0
        return Waiting(node=node, layers_held=held, reads_zstd=reads_zstd)

    outcomes = fan_out(nodes, look, timeout_s=ASK_S)
    return [one.result for one in outcomes if one.error is None and one.result is not None]


def _reads_zstd(engine: Engine) -> bool:
    major = engine.facts().version.partition(".")[0]
    return major.isdecimal() and int(major[:4]) >= ZSTD_SINCE


def _send_on(
    image: ImageFacts,
    archive: ImageArchive,
    receivers: Sequence[Waiting],
    folders: Mapping[str, str],
    notify: Notify,
) -> dict[str, int]:
    """Bytes that have reached nodes by way of each other, by name. Afterwards these may still lack the image."""
    fewest = min(one.layers_held for one in receivers)
    packing: Packing = "zst" if all(one.reads_zstd for one in receivers) else "gz"
    if archive.size(fewest, packing) < RELAYED_FROM:
        return {}
    content, layers = archive.folder(fewest, packing), archive.layers(fewest)
    digest = image.id.removeprefix("sha256:")[:DIGEST_LENGTH]
    targets = [
        Destination(
            node=one.node,
            folder=f"{folders[one.node.name]}/images/{digest}",
            skipped=sum(0 <= layer < one.layers_held for layer in layers),
        )
        for one in receivers
    ]

    def load(outcome: Outcome[Destination, Delivered]) -> None:
        """Hand the files to the engine. One that refuses them gets the image from the source."""
        target, folder = outcome.item, outcome.value().folder
        if not folder:
            return
        names = [file.name for file in content.files[target.skipped :]]
        notify(target.node.name, Progress(text="unpacking", total=1))
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
        notify(node.name, Progress(text="unpacking", total=1))

    held = layers_in_common(image.layers, [other.layers for other in node.engine.images()])
    packing: Packing = "zst" if _reads_zstd(node.engine) else "gz"
    try:
        node.engine.load(counted(archive.chunks(held, packing), archive.size(held, packing)))
        if node.engine.image(image.id) is not None:
            return moved
        reason = "it does not show the image afterwards"
    except EngineError as error:
        if not held and packing == "gz":
            raise
        reason = error.message
    notify(node.name, Progress(text=f"sending all layers: {reason}"))
    node.engine.load(counted(archive.whole(), archive.whole_size))
    if node.engine.image(image.id) is None:
        problem = f"took the archive of {image.id[:19]} but shows no image of this id"
        raise EngineError(problem, node=node.name, hint="orch build --each-node")
    return moved


def login_for(reference: str) -> Login | None:
    """Return what this computer's own Docker configuration holds for the registry of this image; None: nothing."""
    registry, _ = auth.resolve_repository_name(reference)
    found = auth.load_config().resolve_authconfig(registry)
    return dict(found) if found else None


def distribute_by_registry(
    image: ImageFacts, tags: Sequence[str], registry: Registry, source: Node, nodes: Sequence[Node], notify: Notify
) -> tuple[Outcome[Node, Delivery], ...]:
    """One outcome for each node. Raises if the image cannot be pushed; a failed pull is the outcome of its node."""
    name = registry.name_of(tags[0] if tags else f"orch/image:{image.id.removeprefix('sha256:')[:12]}")
    login = login_for(name)
    absent = fan_out(nodes, lambda node: node.engine.image(image.id) is None, timeout_s=60.0)
    if any(outcome.result for outcome in absent):
        source.engine.tag(image.id, name)
        try:
            for progress in source.engine.push(name, login):
                notify(source.name, progress)
        except EngineRefusedError as error:
            raise _explained(error, source, registry) from error

    def deliver(node: Node) -> Delivery:
        began, moved = time.monotonic(), 0
        if node.engine.image(image.id) is None:
            moved = max(_pull(node, name, login, registry, notify), default=0)
            if (found := node.engine.image(name)) is None or found.id != image.id:
                raise EngineError(
                    f"pulled {name} and has the image {found.id[:19] if found else 'of no name'}, not {image.id[:19]}",
                    node=node.name,
                    hint="orch build   # without --registry: the image is copied directly",
                )
        for tag in tags:
            node.engine.tag(image.id, tag)
        notify(node.name, Progress(text="has the image", done=1, total=1))
        took = time.monotonic() - began
        return Delivery(image_id=image.id, size_bytes=image.size_bytes, moved_bytes=moved, duration_s=took)

    return fan_out(nodes, deliver, timeout_s=TRANSFER_TIMEOUT_S)


def _pull(node: Node, name: str, login: Login | None, registry: Registry, notify: Notify) -> Iterator[int]:
    """Yield the bytes that have come."""
    try:
        for progress in node.engine.pull(name, login):
            notify(node.name, progress)
            yield progress.total
    except EngineRefusedError as error:
        raise _explained(error, node, registry) from error


def _explained(error: OrchError, node: Node, registry: Registry) -> OrchError:
    """The engine's refusal with the line that helps."""
    host = registry.host
    if _SPEAKS_HTTP in error.message:
        hint = (
            f'{host} has no TLS: on {node.name}, in /etc/docker/daemon.json: {{"insecure-registries": ["{host}"]}},'
            " then: sudo systemctl restart docker"
        )
    elif any(word in error.message for word in ("authentication required", "denied", "unauthorized")):
        hint = f"on this computer: docker login {host}"
    else:
        hint = f"does {node.name} reach {host}? Or copy the image directly: orch build, without --registry"
    return EngineRefusedError(error.message, node=node.name, hint=hint)
