"""Checks of the nodes' images: missing, unfit for a run, different, older than what the inventory or a script asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.specs.facts import ImageContents, NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.image import OUR_PACKAGES
from orchestrator.specs.labels import (
    LABEL_ADDITIONS,
    LABEL_CONTENT,
    LABEL_CUDA,
    LABEL_MODULES,
    LABEL_PROFILE,
    LONGEST_COMMAND,
    PACKAGE_LABELS,
)

OLDEST_PYTHON = (3, 11)
"""The agent's."""


def image_missing(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A node without the image."""
    for facts in fleet:
        if facts.image is None and facts.engine and facts.engine.kind == "docker":
            named = ("--image", facts.reference) if facts.reference else ()
            case = "named" if named else "built"
            yield Finding.of("image.missing", facts.name, case=case, image=facts.reference, options=named)


def image_differs(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Nodes of one profile with different images: another torch or another trainer hangs the run, or worse."""
    versions = {facts.name: facts.contents.torch for facts in fleet if facts.contents and facts.contents.torch}
    if len({version.partition("+")[0] for version in versions.values()}) > 1:
        table = ", ".join(f"{name} torch {version}" for name, version in versions.items())
        named = next(facts.reference for facts in fleet if facts.contents)
        yield Finding.of("image.differs", ", ".join(versions), case="named", image=named, table=table)
        return
    for profile in sorted({_profile(facts) for facts in fleet if facts.image}):
        images = {facts.name: facts.image for facts in fleet if facts.image and _profile(facts) == profile}
        held = {name: image.id for name, image in images.items()}
        # `orch build --each-node` gives each node an id of its own, of the same content.
        contents = {image.labels.get(LABEL_CONTENT, image.id) for image in images.values()}
        if len(set(held.values())) > 1 and len(contents) > 1:
            table = ", ".join(f"{name} {id.removeprefix('sha256:')[:12]}" for name, id in held.items())
            yield Finding.of("image.differs", ", ".join(held), case="built", profile=profile or "images", table=table)


def image_unfit(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """An image that orch has not built, and in which the run could not start; one finding per image, not per node."""
    everywhere_cuda = all(facts.contents and facts.contents.device == "cuda" for facts in fleet)
    found: dict[tuple[str, str, str], list[str]] = {}
    for facts in fleet:
        if facts.contents and (problem := _problem_in(facts.contents, needs_nccl=everywhere_cuda)):
            found.setdefault((facts.contents.reference, *problem), []).append(facts.name)
    for (image, case, detail), names in found.items():
        yield Finding.of("image.unfit", ", ".join(names), case=case, image=image, detail=detail)


def _problem_in(image: ImageContents, *, needs_nccl: bool) -> tuple[str, str] | None:
    """Return the case of the finding and its detail."""
    backend = "nccl" if needs_nccl else "gloo"
    if image.error:
        return "no_python", image.error
    if _version(image.python) < OLDEST_PYTHON:
        return "old_python", image.python
    if not image.torch:
        return "no_torch", image.torch_error
    if image.device == "cuda" and not image.cuda:
        return "no_cuda", image.torch
    if not image.torchrun or backend not in image.backends:
        return "no_backend", "torch.distributed.run" if not image.torchrun else f"the backend {backend}"
    if image.missing:
        return "no_modules", ", ".join(image.missing)
    if taken := [name for name in OUR_PACKAGES if name in image.modules]:
        return "name_taken", ", ".join(taken)
    return None


def image_outdated(fleet: Sequence[NodeFacts], additions: str) -> Iterator[Finding]:
    """Nodes whose image has other packages than the inventory names now; `additions` is the hash of these."""
    held = {facts.name: facts.image.labels.get(LABEL_ADDITIONS, "") for facts in fleet if facts.image}
    if other := [name for name, digest in held.items() if digest != additions]:
        yield Finding.of("image.outdated", ", ".join(other))


def package_missing(fleet: Sequence[NodeFacts], packages: Mapping[str, str]) -> Iterator[Finding]:
    """Nodes whose image lacks a package of `packages`, which has the command that adds it. An image without the label,
    of another maker, is not known to lack it."""
    for package, add in packages.items():
        held = {facts.name: facts.image.labels.get(PACKAGE_LABELS[package]) for facts in fleet if facts.image}
        if without := [name for name, version in held.items() if version == ""]:
            yield Finding.of("image.package_missing", ", ".join(without), case="workload", package=package, add=add)


def modules_missing(fleet: Sequence[NodeFacts], modules: Iterable[str]) -> dict[str, list[str]]:
    """Return those of the modules that an image of orch lacks, each with the nodes that have such an image.

    An image without the label, of another maker, is not known to lack any.
    """
    held = {one.name: one.image.labels.get(LABEL_MODULES, "")[:LONGEST_COMMAND].split() for one in fleet if one.image}
    missing = {module: [name for name, has in held.items() if has and module not in has] for module in modules}
    return {module: names for module, names in missing.items() if names}


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _profile(facts: NodeFacts) -> str:
    """Profile of the node's image, with its CUDA: older GPUs and drivers have another build of the same torch."""
    labels = facts.image.labels if facts.image else {}
    return f"{labels.get(LABEL_PROFILE, '')} {labels.get(LABEL_CUDA, '')}".strip()


LAUNCH_CHECKS = (image_missing, image_unfit, image_differs)
