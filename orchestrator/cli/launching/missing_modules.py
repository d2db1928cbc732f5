"""Modules that a user's script imports and that its nodes do not have, each with the package that brings it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from contract.import_names import (
    BUILT_WITH_TORCH,
    OWN_MODULES,
    is_source,
    normal_name,
    package_of,
    packages_of,
)
from orchestrator.checks.images import modules_missing
from orchestrator.cli.launching.named_packages import is_named, named_packages, names_of, own_requirements
from orchestrator.plan.packages import command_to_add
from orchestrator.specs.finding import Finding
from orchestrator.specs.image import OUR_PACKAGES

if TYPE_CHECKING:
    from orchestrator.specs.facts import NodeFacts
    from orchestrator.specs.request import LaunchRequest


def missing_modules(request: LaunchRequest, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield the modules that the script imports whenever it starts and that nodes have not, with their packages: one
    finding for all that one line adds.

    Those of an image that does not exist yet are known only where no packages are added to it.
    """
    named = named_packages(request)
    missing = modules_missing(list(facts.values()), request.imports)
    groups: dict[tuple[str, str], list[str]] = {}
    for module, nodes in {**missing, **_of_processes(request), **of_the_next_image(request, facts, named)}.items():
        groups.setdefault((", ".join(nodes), _kind_of(module)), []).append(module)
    processes = {spec.name for spec in request.nodes if spec.engine == "process"}
    for (names, kind), modules in groups.items():
        is_process = set(names.split(", ")) <= processes
        packages = list(dict.fromkeys(package_of(module, named) for module in modules))
        yield Finding.of(
            "image.package_missing",
            names,
            case="own" if kind == "own" else "process" if is_process else "script",
            package=", ".join(map(_shown, packages)),
            imports=", ".join(
                f"{request.imports[one]} {'' if number else 'imports '}{one}" for number, one in enumerate(modules)
            ),
            add=_OWN if kind == "own" else _line_for(packages, request, modules, is_process=is_process, kind=kind),
        )


_OWN = (
    "send the folder that has it: orch launch --workdir FOLDER …, or --env PYTHONPATH=FOLDER for one beside the script"
)


def _kind_of(module: str) -> str:
    """`own`: the usual name of a module beside a script; `built`: its package is compiled for torch; else empty."""
    top = module.partition(".")[0]
    return "own" if top in OWN_MODULES else "built" if top in BUILT_WITH_TORCH else ""


def _shown(package: str) -> str:
    """Package with its origin where that is not the index."""
    if not is_source(package):
        return package
    address = package.removeprefix("git+").partition("#")[0]
    return f"{address.rpartition('/')[2]} (from {address}, not from PyPI)"


def _line_for(
    packages: Sequence[str], request: LaunchRequest, modules: Sequence[str], *, is_process: bool, kind: str
) -> str:
    """Line that adds the packages for the ranks."""
    own, named = own_requirements(request), named_packages(request)
    new = [package_of(module) for module in modules if not is_named(module, named)]
    isolation = ["--no-build-isolation"] if kind == "built" else []
    if is_process:
        words = ["-r", str(own)] if own and not new else [*isolation, *packages]
        return shlex.join([sys.executable, "-m", "pip", "install", *words])
    if isolation:
        line = shlex.join(["pip", "install", *isolation, *packages])
        return f"orch build --dockerfile Dockerfile   # with: {line}"
    if not new:
        return shlex.join(["orch", "build", *(("--requirements", str(own)) if names_of(own) else ())])
    return command_to_add(new, request.requirements or None, own)


def _of_processes(request: LaunchRequest) -> dict[str, list[str]]:
    """Modules that the Python lacks which runs orch, and the ranks of nodes without containers."""
    nodes = [spec.name for spec in request.nodes if spec.engine == "process"]
    return {module: nodes for module in request.imports if nodes and not _is_here(module)}


_IN_TORCH = {"functorch", "google", "pip", "six", "torchgen", "triton"}
"""Modules of torch's wheel, and of packages that the image has beside it. `google` is of several packages."""


def of_the_next_image(
    request: LaunchRequest, facts: Mapping[str, NodeFacts], named: Sequence[str]
) -> dict[str, list[str]]:
    """Return the modules that orch's image will lack, where nodes have none yet and no packages are added to it."""
    from orchestrator.fleet.images.build_context import image_pins

    nodes = [spec.name for spec in request.nodes if spec.engine == "docker" and facts[spec.name].image is None]
    adds = request.requirements or request.dockerfile or own_requirements(request)
    if not nodes or request.image or adds or named or not request.imports:
        return {}
    has = {normal_name(pin) for pin in image_pins()}
    known = {module for module in request.imports if any(normal_name(one) in has for one in packages_of(module))}
    return {module: nodes for module in request.imports if module not in {*known, *OUR_PACKAGES, *_IN_TORCH}}


MOST_NAMED = 6
"""Modules that a note names: a large program has dozens that it imports on demand."""


def possible_modules(possible: Mapping[str, str], facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """Yield a note on the modules that an image lacks and that the script may import later."""
    groups: dict[str, list[str]] = {}
    for module, names in modules_missing(list(facts.values()), possible).items():
        groups.setdefault(", ".join(names), []).append(module)
    for nodes, modules in groups.items():
        where = ", ".join(f"{possible[one]} may import {one}" for one in modules[:MOST_NAMED])
        more = f" and {len(modules) - MOST_NAMED} more" if len(modules) > MOST_NAMED else ""
        packages = ", ".join(_shown(package_of(one)) for one in modules[:MOST_NAMED])
        yield f"note: {nodes}: {where}{more}, and the image has no {packages}"


def _is_here(module: str) -> bool:
    """Return whether this Python finds the module; nothing of it is loaded."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
