"""Distribute an image through a registry: pushed once by its builder, pulled by every node, compared by id."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from docker import auth

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.nodes.interface import Login, Node, Progress
from orchestrator.specs.errors import EngineError, EngineRefusedError, OrchError, UsageError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.image import REGISTRY, REGISTRY_EXPECTED, Delivery

TRANSFER_TIMEOUT_S = 3600.0
_SPEAKS_HTTP = "server gave HTTP response to HTTPS client"


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
    lacking = fan_out(nodes, lambda node: node.engine.image(image.id) is None, timeout_s=60.0)
    if any(outcome.result for outcome in lacking):
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
