"""Steps before the first start of a run, an inventory and the image: one list, one question, and the work."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checks.images import modules_missing
from orchestrator.cli.consent import agreed, can_ask
from orchestrator.cli.launching.missing_modules import of_the_next_image
from orchestrator.cli.launching.named_packages import is_named, named_packages, names_of, own_requirements
from orchestrator.cli.report import invocation, report_errors, say
from orchestrator.plan.image import image_step
from orchestrator.plan.packages import REQUIREMENTS
from orchestrator.specs.errors import OrchError, PreflightError, UsageError
from orchestrator.specs.finding import Finding, Severity

if TYPE_CHECKING:
    from orchestrator.specs.facts import NodeFacts
    from orchestrator.specs.inventory import Inventory, NodeSpec
    from orchestrator.specs.request import LaunchRequest


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """Steps before a start; false where there are none."""

    nodes: tuple[NodeSpec, ...] = ()
    """Nodes of the run."""
    inventory: Path | None = None
    """File to write, with this computer as its only node."""
    profiles: tuple[str, ...] = ()
    """Profiles of the images to build."""
    copied_to: tuple[str, ...] = ()
    """Nodes that get an image from the machine that builds it."""
    copies: frozenset[str] = frozenset()
    """Profiles whose image a machine has already: it is only copied."""
    adds: bool = False
    """True if the images are there already, without packages that are added."""
    requirements: Path | None = None
    """The user's own file of packages, for the image; None: that of the inventory, if it has one."""

    def __bool__(self) -> bool:
        return bool(self.inventory or self.profiles)

    def lines(self) -> Iterator[str]:
        """Yield each step with its cost."""
        if self.inventory:
            yield f"this computer as the only node, in {self.inventory.name}"
        if self.profiles:
            if self.adds and not self.copies >= {*self.profiles}:
                to = f", and copy it to {', '.join(self.copied_to)}" if self.copied_to else ""
                yield f"add the packages of your {REQUIREMENTS} to the image, about 1 min{to}"
            else:
                packages = self.requirements.name if self.requirements else ""
                yield image_step(self.profiles, packages, self.copied_to, copies=self.copies)

    def with_copies(self, inventory: Inventory) -> FirstSteps:
        """Return the steps with the images that this computer or a node has already."""
        if not self.copied_to:
            return self
        from orchestrator.cli.build import built_profiles, plain_options
        from orchestrator.fleet.connect import connected
        from orchestrator.fleet.images.build import needed_images
        from orchestrator.nodes.local import LocalNode

        containers = [spec for spec in self.nodes if spec.engine == "docker"]
        try:
            with closing(LocalNode()) as controller, connected(containers) as nodes:
                images = needed_images(plain_options(inventory, self._files()), containers, nodes)
                return replace(self, copies=frozenset(built_profiles(images, controller)))
        except OrchError:  # the build reports it, after the question
            return self

    def _files(self) -> dict[str, str]:
        return {"requirements": str(self.requirements.absolute())} if self.requirements else {}

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
        return agreed("Do that, and start the run?", yes=yes, default=True, ends=True)

    def carry_out(self, inventory: Inventory, *, quiet: bool) -> None:
        """Write the inventory and build the images. PreflightError: a node did not get its image."""
        if self.inventory:
            from orchestrator.cli.init import write_inventory

            write_inventory(inventory.nodes, self.inventory, force=False, yes=True)
        if self.profiles:
            from orchestrator.cli.build import build_images, plain_options

            containers = [spec for spec in self.nodes if spec.engine == "docker"]
            named = self.requirements.name if self.requirements else ""
            placed = build_images(plain_options(inventory, self._files()), containers, named, quiet=quiet, yes=True)
            if report_errors(result.error for result in placed or ()):
                raise PreflightError("nothing was started", hint="orch build")


class NotReadyError(PreflightError):
    """A launch lacks what `steps` make."""

    def __init__(self, steps: FirstSteps) -> None:
        super().__init__("; ".join(steps.lines()), hint="orch build")
        self.steps = steps


def steps_needed(request: LaunchRequest, facts: Mapping[str, NodeFacts], findings: Sequence[Finding]) -> FirstSteps:
    """Return the steps that fix all of the errors that were found; none where something else is wrong, too."""
    from orchestrator.plan.ranks import device_of

    errors = {finding.id for finding in findings if finding.severity is Severity.ERROR}
    own, named = own_requirements(request), named_packages(request)
    missing = modules_missing(list(facts.values()), request.imports)
    unfit = {node for nodes in missing.values() for node in nodes}
    without = {finding.node for finding in findings if finding.id == "image.missing"} | unfit
    unnamed = [module for module in missing if not is_named(module, named)]
    if request.image or errors - {"image.missing"} or unnamed or of_the_next_image(request, facts, named):
        return FirstSteps()
    unready = [spec for spec in request.nodes if spec.name in without]
    adds = bool(unfit) and "image.missing" not in errors
    profiles = tuple(sorted({device_of(spec, facts[spec.name]) for spec in unready}))
    to = tuple(spec.name for spec in unready if spec.connection == "ssh")
    return FirstSteps(
        nodes=request.nodes, profiles=profiles, copied_to=to, adds=adds, requirements=own if names_of(own) else None
    )
