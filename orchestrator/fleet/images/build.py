"""Build the images that the nodes' devices need, once for each architecture, and see that every node has the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter

from orchestrator.fleet.fan_out import Notify, Outcome, fan_out, results_of
from orchestrator.fleet.images.base_image import ensure_base
from orchestrator.fleet.images.build_context import Site, archive_of, packed, source_commit, source_files, wheels_for
from orchestrator.fleet.images.build_output import BuildOutput, steps_of
from orchestrator.fleet.images.distribute_image import Registry, distribute
from orchestrator.nodes.interface import BuildRequest, Node, Progress
from orchestrator.nodes.probes import nvidia_smi
from orchestrator.plan.cuda import AUTO, choose_cuda
from orchestrator.plan.image import DEFAULT_BASE, DOCKERFILE, SITE, ImageVersions, Recipe, labels
from orchestrator.plan.packages import BASE_ARGUMENT, LAYER, Additions
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.cuda import DEFAULT_BUILD
from orchestrator.specs.errors import EngineError, OrchError, PreflightError
from orchestrator.specs.facts import GpuFacts, ImageFacts
from orchestrator.specs.image import Delivery, Placed
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_CONTENT, PACKAGE_LABELS
from orchestrator.specs.secret_forms import hide_secrets

BUILD_TIMEOUT_S = 3600.0
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index: packages that are compiled against torch, for builds of it without CUDA."""
_PACKAGES_HINT = "change the requirement that pip names, then run it again; torch is the image's own and stays as it is"
_TORCHVISION_HINT = "; if pip names torchvision: add a line torchvision, and PyTorch's own index is asked for it"
_OWN_DOCKERFILE = "Dockerfile.of-the-project"

_ASK = """\
import importlib.metadata, json, pkgutil, platform, sys, torch
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
modules = {module.name for module in pkgutil.iter_modules()} | {*importlib.metadata.packages_distributions()}
modules = sorted(name for name in modules - {*sys.stdlib_module_names} if name.isidentifier())
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or "",
                  "onednn": torch.backends.mkldnn.is_available(), "packages": packages, "modules": modules}))"""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of `orch build`."""

    project: str
    profile: str = "auto"
    """`cpu`, `cuda`, or `auto`: what each node's device needs."""
    cuda: str = AUTO
    """CUDA of torch's build for nodes with GPUs, or `auto`: the newest that their cards and drivers serve."""
    base: str = DEFAULT_BASE
    on: str = ""
    """Node that builds, or `controller`; if empty, a node that has the image or can build it."""
    each_node: bool = False
    no_cache: bool = False
    registry: Registry | None = None
    """Registry through which the image goes to the nodes; None: directly."""
    site: Site = field(default_factory=Site)
    additions: Additions = field(default_factory=Additions)
    version: str = ""
    log: Path | None = None
    """File for the whole output of the builders."""


@dataclass(frozen=True, kw_only=True)
class NeededImage:
    """An image that nodes need, with these nodes, before anything is built."""

    recipe: Recipe
    cuda: str
    cuda_reason: str
    architecture: str
    nodes: tuple[Node, ...]

    def missing(self) -> list[str]:
        """Return the names of its nodes that do not have it."""
        present = fan_out(self.nodes, lambda node: _present(node, self.recipe), timeout_s=60.0)
        return [outcome.item.name for outcome in present if outcome.result is None]

    def is_built(self, controller: Node) -> bool:
        """Return whether the controller or one of the nodes has it, so that it is only copied."""
        if len(self.missing()) < len(self.nodes):
            return True
        try:
            fits = controller.engine.facts().architecture == self.architecture
            return fits and _present(controller, self.recipe) is not None
        except OrchError:
            return False  # no engine here


def needed_images(options: BuildOptions, specs: Sequence[NodeSpec], nodes: Sequence[Node]) -> list[NeededImage]:
    """Return the images for these nodes: one for each profile, CUDA and architecture."""
    groups, cuda_reason = _by_image(options, specs, nodes)
    found = []
    for (profile, cuda, architecture), group in groups.items():
        recipe = Recipe(
            project=options.project,
            profile=profile,
            cuda="" if cuda == DEFAULT_BUILD else cuda,
            base=options.base,
            files=source_files(),
            additions=options.additions,
            git_commit=source_commit(),
            version=options.version,
        )
        reason = cuda_reason if cuda else ""
        found.append(
            NeededImage(recipe=recipe, cuda=cuda, cuda_reason=reason, architecture=architecture, nodes=tuple(group))
        )
    return found


def provide_images(
    options: BuildOptions,
    specs: Sequence[NodeSpec],
    nodes: Sequence[Node],
    controller: Node,
    notify: Notify,
    images: Sequence[NeededImage] | None = None,
) -> tuple[Placed, ...]:
    """Build what is needed and bring it to the nodes; one `Placed` for each, in order. `images`: those needed.

    Raises if no image could be built: an engine that cannot be reached, no suitable builder, a failed build.
    """
    folders = {spec.name: spec.folder(options.project) for spec in specs}
    placed: dict[str, Placed] = {}
    for needed in needed_images(options, specs, nodes) if images is None else images:
        recipe, group = needed.recipe, needed.nodes
        builders = _Builders(controller, tuple(nodes), needed.architecture)
        builder = None if options.each_node else builders.choose(recipe, options, group)
        if builder:
            image = build_image(builder, recipe, options, notify)
            tags = (recipe.content_tag, recipe.tag)
            brought = distribute(image, tags, builder, group, options.registry or folders, notify)
        else:
            brought = _build_everywhere(recipe, options, group, folders, builders, notify)
        built = (builder or group[0]).engine.image(recipe.tag)
        for outcome in brought:
            placed[outcome.item.name] = Placed(
                node=outcome.item.name,
                profile=recipe.profile,
                builder=(builder or outcome.item).name,
                tag=recipe.tag,
                cuda=needed.cuda,
                cuda_reason=needed.cuda_reason,
                content=recipe.content,
                has_torchvision=not built or built.labels.get(PACKAGE_LABELS["torchvision"]) != "",
                delivery=outcome.result,
                error=outcome.error,
            )
    return tuple(placed[node.name] for node in nodes)


def _by_image(
    options: BuildOptions, specs: Sequence[NodeSpec], nodes: Sequence[Node]
) -> tuple[dict[tuple[str, str, str], list[Node]], str]:
    """Nodes by profile, CUDA and architecture of the image that they need, and the reason for that CUDA."""

    def needs(pair: tuple[NodeSpec, Node]) -> tuple[str, str, Sequence[GpuFacts]]:
        spec, node = pair
        profile = spec.device if options.profile == "auto" else options.profile
        gpus = () if profile == "cpu" else nvidia_smi.ask(node.run).gpus
        if profile == "auto":
            profile = "cuda" if gpus else "cpu"
        return profile, node.engine.facts().architecture, gpus

    outcomes = fan_out(list(zip(specs, nodes, strict=True)), needs, timeout_s=60.0)
    asked = [(outcome.item[1], *outcome.value()) for outcome in outcomes]
    with_gpus = {node.name: gpus for node, profile, _, gpus in asked if profile == "cuda"}
    choice = choose_cuda(with_gpus, options.cuda)
    groups: dict[tuple[str, str, str], list[Node]] = {}
    for node, profile, architecture, _ in asked:
        groups.setdefault((profile, choice.by_node.get(node.name, ""), architecture), []).append(node)
    return groups, choice.reason


def build_image(node: Node, recipe: Recipe, options: BuildOptions, notify: Notify) -> ImageFacts:
    """The image of this recipe on this node's engine. An existing image is not built again."""
    image = _image_with_content(node, recipe, options, notify)
    node.engine.tag(image.id, recipe.tag)  # last: a build that failed leaves the tag on the image before
    return image


def _image_with_content(node: Node, recipe: Recipe, options: BuildOptions, notify: Notify) -> ImageFacts:
    """Build the image under the tag of its content, or find it there."""
    if not options.no_cache and (image := _present(node, recipe)):
        notify(node.name, Progress(text=f"{recipe.tag} exists already ({recipe.content[:12]})"))
        return image
    if recipe.additions:
        below = replace(recipe, additions=Additions())
        _build_additions(node, recipe, _image_with_content(node, below, options, notify), options, notify)
    else:
        _build_own(node, recipe, options, notify)
    notify(node.name, Progress(text="asking the new image what is in it"))
    found = _ask(node, recipe)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    # the labels hold what was found inside, so they come last: one more configuration, no more bytes
    request = BuildRequest(
        tag=recipe.content_tag, dockerfile="Dockerfile", args={}, labels=labels(recipe, found, created)
    )
    dockerfile = f"FROM {recipe.content_tag}\n".encode()
    _follow(node, request, archive_of({"Dockerfile": dockerfile}), _Output(dockerfile=dockerfile))
    image = _present(node, recipe)
    if image is None:
        raise EngineError(f"built {recipe.content_tag}, but the engine does not show it", node=node.name)
    notify(node.name, Progress(text="image built", done=1, total=1))
    return image


def _build_own(node: Node, recipe: Recipe, options: BuildOptions, notify: Notify) -> None:
    """Build orch's image from the base."""
    ensure_base(node, recipe.base, notify)
    wheels = wheels_for(recipe, options.site, node.engine.facts().architecture)
    args = {"BASE": recipe.base, "PROFILE": recipe.profile, **options.site.proxies}
    if recipe.cuda:
        args["CUDA"] = recipe.cuda
    if any(wheel.name.startswith("torch-") for wheel in wheels):
        args["TORCH_CUDA_INDEX" if recipe.cuda else "TORCH_CPU_INDEX"] = ""
    request = BuildRequest(
        tag=recipe.content_tag, dockerfile=DOCKERFILE, args=args, labels={}, no_cache=options.no_cache
    )
    with packed(recipe.files, options.site, wheels) as context:
        output = _Output(dockerfile=recipe.files.get(DOCKERFILE, b""), notify=notify, log=options.log)
        _follow(node, request, context, output)


def _build_additions(node: Node, recipe: Recipe, below: ImageFacts, options: BuildOptions, notify: Notify) -> None:
    """Build the project's packages above orch's image, and above them what the user's Dockerfile says."""
    added = recipe.additions
    request = BuildRequest(
        tag=recipe.content_tag,
        dockerfile=LAYER,
        args={BASE_ARGUMENT: below.id, **options.site.proxies},
        labels={},
        no_cache=options.no_cache,
    )
    if added.requirements or added.apt:
        files = {path: content for path, content in recipe.files.items() if path == LAYER or path.startswith(SITE)}
        for name in ("requirements", "constraints"):
            lines = [*getattr(added, name), *(_fitting_torchvision(recipe) if name == "constraints" else ())]
            files[f"packages/{name}.txt"] = "".join(f"{line}\n" for line in lines).encode()
        wheels = wheels_for(recipe, options.site, node.engine.facts().architecture)
        tools = "python3-pip git" if added.from_git else "python3-pip"
        args = {**request.args, "APT": " ".join(added.apt), "TOOLS": tools}
        if recipe.profile == "cpu" and any(added.names(name) for name in ("torchvision", "torchaudio")):
            args["TORCH_CPU_INDEX"] = TORCH_CPU_INDEX
        with packed(files, options.site, wheels) as context:
            is_missing = below.labels.get(PACKAGE_LABELS["torchvision"]) == ""
            hint = _PACKAGES_HINT + (_TORCHVISION_HINT if is_missing else "")
            output = _Output(dockerfile=files.get(LAYER, b""), what="your packages", notify=notify, log=options.log)
            _follow(node, replace(request, args=args), context, output, hint=hint)
        request = replace(request, args={**request.args, BASE_ARGUMENT: recipe.content_tag})
    if added.dockerfile:
        # an entry point would take the words of each container's command as its own
        own = added.dockerfile + b"\nENTRYPOINT []\n"
        context = archive_of({**added.context, _OWN_DOCKERFILE: own})
        output = _Output(dockerfile=own, what="your Dockerfile", notify=notify, log=options.log)
        _follow(node, replace(request, dockerfile=_OWN_DOCKERFILE), context, output)


def _fitting_torchvision(recipe: Recipe) -> list[str]:
    """Constraint against the package index's torchvision, which cannot be imported with a torch without CUDA."""
    version = recipe.pins.get("torchvision")
    return [f"torchvision=={version}+cpu"] if version and recipe.profile == "cpu" else []


@dataclass(frozen=True)
class _Builders:
    """Candidates for a build: the controller and the nodes with an engine of this architecture."""

    controller: Node
    nodes: tuple[Node, ...]
    architecture: str

    def choose(self, recipe: Recipe, options: BuildOptions, group: Sequence[Node]) -> Node:
        """The builder: the requested node, otherwise one with the image, the controller, or the group's first node."""
        if options.on:
            everyone = {node.name: node for node in self.nodes} | {"controller": self.controller}
            if options.on not in everyone:
                raise PreflightError(f"--on {options.on}: no such node", hint="orch inventory list")
            chosen = everyone[options.on]
            if (own := chosen.engine.facts().architecture) != self.architecture:
                raise PreflightError(
                    f"its engine is {own}, {', '.join(node.name for node in group)} need {self.architecture}",
                    node=chosen.name,
                    hint="leave --on out, or build these nodes apart with --nodes",
                )
            return chosen
        able = [*([self.controller] if self.controller_fits() else []), *group]
        if options.no_cache:
            return able[0]
        return next((node for node in able if _present(node, recipe)), able[0])

    def controller_fits(self) -> bool:
        try:
            return self.controller.engine.facts().architecture == self.architecture
        except OrchError:
            return False  # no engine here: a node builds


def _build_everywhere(
    recipe: Recipe,
    options: BuildOptions,
    group: Sequence[Node],
    folders: Mapping[str, str],
    builders: _Builders,
    notify: Notify,
) -> tuple[Outcome[Node, Delivery], ...]:
    """Build on every node: the same content, but a different image id on each."""
    if recipe.base == DEFAULT_BASE:  # made once: every node would make it of other bytes and of the same mirror
        maker = builders.controller if builders.controller_fits() else group[0]
        ensure_base(maker, recipe.base, notify)
        missing = [node for node in group if node.engine.image(recipe.base) is None]
        if base := maker.engine.image(recipe.base):
            results_of(distribute(base, (recipe.base,), maker, missing, folders, notify))

    def build(node: Node) -> Delivery:
        began = time.monotonic()
        image = build_image(node, recipe, options, notify)
        took = time.monotonic() - began
        return Delivery(image_id=image.id, size_bytes=image.size_bytes, moved_bytes=0, duration_s=took)

    return fan_out(group, build, timeout_s=BUILD_TIMEOUT_S)


def _present(node: Node, recipe: Recipe) -> ImageFacts | None:
    """Find the image by tag and label: an interrupted build has the tag without the label."""
    image = node.engine.image(recipe.content_tag)
    return image if image and image.labels.get(LABEL_CONTENT) == recipe.content else None


@dataclass(frozen=True, kw_only=True)
class _Output:
    """Destinations of a builder's output. Without a `notify`, no progress is shown: it takes no time."""

    dockerfile: bytes
    what: str = "the result"
    """Name of a stage without one."""
    notify: Notify = lambda _node, _progress: None
    log: Path | None = None


def _follow(node: Node, request: BuildRequest, context: BinaryIO, shown: _Output, hint: str = "") -> None:
    steps = steps_of(shown.dockerfile, shown.what)
    with BuildOutput(node=node.name, steps=steps, notify=shown.notify, log=shown.log) as output:
        try:
            for progress in node.engine.build(request, context):
                output.read(progress.text)
        except EngineError as error:
            lines = "\n  ".join(["", *output.last_lines()]) if output.last else ""
            raise EngineError(hide_secrets(error.message) + lines, node=node.name, hint=hint or error.hint) from error


def _ask(node: Node, recipe: Recipe) -> ImageVersions:
    """Versions inside the image. EngineError: it lacks oneDNN, or has the wrong build of torch."""
    spec = ContainerSpec(
        name=f"orch-ask-{recipe.content[:12]}-{recipe.profile}",
        image=recipe.content_tag,
        command=("python", "-c", _ASK, *PACKAGE_LABELS),
        environment={},
        labels={},
        network="none",
        working_dir="/tmp",  # noqa: S108  # a path inside the container
        cpus=1.0,
    )
    answer = node.engine.run_once(spec, timeout_s=120.0).check("asking the new image what is in it")
    try:
        found = TypeAdapter(ImageVersions).validate_json(answer.strip().rpartition("\n")[2])
    except ValueError:
        raise EngineError("the new image does not say what is in it", node=node.name, hint="--no-cache") from None
    other_cuda = bool(recipe.cuda) and found.cuda != recipe.cuda
    if not found.onednn or bool(found.cuda) != (recipe.profile == "cuda") or other_cuda:
        problem = f"not an image of profile {' '.join((recipe.profile, recipe.cuda)).strip()}: {found}"
        raise EngineError(problem, node=node.name, hint="--no-cache, --wheels")
    return found
