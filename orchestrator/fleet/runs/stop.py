"""Stop a run on all nodes at once, remove what ended runs left behind, or remove a run completely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from contract.run_folder import STOPPED
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.claims import claimant
from orchestrator.fleet.runs.find_runs import RunningContainer, containers_of, find_runs, split_by_labels
from orchestrator.fleet.runs.launch import discard
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.nodes.cluster_nodes import cluster_of
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.errors import OrchError, UnkeptError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ACTIVE, ContainerFacts, Run, State
from orchestrator.store.run_names import matching
from orchestrator.store.run_record import RunRecord, known_records
from orchestrator.store.run_store import RunStore

MARK_S = 10.0
LEFT_STOP_S = 10
"""Stop timeout for leftover containers of a stopped run: they wait for their peers and have nothing to save."""


FOREIGN = "foreign"
"""Folder of a record with the lines of containers that are no part of the run: nothing about it is read from them."""

# A constant; $1 folder of the project, which may begin with ~, $2 run id, $3 text, $4 name of the file. Only where the
# run has a folder: agents that are started there again see it.
_MARK = """
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
cd -- "$root/runs/$2" 2>/dev/null || exit 0
printf '%s\\n' "$3" > ".$4.new" && mv -f -- ".$4.new" "$4" && { sync -- "$4" . 2>/dev/null || sync; }
"""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Result of stopping a run."""

    outcomes: tuple[Outcome[RunningContainer, ContainerFacts | None], ...]
    """Outcome of each container of the run, of whatever attempt."""
    checkpoint_step: int | None
    """Step of the last checkpoint that rank 0 reported as written and verified."""
    left: Mapping[str, str]
    """Nodes where a container may still run, each with the reason."""
    not_recorded: str = ""
    """Reason why the record does not say that the run was stopped; empty if it does."""


def stop_run(
    nodes: Sequence[Node],
    record: RunRecord,
    *,
    timeout_s: int,
    silent: Mapping[str, OrchError] = MappingProxyType({}),
    places: Mapping[str, str] = MappingProxyType({}),
    on_step: Callable[[str, str], None] = lambda _node, _step: None,
) -> Stopped:
    """End every container of the run on these nodes, whatever attempt its label names.

    A mark in the run's folder keeps agents from starting to train again, then SIGTERM goes to all containers together,
    SIGKILL after `timeout_s`; the lines are recorded and the containers removed. Then the nodes are asked again. A
    record that cannot be written keeps none of this from being done.

    `silent`: nodes that gave no answer; `places`: the project's folder on each node.
    """
    not_recorded = _problem(record.mark_stopping)
    text = f"stopped by {claimant()}"
    marked = [node for node in nodes if node.name in places]
    fan_out(marked, lambda node: _mark(node, places[node.name], record.run_id, text), timeout_s=MARK_S)
    found = find_runs(nodes)
    silent = {**silent, **found.unreachable}
    run = next((run for run in found.runs if run.run_id == record.run_id), None)
    containers, foreign = _to_stop(run, nodes) if run else ((), ())
    outcomes = stop_containers(containers, record, foreign=foreign, timeout_s=timeout_s, on_step=on_step)
    checkpoint = record.last_checkpoint()
    step = checkpoint[0] if checkpoint else None
    if record.outcome() is None or record.journal.is_lost:  # a run that had ended before stays what it was
        reason = "no checkpoint" if step is None else f"checkpoint of step {step}"
        not_recorded = _problem(lambda: record.save_outcome("stopped", reason)) or not_recorded
    may_hold = _may_hold(record.newest_plan(), run, [node.name for node in nodes], silent)
    left = may_hold | _still_there(nodes, record.run_id, outcomes)
    return Stopped(outcomes=outcomes, checkpoint_step=step, left=left, not_recorded=not_recorded)


def _problem(write: Callable[[], None]) -> str:
    """Reason why the record cannot be written, as with a full disk; empty if it was."""
    try:
        write()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _mark(node: Node, place: str, run_id: str, text: str) -> None:
    argv = ["sh", "-c", _MARK, "sh", place, run_id, text, STOPPED]
    node.run(argv, timeout_s=MARK_S).check("marking the run as stopped")


def _to_stop(run: Run, nodes: Sequence[Node]) -> tuple[tuple[RunningContainer, ...], tuple[RunningContainer, ...]]:
    """The run's containers, and those that are no part of it. Of a job's earlier lives those that have not ended: the
    scheduler has the others."""
    by_name = {node.name: node for node in nodes}
    jobs = {node.name for node in nodes if cluster_of(node)}
    earlier = [one for _, one in run.earlier if one.state in ACTIVE or one.node not in jobs]
    foreign = [one for _, one in run.foreign]
    return containers_of((*run.members, *earlier), by_name), containers_of(foreign, by_name)


def _may_hold(
    plan: Plan | None, run: Run | None, asked: Sequence[str], silent: Mapping[str, OrchError]
) -> dict[str, str]:
    """Nodes of the run that were not asked or gave no answer. Those that were given up count too: their machines start
    a container again. Where no plan names the nodes, any silent node may hold what is missing."""
    whole = run is None or len([one for one in run.members if one.container]) >= run.nnodes
    known = plan is not None and not plan.cluster and (run is None or run.attempt <= plan.attempt)
    own = [*(part.node for part in plan.nodes), *plan.away] if plan and not plan.cluster else []
    names = own if known or whole else [*own, *silent]
    return {
        name: silent[name].message if name in silent else "it is not in the inventory"
        for name in dict.fromkeys(names)
        if name in silent or name not in asked
    }


def _still_there(
    nodes: Sequence[Node], run_id: str, outcomes: Sequence[Outcome[RunningContainer, ContainerFacts | None]]
) -> dict[str, str]:
    """Nodes that still show a container of the run that has not ended, or did not answer or stop it."""
    held = {outcome.item.node.name for outcome in outcomes}
    found = find_runs(nodes)
    left = {name: error.message for name, error in found.unreachable.items() if name in held}
    left |= {name: "it shows a container" for run in found.runs if run.run_id == run_id for name in run.active_nodes}
    return left | {outcome.item.node.name: outcome.error.message for outcome in outcomes if outcome.error}


def stop_containers(
    containers: Sequence[RunningContainer],
    record: RunRecord,
    *,
    timeout_s: int,
    foreign: Sequence[RunningContainer] = (),
    on_step: Callable[[str, str], None] = lambda _node, _step: None,
) -> tuple[Outcome[RunningContainer, ContainerFacts | None], ...]:
    """Stop them all at once and record their logs; remove those that ended, unless their lines could not be kept.

    `foreign`: containers that are no part of the run; their lines are kept apart.
    """

    def end(container: RunningContainer) -> ContainerFacts | None:
        container.node.engine.stop(container.id, timeout_s)
        on_step(container.node.name, "stopped")
        return container.node.engine.container(container.id)

    outcomes = fan_out((*containers, *foreign), end, timeout_s=timeout_s + 30.0)
    ended = [outcome.item for outcome in outcomes if outcome.error is None]
    collected = collect_logs([one for one in ended if one not in foreign], record)
    if foreign:
        others = RunStore(record.folder / FOREIGN)
        collected += collect_logs([one for one in ended if one in foreign], record, others)
    unkept = [outcome.item for outcome in collected if isinstance(outcome.error, UnkeptError)]
    fan_out([one for one in ended if one not in unkept], discard)  # their engines keep the lines
    return outcomes


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """Result of cleaning one node."""

    removed: tuple[str, ...]
    """The run of each container."""
    left_over: tuple[str, ...]
    """Removed runs that were stopped while the node was unreachable and still ran there."""
    not_understood: tuple[str, ...]


def clean(nodes: Sequence[Node], *, run_id: str = "", project: str = "") -> tuple[Outcome[Node, Cleaned], ...]:
    """Remove the containers of ended runs, or of the one that `run_id` means; their logs are kept first.

    `project`: only that one's.

    Containers of a run that was stopped from here while their node was unreachable are stopped and removed, too.
    """
    known = [run.run_id for run in find_runs(nodes).runs] if run_id else []
    meant = matching(run_id, [*known, *(one.run_id for one in known_records())]) if run_id else []

    def clear(node: Node) -> Cleaned:
        shown = node.engine.containers({labels.LABEL_RUN: "", **({labels.LABEL_PROJECT: project} if project else {})})
        held, strange = split_by_labels(node.name, shown)
        wanted = [one for one in held if not run_id or one.says.run_id in meant]
        ended = [one for one in wanted if one.facts.state in (State.SUCCEEDED, State.FAILED, State.STOPPED)]
        left = [one for one in wanted if one not in ended and RunRecord(one.says.run_id).was_stopped(one.says.attempt)]
        for one in left:
            node.engine.stop(one.facts.id, LEFT_STOP_S)
        for one in (*ended, *left):
            container = RunningContainer.of(node, one.says.node_rank, one.facts)
            (collected,) = collect_logs([container], RunRecord(one.says.run_id))
            if isinstance(collected.error, UnkeptError):
                raise collected.error
            discard(container)
        return Cleaned(
            removed=tuple(one.says.run_id for one in (*ended, *left)),
            left_over=tuple(one.says.run_id for one in left),
            not_understood=tuple(strange),
        )

    return fan_out(nodes, clear)


# A constant; $1 folder of the project, $2 run id. Only what a launch has made: it left its plan there.
_REMOVE = """
if [ -f "$1/runs/$2/plan.json" ]; then rm -rf -- "$1/runs/$2"; fi
"""


def remove_run(
    containers: Sequence[RunningContainer], plan: Plan, *, timeout_s: float = 120.0
) -> tuple[Outcome[RunningContainer, None], ...]:
    """Remove the containers and the folder of an ended run, checkpoints included."""
    folders = {part.node: part.folder for part in plan.nodes}

    def clear(container: RunningContainer) -> None:
        discard(container)
        made = container.node.run(["sh", "-c", _REMOVE, "sh", folders[container.node.name], plan.run_id])
        made.check(f"removing {folders[container.node.name]}/runs/{plan.run_id}")

    return fan_out(containers, clear, timeout_s=timeout_s)
