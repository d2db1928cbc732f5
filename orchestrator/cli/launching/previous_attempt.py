"""What an earlier attempt left on the nodes: the checkpoint that a run goes on from, its code, its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

from orchestrator.cli.report import say
from orchestrator.fleet.checkpoints.newest import Newest, bring_newest, holding, newest_anywhere
from orchestrator.fleet.checkpoints.survey import Places, places_in
from orchestrator.fleet.connect import connected
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.runs.find_runs import FoundRuns, find_runs, must_be_over
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.supervise.lost_steps import steps_lost
from orchestrator.nodes.interface import Node
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest


@dataclass(frozen=True, kw_only=True)
class PreviousAttempt:
    """The nodes of a run that goes on, those of its last attempt among them, and what they have of it."""

    nodes: Mapping[str, Node]
    places: Places
    looking: Future[Newest]
    """Begun beside the question for facts: a node that is off takes its seconds once."""
    finding: Future[FoundRuns]
    frees: frozenset[int] = frozenset()
    """Ports that its last attempt still holds, and will have given back."""

    def must_be_over(self, plan: Plan) -> None:
        """ConflictError where it still runs, on nodes of this attempt or of the last one."""
        must_be_over(self.finding.result(), plan.run_id)

    def elsewhere(self, plan: Plan) -> Places:
        """Where nodes have the run that take no part in this plan."""
        taking = {part.node for part in plan.nodes}
        return {name: place for name, place in self.places.items() if name not in taking}

    def holding(self, facts: Mapping[str, NodeFacts]) -> Mapping[str, NodeFacts]:
        held = holding(facts, self.looking.result())
        return {name: replace(one, ports_in_use=one.ports_in_use - self.frees) for name, one in held.items()}

    def bring(self, plan: Plan, *, quiet: bool) -> None:
        """The newest checkpoint to the node of rank 0; nothing where it would lose all that was trained."""
        from orchestrator.render.progress import ProgressView

        newest = self.looking.result()
        if lost := steps_lost(RunRecord(plan.run_id), newest, plan.command):
            say(f"note: {lost}")
        with ProgressView(quiet=quiet) as view:
            bring_newest(self.nodes, plan, newest, view.notify)


@contextmanager
def earlier_attempt(
    inventory: Inventory, request: LaunchRequest, plan: Plan | None, reached: Sequence[Node], *, ending: bool = False
) -> Iterator[PreviousAttempt | None]:
    """None where there is none. `reached` are the nodes of the attempt to come; `ending`: the last one still runs, and
    will have been stopped."""
    if plan is None:
        yield None
        return
    here = {node.name: node for node in reached}
    names = {*(part.node for part in plan.nodes), *plan.away} - set(here)
    gone = [spec for spec in inventory.nodes if spec.name in names]
    with connected(gone) as others:
        nodes = {**here, **{node.name: node for node in others}}
        places = places_in([*request.nodes, *gone], request.project)
        looking = begin(lambda: newest_anywhere(list(nodes.values()), places, plan.run_id))
        finding = begin(lambda: find_runs(list(nodes.values())))
        frees = frozenset({plan.master_port, plan.supervisor_port} if ending else ())
        yield PreviousAttempt(nodes=nodes, places=places, looking=looking, finding=finding, frees=frees)
