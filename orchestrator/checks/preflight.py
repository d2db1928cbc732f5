"""Checks before a launch, for faults that forbid it or should be known: facts of all nodes in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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

CLOCK_WARN_S = 1.0
CLOCK_ERROR_S = 30.0
"""Liveness in torch's stores compares wall clocks."""
DISK_NEEDED_MIB = 1024
OLDEST_PYTHON = (3, 11)
"""The agent's."""


def same_machine(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Two names for one machine: two ranks would share its limits and its lock."""
    seen: dict[str, str] = {}
    for facts in fleet:
        engine = facts.engine.id if facts.engine and facts.engine.kind == "docker" else ""
        if not engine:
            continue
        if engine in seen:
            yield Finding.of("inventory.same_machine", facts.name, first=seen[engine], engine=engine[:14])
        seen.setdefault(engine, facts.name)


def image_missing(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A node without the image."""
    for facts in fleet:
        if facts.image is None and facts.engine and facts.engine.kind == "docker":
            named = ("--image", facts.reference) if facts.reference else ()
            yield Finding.of(
                "image.missing",
                facts.name,
                case="named" if named else "built",
                image=facts.reference,
                options=named,
            )


def torch_missing(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Nodes that are processes run the torch of this Python, which the controller does not need otherwise."""
    engines = {facts.name: facts.engine for facts in fleet if facts.engine and facts.engine.kind == "process"}
    without = [name for name, engine in engines.items() if not engine.version]
    if without:
        yield Finding.of("engine.no_torch", ", ".join(without))


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


def docker_desktop(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Docker Desktop's host network is that of its own virtual machine."""
    for facts in fleet:
        if facts.engine and facts.engine.docker_desktop:
            yield Finding.of("engine.docker_desktop", facts.name)


def podman(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Podman under Docker's API: it restarts no container after a reboot, and its GPUs and networks are others."""
    for facts in fleet:
        if facts.engine and facts.engine.kind == "podman":
            yield Finding.of("engine.podman", facts.name)


def clock_skew(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """A clock that is off. Where all nodes agree with each other, it is this computer's, which no rank reads."""
    offsets = [facts.clock_offset_s for facts in fleet]
    if len(fleet) > 1 and max(offsets) - min(offsets) <= CLOCK_WARN_S < min(map(abs, offsets)):
        yield Finding.of("clock.controller", "", off=_off(-offsets[0]))
        return
    for facts in fleet:
        off = facts.clock_offset_s
        if abs(off) > CLOCK_WARN_S:
            yield Finding.of(
                "clock.skew", facts.name, case="far" if abs(off) > CLOCK_ERROR_S else "near", off=_off(off)
            )


def disk_room(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No room for checkpoints."""
    for facts in fleet:
        if facts.disk_free_mib is not None and facts.disk_free_mib < DISK_NEEDED_MIB:
            yield Finding.of(
                "disk.full", facts.name, disk_free_mib=facts.disk_free_mib, DISK_NEEDED_MIB=DISK_NEEDED_MIB
            )


def memory_limit(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Less memory than a container is promised at the least."""
    for facts in fleet:
        if 0 < facts.memory_mib < 1024:
            yield Finding.of("memory.small", facts.name, memory_mib=facts.memory_mib)


def loopback_address(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """An address that leads each of the others to itself."""
    loopback = [facts for facts in fleet if facts.address.startswith("127.")]
    if len(loopback) < len(fleet):
        for facts in loopback:
            yield Finding.of("network.loopback", facts.name, address=facts.address)


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


def data_missing(fleet: Sequence[NodeFacts], make: str) -> Iterator[Finding]:
    """Report nodes without data for a run that brings none. `make`: the command that prepares it."""
    without = [facts.name for facts in fleet if facts.has_data is False]
    if without:
        yield Finding.of("data.missing", ", ".join(without), case="everywhere", make=make)


AREAS: Mapping[str, tuple[Callable[[Sequence[NodeFacts]], Iterator[Finding]], ...]] = {
    "reach": (same_machine,),
    "engine": (docker_desktop, podman, torch_missing),
    "network": (loopback_address,),
    "consistency": (image_missing, image_unfit, image_differs, clock_skew),
    "resources": (disk_room, memory_limit),
}
"""Checks of a launch, by the area of `orch doctor` that they belong to."""


def _off(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _profile(facts: NodeFacts) -> str:
    """Profile of the node's image, with its CUDA: older GPUs and drivers have another build of the same torch."""
    labels = facts.image.labels if facts.image else {}
    return f"{labels.get(LABEL_PROFILE, '')} {labels.get(LABEL_CUDA, '')}".strip()
