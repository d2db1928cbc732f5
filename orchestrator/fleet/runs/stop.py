"""Stop a run on all nodes at once, remove what ended runs left behind, or remove a run completely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.find_runs import RunningContainer, split_by_labels
from orchestrator.fleet.runs.launch import discard
from orchestrator.fleet.runs.progress import last_checkpoint
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes.interface import Node
from orchestrator.specs import labels
from orchestrator.specs.errors import UnkeptError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts, State

LEFT_STOP_S = 10
"""Stop timeout for leftover containers of a stopped run: they wait for their peers and have nothing to save."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Result of stopping a run."""

    outcomes: tuple[Outcome[RunningContainer, ContainerFacts | None], ...]
    checkpoint_step: int | None
    """Step of the last checkpoint that rank 0 reported as written and verified."""


def stop_run(
    containers: Sequence[RunningContainer],
    record: RunRecord,
    *,
    timeout_s: int,
    on_step: Callable[[str, str], None] = lambda _node, _step: None,
) -> Stopped:
    """Send SIGTERM on all nodes together, SIGKILL after `timeout_s`; record the logs and remove the containers."""

    record.mark_stopping()
    outcomes = stop_containers(containers, record, timeout_s=timeout_s, on_step=on_step)
    checkpoint = last_checkpoint(record)
    step = checkpoint[0] if checkpoint else None
    if record.outcome() is None:  # a run that had ended before stays what it was
        record.save_outcome("stopped", "no checkpoint" if step is None else f"checkpoint of step {step}")
    return Stopped(outcomes=outcomes, checkpoint_step=step)


def stop_containers(
    containers: Sequence[RunningContainer],
    record: RunRecord,
    *,
    timeout_s: int,
    on_step: Callable[[str, str], None] = lambda _node, _step: None,
) -> tuple[Outcome[RunningContainer, ContainerFacts | None], ...]:
    """Stop them all at once and record their logs; remove those that ended, unless their lines could not be kept."""

    def end(container: RunningContainer) -> ContainerFacts | None:
        container.node.engine.stop(container.id, timeout_s)
        on_step(container.node.name, "stopped")
        return container.node.engine.container(container.id)

    outcomes = fan_out(containers, end, timeout_s=timeout_s + 30.0)
    ended = [outcome.item for outcome in outcomes if outcome.error is None]
    unkept = [one.item.node.name for one in collect_logs(ended, record) if isinstance(one.error, UnkeptError)]
    fan_out([one for one in ended if one.node.name not in unkept], discard)  # their engines keep the lines
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
    """Remove the containers of ended runs, or of those whose id begins with `run_id`; their logs are kept first.

    `project`: only that one's.

    Containers of a run that was stopped from here while their node was unreachable are stopped and removed, too.
    """

    def clear(node: Node) -> Cleaned:
        shown = node.engine.containers({labels.LABEL_RUN: "", **({labels.LABEL_PROJECT: project} if project else {})})
        held, strange = split_by_labels(node.name, shown)
        wanted = [one for one in held if one.says.run_id.startswith(run_id)]
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
