"""Bring an image that orch has not built to every node, from the machine that has it or can pull it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.fleet.fan_out import Notify, fan_out, results_of
from orchestrator.fleet.images.distribute_image import Registry, distribute, login_for
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import EngineError, OrchError, PreflightError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.image import Placed, whole_reference

ASK_S = 30.0
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of an image's architecture as engines call their own."""


def provide_reference(
    reference: str,
    nodes: Sequence[Node],
    folders: Mapping[str, str],
    controller: Node,
    notify: Notify,
    registry: Registry | None = None,
) -> tuple[Placed, ...]:
    """Copy the image to the nodes that lack it; one `Placed` for each, in order.

    The controller's image counts, otherwise that of the first node that has one, otherwise one that is pulled there.
    PreflightError: no machine has it or can pull it, or a node has another architecture.
    """
    by_id = reference.startswith("sha256:")
    name = reference if by_id else whole_reference(reference)
    source, image = _held(name, nodes, controller) or _pulled(name, nodes, controller, notify)
    _must_fit(image, name, nodes)
    tags = () if by_id else (name,)
    brought = distribute(image, tags, source, nodes, registry or folders, notify)
    return tuple(
        Placed(
            node=outcome.item.name,
            profile="",
            builder=source.name,
            tag=name,
            content=image.id.removeprefix("sha256:"),
            delivery=outcome.result,
            error=outcome.error,
        )
        for outcome in brought
    )


def _held(name: str, nodes: Sequence[Node], controller: Node) -> tuple[Node, ImageFacts] | None:
    """Return the first machine with the image. Raises a node's error, but not the controller's: it needs no engine."""
    outcomes = fan_out([controller, *nodes], lambda node: node.engine.image(name), timeout_s=ASK_S)
    results_of(outcomes[1:])
    return next(((outcome.item, outcome.result) for outcome in outcomes if outcome.result), None)


def _pulled(name: str, nodes: Sequence[Node], controller: Node, notify: Notify) -> tuple[Node, ImageFacts]:
    """Pull it on the controller, otherwise on the first node that can."""
    refusals = []
    for node in () if name.startswith("sha256:") else (controller, *nodes):
        try:
            for progress in node.engine.pull(name, login_for(name)):
                notify(node.name, progress)
            if image := node.engine.image(name):
                return node, image
            raise EngineError("it does not show the image afterwards")
        except OrchError as error:
            refusals.append(f"{node.name}: {error.message}")
    raise PreflightError(
        f"neither this computer nor a node has {name}, and none can pull it: {'; '.join(refusals)}",
        hint=f"docker build -t {name} .   # on this computer, then again: orch build --image {name}",
    )


def _must_fit(image: ImageFacts, name: str, nodes: Sequence[Node]) -> None:
    """PreflightError: a node's processor cannot run the image."""
    built = _ARCHITECTURES.get(image.architecture, image.architecture)
    for outcome in fan_out(nodes, lambda node: node.engine.facts().architecture, timeout_s=ASK_S):
        own = _ARCHITECTURES.get(outcome.value(), outcome.value())
        if built and own and built != own:
            raise PreflightError(
                f"{name} is built for {built}, and its engine is {own}",
                node=outcome.item.name,
                hint=f"leave it out: orch build --image {name} --nodes '!{outcome.item.name}'",
            )
