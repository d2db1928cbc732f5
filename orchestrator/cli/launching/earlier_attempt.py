"""The attempt before, of a run that is resumed: where it ran, its newest checkpoint, and what rank 0 wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.cli.consent import agreed, can_ask
from orchestrator.cli.report import say
from orchestrator.fleet.checkpoints.newest import Newest, chosen_checkpoint, newest_anywhere, unreported_lines
from orchestrator.fleet.checkpoints.results import results_of
from orchestrator.fleet.checkpoints.survey import places_in
from orchestrator.fleet.connect import connected
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.runs.find_runs import containers_of, find_runs
from orchestrator.fleet.supervise.replan import PreviousAttempt, collect_known, lineage_of
from orchestrator.nodes.interface import Node
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.store.run_record import RunRecord


def with_checkpoint(
    previous: PreviousAttempt, run_id: str, wanted: tuple[int, str] | None, *, ask: bool
) -> PreviousAttempt:
    """Return the attempt with the checkpoint that a person has chosen: by `wanted`, its step and the beginning of its
    hash, or by an answer where the nodes hold a newer one that no rank has reported."""
    nodes, newest = list(previous.nodes.values()), previous.newest.result()
    left = {one.identity for one in RunRecord(run_id).journal.checkpoints}
    strange = [one for one in newest.in_question if one.identity not in left]
    if wanted is None and strange and ask and can_ask():
        for node, text in unreported_lines(newest, run_id):
            say(f"note: {node}: {text}")
        one, instead = strange[0], "the beginning" if newest.step is None else f"step {newest.step}"
        question = f"Resume from step {one.step}, which {one.node} holds and no rank has reported, not from {instead}?"
        wanted = one.identity if agreed(question, yes=False) else None
    if wanted is None:
        return previous
    chosen: Future[Newest] = Future()
    chosen.set_result(chosen_checkpoint(nodes, newest, *wanted))
    return replace(previous, newest=chosen)


@contextmanager
def earlier_attempt(
    inventory: Inventory, request: LaunchRequest, plan: Plan, reached: Sequence[Node], *, ending: bool = False
) -> Iterator[PreviousAttempt]:
    """Yield the attempt of `plan`.

    `reached`: nodes of the next attempt; `ending`: the last one is still active and will have been stopped.
    """
    here = {node.name: node for node in reached}
    names = {*(part.node for part in plan.nodes), *plan.away} - set(here)
    gone = [spec for spec in inventory.nodes if spec.name in names]
    with connected(gone) as others:
        nodes = {**here, **{node.name: node for node in others}}
        places = places_in([*request.nodes, *gone], request.project)
        record, everyone = RunRecord(plan.run_id), list(nodes.values())
        runs = begin(lambda: find_runs(everyone))

        def find_newest() -> Newest:
            for run in (one for one in runs.result().runs if one.run_id == plan.run_id):
                collect_known(containers_of([*run.members, *(member for _, member in run.earlier)], nodes), record)
            return newest_anywhere(everyone, places, plan.run_id, lineage_of(record))

        newest = begin(find_newest)
        results = begin(lambda: results_of(nodes, places, plan))
        frees = frozenset({plan.master_port, plan.supervisor_port} if ending else ())
        yield PreviousAttempt(nodes=nodes, places=places, newest=newest, results=results, runs=runs, frees=frees)
