"""What a launch lacks before its first start, an inventory or the image: one list, one question, and the work."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from contract.import_names import normal_name, package_of, packages_of
from orchestrator.checks.preflight import modules_missing
from orchestrator.cli.consent import agreed, can_ask
from orchestrator.cli.report import invocation, report_errors, say
from orchestrator.plan.image import image_words
from orchestrator.plan.packages import REQUIREMENTS, command_to_add, named_in
from orchestrator.specs.errors import PreflightError, UsageError
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.image import OUR_PACKAGES

if TYPE_CHECKING:
    from orchestrator.specs.facts import NodeFacts
    from orchestrator.specs.inventory import Inventory, NodeSpec
    from orchestrator.specs.request import LaunchRequest


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """Steps before a start; false where there are none."""

    inventory: Path | None = None
    """File to write, with this computer as its only node."""
    profiles: tuple[str, ...] = ()
    """Profiles of the images to build."""
    requirements: Path | None = None
    """The user's own file of packages, for the image; None: that of the inventory, if it has one."""

    def __bool__(self) -> bool:
        return bool(self.inventory or self.profiles)

    def lines(self) -> Iterator[str]:
        """Yield each step with its cost."""
        if self.inventory:
            yield f"this computer as the only node, in {self.inventory.name}"
        if self.profiles:
            yield f"build {image_words(self.profiles, self.requirements.name if self.requirements else '')}"

    def commands(self) -> Iterator[str]:
        """Yield each step as a command to paste, and the launch."""
        if self.inventory:
            yield "orch init --local --yes"
        if self.profiles:
            more = ["--requirements", str(self.requirements)] if self.requirements else []
            yield shlex.join(["orch", "build", *more, "--yes"])
        words = [word for word in invocation.current.words if word not in ("-y", "--yes")]
        place = words.index("launch") + 1 if "launch" in words else len(words)
        yield shlex.join(["orch", *words[:place], "--yes", *words[place:]])

    def are_agreed(self, *, yes: bool) -> bool:
        """Show the steps and ask once. UsageError: there is no terminal; it names the steps as commands."""
        if not yes and not can_ask():
            listed = "".join(f"\n  {line}" for line in self.lines())
            raise UsageError(
                f"a launch needs this first, and there is no terminal to ask on:{listed}",
                hint=f"{' && '.join(self.commands())}\n  → or all of it at once: {list(self.commands())[-1]}",
            )
        say("needed first:")
        for line in self.lines():
            say(f"  {line}")
        return agreed("Do that, and start the run?", yes=yes, default=True)

    def carry_out(self, inventory: Inventory, specs: Sequence[NodeSpec], *, quiet: bool) -> None:
        """Write the inventory and build the images. PreflightError: a node did not get its image."""
        if self.inventory:
            from orchestrator.cli.init import write_inventory

            write_inventory(inventory.nodes, self.inventory, force=False, yes=True)
        if self.profiles:
            from orchestrator.cli.build import build_images, plain_options

            files = {"requirements": str(self.requirements.absolute())} if self.requirements else {}
            containers = [spec for spec in specs if spec.engine == "docker"]
            named = self.requirements.name if self.requirements else ""
            placed = build_images(plain_options(inventory, files), containers, named, quiet=quiet, yes=True)
            if report_errors(result.error for result in placed or ()):
                raise PreflightError("nothing was started", hint="orch build")


class NotReadyError(PreflightError):
    """A launch lacks what `steps` make."""

    def __init__(self, steps: FirstSteps) -> None:
        super().__init__("; ".join(steps.lines()), hint="orch build")
        self.steps = steps


def steps_needed(request: LaunchRequest, facts: Mapping[str, NodeFacts], findings: Sequence[Finding]) -> FirstSteps:
    """Return the steps that mend all of the errors that were found; none where something else is wrong, too."""
    from orchestrator.plan.ranks import device_of

    errors = {finding.id for finding in findings if finding.severity is Severity.ERROR}
    own = _requirements(request)
    named = _named(own)
    lacking = modules_missing(list(facts.values()), request.imports)
    unfit = {node for nodes in lacking.values() for node in nodes}
    without = {finding.node for finding in findings if finding.id == "image.missing"} | unfit
    unnamed = [module for module in lacking if not _is_named(module, named)]
    if request.image or errors - {"image.missing"} or unnamed or _of_the_next_image(request, facts, named):
        return FirstSteps()
    profiles = {device_of(spec, facts[spec.name]) for spec in request.nodes if spec.name in without}
    return FirstSteps(profiles=tuple(sorted(profiles)), requirements=own if named else None)


def missing_modules(request: LaunchRequest, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield the modules that the script imports whenever it starts and that a node has not, each with its package.

    Those of an image that does not exist yet are known only where no packages are added to it.
    """
    own = _requirements(request)
    named = _named(own)
    by_process = {spec.name for spec in request.nodes if spec.engine == "process"}
    lacking = modules_missing(list(facts.values()), request.imports)
    for module, nodes in {**lacking, **_of_processes(request), **_of_the_next_image(request, facts, named)}.items():
        package = package_of(module, named)
        add = command_to_add(package, request.requirements or None)
        if own and _is_named(module, named):
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


def _of_the_next_image(
    request: LaunchRequest, facts: Mapping[str, NodeFacts], named: Sequence[str]
) -> dict[str, list[str]]:
    """Modules that orch's image will lack, where nodes have none yet and no packages are added to it."""
    from orchestrator.fleet.images.build_context import image_pins

    nodes = [spec.name for spec in request.nodes if spec.engine == "docker" and facts[spec.name].image is None]
    if not nodes or request.image or request.requirements or named or not request.imports:
        return {}
    has = {normal_name(pin) for pin in image_pins()}
    known = {module for module in request.imports if any(normal_name(one) in has for one in packages_of(module))}
    return {module: nodes for module in request.imports if module not in known and module not in OUR_PACKAGES}


def possible_modules(possible: Mapping[str, str], facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """Yield a note for each module that an image lacks and that the script may import later."""
    for module, nodes in modules_missing(list(facts.values()), possible).items():
        where = f"{possible[module]} may import {module}"
        yield f"note: {', '.join(nodes)}: {where}, and the image has no {package_of(module)}"


def _requirements(request: LaunchRequest) -> Path | None:
    """The user's own requirements.txt, in the folder of the code; None where the inventory names a file."""
    file = (request.workdir or Path()) / REQUIREMENTS
    return file if request.workdir is not None and not request.requirements and file.is_file() else None


def _named(file: Path | None) -> list[str]:
    try:
        return named_in(file.read_text("utf-8")) if file else []
    except (OSError, UnicodeDecodeError):
        return []  # the build will say so


def _is_named(module: str, named: Sequence[str]) -> bool:
    return package_of(module, named) in named


def _is_here(module: str) -> bool:
    """Whether this Python finds the module; nothing of it is loaded."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _pip(package: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", package])
