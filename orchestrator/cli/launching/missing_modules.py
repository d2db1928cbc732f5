"""Modules that a user's script imports and that its nodes do not have, each with the package that brings it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from contract.import_names import normal_name, package_of, packages_of
from orchestrator.checks.preflight import modules_missing
from orchestrator.plan.packages import REQUIREMENTS, command_to_add, named_in
from orchestrator.specs.finding import Finding
from orchestrator.specs.image import OUR_PACKAGES

if TYPE_CHECKING:
    from orchestrator.specs.facts import NodeFacts
    from orchestrator.specs.request import LaunchRequest


def missing_modules(request: LaunchRequest, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield the modules that the script imports whenever it starts and that a node has not, each with its package.

    Those of an image that does not exist yet are known only where no packages are added to it.
    """
    own = own_requirements(request)
    named = names_of(own)
    by_process = {spec.name for spec in request.nodes if spec.engine == "process"}
    missing = modules_missing(list(facts.values()), request.imports)
    for module, nodes in {**missing, **_of_processes(request), **of_the_next_image(request, facts, named)}.items():
        package = package_of(module, named)
        add = command_to_add(package, request.requirements or None)
        if own and is_named(module, named):
            add = shlex.join(["orch", "build", "--requirements", str(own)])
        elif own and not request.requirements:
            add = f"echo {package} >> {shlex.quote(str(own))} && orch build --requirements {shlex.quote(str(own))}"
        yield Finding.of(
            "image.package_missing",
            ", ".join(nodes),
            case="process" if set(nodes) <= by_process else "script",
            package=package,
            module=module,
            place=request.imports[module],
            add=_pip(package) if set(nodes) <= by_process else add,
        )


def _of_processes(request: LaunchRequest) -> dict[str, list[str]]:
    """Modules that the Python lacks which runs orch, and the ranks of nodes without containers."""
    nodes = [spec.name for spec in request.nodes if spec.engine == "process"]
    return {module: nodes for module in request.imports if nodes and not _is_here(module)}


_IN_TORCH = {"functorch", "google", "pip", "six", "torchgen"}
"""Modules of torch's wheel, and of packages that the image has beside it. `google` is of several packages."""


def of_the_next_image(
    request: LaunchRequest, facts: Mapping[str, NodeFacts], named: Sequence[str]
) -> dict[str, list[str]]:
    """Return the modules that orch's image will lack, where nodes have none yet and no packages are added to it."""
    from orchestrator.fleet.images.build_context import image_pins

    nodes = [spec.name for spec in request.nodes if spec.engine == "docker" and facts[spec.name].image is None]
    own = request.requirements or own_requirements(request)
    if not nodes or request.image or own or named or not request.imports:
        return {}
    has = {normal_name(pin) for pin in image_pins()}
    known = {module for module in request.imports if any(normal_name(one) in has for one in packages_of(module))}
    return {module: nodes for module in request.imports if module not in {*known, *OUR_PACKAGES, *_IN_TORCH}}


def possible_modules(possible: Mapping[str, str], facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """Yield a note for each module that an image lacks and that the script may import later."""
    for module, nodes in modules_missing(list(facts.values()), possible).items():
        where = f"{possible[module]} may import {module}"
        yield f"note: {', '.join(nodes)}: {where}, and the image has no {package_of(module)}"


def own_requirements(request: LaunchRequest) -> Path | None:
    """Return the user's own requirements.txt, in the folder of the code; None where the inventory names a file."""
    file = (request.workdir or Path()) / REQUIREMENTS
    return file if request.workdir is not None and not request.requirements and file.is_file() else None


def names_of(file: Path | None) -> list[str]:
    """Return the packages that a file of requirements names."""
    try:
        return named_in(file.read_text("utf-8")) if file else []
    except (OSError, UnicodeDecodeError):
        return []  # the build will say so


def is_named(module: str, named: Sequence[str]) -> bool:
    """Return whether one of these packages brings the module."""
    return package_of(module, named) in named


def _is_here(module: str) -> bool:
    """Whether this Python finds the module; nothing of it is loaded."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _pip(package: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", package])
