"""The order of a launch, and the interface of the places where a run can start: machines, or a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.cli.options import OutputMode
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan

if TYPE_CHECKING:
    from orchestrator.cli.launching.following import Attended
    from orchestrator.cli.launching.own_code import OwnCode
    from orchestrator.fleet.planning.look_ahead import CheckedWords
    from orchestrator.specs.request import LaunchRequest


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """The inventory, the options of a command line, and the run before this one."""

    inventory: Inventory
    options: LaunchOptions
    mode: OutputMode
    earlier: Plan | None = None
    """Attempt before, of a run that is resumed."""
    again: Plan | None = None
    """Another run, whose settings a new run repeats."""
    ending: bool = False
    """True if the earlier attempt is still active and will have been stopped."""

    @property
    def before(self) -> Plan | None:
        return self.earlier or self.again

    @property
    def prog(self) -> str:
        return "orch resume" if self.options.resume else "orch launch"

    @property
    def to_write(self) -> Path | None:
        """The inventory's file, where there is none yet."""
        file = self.mode.inventory
        return None if file is None or file.exists() else file

    def confirmed(self) -> LaunchOrder:
        """The same order, with nothing left to ask."""
        return replace(self, mode=replace(self.mode, confirmed=True))


class PlannedRun(Protocol):
    """A run that is ready to start: its plan, and how it is shown, asked about and started."""

    @property
    def plan(self) -> Plan: ...

    @property
    def order(self) -> LaunchOrder:
        """The order, with what its place has decided."""

    def write(self) -> None:
        """Write on stdout what would be done, for a dry run."""

    def show(self, *, asking: bool) -> None:
        """Print the plan for a person. `asking`: the question whether to start it follows."""

    @property
    def question(self) -> tuple[str, bool]:
        """The question whether to start it, and the answer of an empty line."""

    def start(self) -> Attended:
        """Start it, or submit it; return the active run."""


class LaunchEngine(Protocol):
    """A place where runs start."""

    def settled(self, order: LaunchOrder) -> LaunchOrder:
        """Return the order with what this place decides: the nodes, and the attempt that it resumes. UsageError:
        options that have no meaning here."""

    def request(self, order: LaunchOrder, checked: CheckedWords, code: OwnCode | None) -> LaunchRequest:
        """Return the request. `checked`: what the trainer says of the command; `code`: the user's, to be copied."""

    def planned(self, order: LaunchOrder, request: LaunchRequest) -> AbstractContextManager[PlannedRun]:
        """Collect the facts, check them and plan: all that precedes the first change."""
