"""`orch build`: build the images that the nodes need, and copy them to nodes without them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator import __version__
from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.context import ChosenNodes
from orchestrator.cli.options import Output, YesOption
from orchestrator.cli.report import exit_code, report_errors, say
from orchestrator.plan.cuda import AUTO
from orchestrator.plan.image import DEFAULT_BASE, image_step
from orchestrator.specs.cuda import TORCH_BUILDS
from orchestrator.specs.errors import EXIT_INTERRUPTED, ConfigError, UsageError
from orchestrator.specs.image import IMAGE_EXPECTED, IMAGE_REFERENCE, Placed

if TYPE_CHECKING:
    from orchestrator.fleet.images.build import BuildOptions, NeededImage
    from orchestrator.fleet.images.distribute_image import Registry
    from orchestrator.nodes.interface import Node
    from orchestrator.specs.inventory import Inventory, NodeSpec

EXAMPLES = """\
orch build
orch build --profile cpu --nodes alpha,beta
orch build --profile cuda --on gamma
orch build --cuda 12.6
orch build --requirements requirements.txt --apt apt.txt
orch build --image lab/mine:1
orch build --registry 192.168.1.5:5000
orch build --wheels ./wheels --ca-bundle /etc/ssl/certs/ca-certificates.crt
PIP_INDEX_URL=https://packages.example/simple orch build
"""


class Profile(StrEnum):
    """Images by device."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def build(
    *,
    profile: Profile = typer.Option(Profile.AUTO, metavar="auto|cpu|cuda", help="auto: chosen by each node's device."),
    cuda: str = typer.Option(
        AUTO,
        metavar=f"auto|{'|'.join(TORCH_BUILDS)}",
        help="CUDA of torch's build; auto: the newest that the GPUs and drivers of all nodes support.",
    ),
    chosen: ChosenNodes,
    on: str = typer.Option(
        "", metavar="NODE|controller", help="Machine that builds (default: this computer, if it can)."
    ),
    each_node: bool = typer.Option(False, "--each-node", help="Build on every node, transfer no image."),
    no_cache: bool = typer.Option(False, "--no-cache", help="Build again even if the image exists."),
    base: str = typer.Option(DEFAULT_BASE, metavar="IMAGE", help="Debian base image."),
    requirements: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Python packages to add: requirements.txt or pyproject.toml (default: image.requirements of the"
        " inventory).",
    ),
    apt: Path | None = typer.Option(
        None, metavar="FILE", help="Debian packages to add, one per line (default: image.apt of the inventory)."
    ),
    dockerfile: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Dockerfile to build last, FROM ${BASE} (default: image.dockerfile of the inventory).",
    ),
    image: str = typer.Option(
        "",
        metavar="REF",
        help="Build nothing: copy this image of your own to every node (default: image.reference of the inventory).",
    ),
    registry: str = typer.Option(
        "",
        metavar="URL",
        help="Push the image there once; every node pulls it (default: image.registry of the inventory).",
    ),
    wheels: Path | None = typer.Option(
        None, metavar="DIR", help="Folder of wheels that pip uses before the index (default: $PIP_FIND_LINKS)."
    ),
    ca_bundle: Path | None = typer.Option(
        None, metavar="FILE", help="CA certificates for pip (default: $PIP_CERT or $SSL_CERT_FILE)."
    ),
    output: Output,
    yes: YesOption = False,
) -> int:
    """Build the CPU or CUDA image and copy it to every node.

    pip and proxy settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_TRUSTED_HOST, https_proxy and so on) are passed to
    the build and are not kept in the image. Nodes that have the image are skipped; the others get the missing layers.
    """
    from orchestrator.fleet.images.build_context import site_of
    from orchestrator.fleet.images.distribute_image import Registry
    from orchestrator.plan.packages import command_to_add

    if cuda not in (AUTO, *TORCH_BUILDS):
        raise UsageError(f"--cuda {cuda}: torch has builds for CUDA {' and '.join(TORCH_BUILDS)}, or auto")
    if on and each_node:
        raise UsageError("--on and --each-node exclude each other")
    loaded, nodes = chosen.load()
    specs = [spec for spec in nodes if spec.engine == "docker"]
    if not specs:
        raise ConfigError("no node with a container engine", hint="engine: process needs no image")
    given = {"requirements": requirements, "apt": apt, "dockerfile": dockerfile}
    files = {key: str(path.absolute()) for key, path in given.items() if path}
    own = {"--profile": profile is not Profile.AUTO, "--cuda": cuda != AUTO, "--on": on, "--each-node": each_node}
    builds = [option for option, value in own.items() if value] + [f"--{key}" for key in files]
    _must_fit(image, builds)
    address = registry or loaded.inventory.image.registry
    if address and each_node:
        raise UsageError("--each-node transfers no image: it does not go with a registry")
    through = Registry.of(address) if address else None
    if reference := image or ("" if builds else loaded.inventory.image.reference or ""):
        return _bring(reference, specs, loaded.inventory.project, through, output, yes=yes)
    options = replace(
        plain_options(loaded.inventory, files),
        profile=profile.value,
        cuda=cuda,
        base=base,
        on=on,
        each_node=each_node,
        no_cache=no_cache,
        registry=through,
        site=site_of(os.environ, wheels=wheels, ca_bundle=ca_bundle),
    )
    named = requirements or loaded.inventory.image.requirements
    placed = build_images(options, specs, Path(named).name if named else "", quiet=output.as_json, yes=yes)
    if placed is None:
        say("nothing was built")
        return EXIT_INTERRUPTED
    tell_of_torchvision(placed, command_to_add(["torchvision"], loaded.inventory.image.requirements))
    return _report(placed, output)


def plain_options(inventory: Inventory, files: Mapping[str, str]) -> BuildOptions:
    """Return the options of a build as the inventory has them. `files`: those of its keys that are given instead."""
    from orchestrator.fleet.images.build import BuildOptions
    from orchestrator.fleet.images.build_context import read_additions, site_of
    from orchestrator.fleet.images.distribute_image import Registry

    return BuildOptions(
        project=inventory.project,
        registry=Registry.of(inventory.image.registry) if inventory.image.registry else None,
        additions=read_additions(inventory.image.model_copy(update=dict(files))),
        site=site_of(os.environ),
        version=__version__,
        log=_new_log(),
    )


def _new_log() -> Path:
    """Return the file for the whole output of pip and apt; the one of the last build is removed."""
    from platformdirs import user_state_path

    log = user_state_path("orch") / "logs" / "build.log"
    log.unlink(missing_ok=True)
    return log


def build_images(
    options: BuildOptions, specs: Sequence[NodeSpec], packages: str, *, quiet: bool, yes: bool
) -> Sequence[Placed] | None:
    """Build the images that these nodes need, and copy them; None: the answer was no.

    `packages`: name of the file with the packages that are added. What is there already is not asked about.
    """
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.images.build import needed_images, provide_images
    from orchestrator.nodes.local import LocalNode

    for note in options.additions.notes:
        say(f"note: {note}")
    require_consent(yes=yes)
    with closing(LocalNode()) as controller, connected(specs) as reached:
        images = needed_images(options, specs, reached)
        missing = {one.recipe.profile: one.missing() for one in images}
        absent = [profile for profile, nodes in missing.items() if nodes or options.no_cache]
        copies = () if options.no_cache or options.each_node or options.on else built_profiles(images, controller)
        names = [spec.name for spec in specs]
        step = image_step(absent, packages, names, copies=copies, each=options.each_node) if absent else ""
        if absent and not agreed(f"{step[0].upper()}{step[1:]}?", yes=yes, default=True, ends=True):
            return None
        with progress_view(quiet=quiet) as view:
            placed = provide_images(options, specs, reached, controller, view.notify, images)
    for reason in dict.fromkeys(result.cuda_reason for result in placed if result.cuda_reason):
        say(f"note: {reason}")
    return placed


def built_profiles(images: Iterable[NeededImage], controller: Node) -> set[str]:
    """Return the profiles whose images are all on a machine that they can be copied from."""
    missing = {one.recipe.profile for one in images if not one.is_built(controller)}
    return {one.recipe.profile for one in images} - missing


def _must_fit(image: str, builds: Sequence[str]) -> None:
    """UsageError: `image` is no name of an image, or options are given with it that are about building one."""
    if image and not IMAGE_REFERENCE.fullmatch(image):
        raise UsageError(f"--image {image}: expected {IMAGE_EXPECTED}")
    if image and builds:
        raise UsageError(f"--image builds nothing: {', '.join(builds)} does not go with it")


def _bring(
    reference: str, specs: Sequence[NodeSpec], project: str, registry: Registry | None, output: Output, *, yes: bool
) -> int:
    """Copy an image that orch has not built to these nodes."""
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.images.reference import provide_reference
    from orchestrator.nodes.local import LocalNode

    names = ", ".join(spec.name for spec in specs)
    if not agreed(f"Copy {reference} to {names}?", yes=yes, default=True, ends=True):
        say("nothing was copied")
        return EXIT_INTERRUPTED
    folders = {spec.name: spec.folder(project) for spec in specs}
    with closing(LocalNode()) as controller, connected(specs) as reached, progress_view(quiet=output.as_json) as view:
        placed = provide_reference(reference, reached, folders, controller, view.notify, registry)
    return _report(placed, output)


def _report(placed: Sequence[Placed], output: Output) -> int:
    from orchestrator.render.images import images_data, images_table

    ready = [result.node for result in placed if not result.error]
    output.write(images_data(placed), ready, images_table(placed, wide=output.wide))
    return outcome(placed, quiet=output.as_json)


def tell_of_torchvision(placed: Sequence[Placed], add: str) -> None:
    """Print the profiles of images without torchvision. `add`: the command that adds it."""
    if profiles := ", ".join(sorted({result.profile for result in placed if not result.has_torchvision})):
        say(f"note: torchvision is left out of the image ({profiles}): pip found no build of it for this torch")
        say(f"  → {add}   # once PyTorch's index, or a wheel in --wheels DIR, has it")


def outcome(placed: Sequence[Placed], *, quiet: bool) -> int:
    """Report the error of every node and return the exit code."""
    errors = [result.error for result in placed if result.error]
    report_errors(() if quiet else errors)
    return exit_code(len(errors), len(placed))
