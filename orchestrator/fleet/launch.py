"""Carry out a plan: folders, uploads, containers. All or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.records import RunRecord
from orchestrator.fleet.upload import upload_data
from orchestrator.nodes.seam import Node
from orchestrator.specs import run as labels
from orchestrator.specs.errors import ConflictError, EngineError
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.run import ContainerFacts, State

UPLOAD_TIMEOUT_S = 3600.0
TRIES = 3
"""For a name that an ended run holds: another launch may take it in between, and is then named."""

# Constants for the node's shell; folders come in as arguments, the plan on stdin.
# The last word answers whether the data ($3) is there.
_PREPARE = """
mkdir -p "$1/Data" "$1/data" "$1/runs/$2/code" && cat > "$1/runs/$2/plan.json" || exit 1
if [ -d "$1/data/$3" ]; then echo there; fi
"""


@dataclass(frozen=True, kw_only=True)
class Seated:
    """A node with its container of this run."""

    node: Node
    node_rank: int
    container: str


def launch(
    nodes: Mapping[str, Node],
    plan: Plan,
    *,
    workdir: Path | None = None,
    data: Path | None = None,
    on_step: Callable[[str, str], None] = lambda _node, _step: None,
) -> tuple[Seated, ...]:
    """Start every container of the plan, in order of rank, or none of them.

    `on_step` is told (node, what is done there). Raises the first node's error after undoing what was done:
    `ConflictError` where another run holds a node.
    """
    parts = [(nodes[part.node], part) for part in plan.nodes]
    text = to_json(plan).encode()

    def prepare(item: tuple[Node, NodePlan]) -> None:
        node, part = item
        made = node.run(["sh", "-c", _PREPARE, "sh", part.folder, plan.run_id, plan.data_digest], stdin=text)
        answer = made.check(f"making {part.folder}", hint="may this user write there? set `workspace` in the inventory")
        if workdir:
            node.put(workdir, f"{part.folder}/runs/{plan.run_id}/code")
        if data and not answer.strip():
            upload_data(node, data, f"{part.folder}/data/{plan.data_digest}")
            on_step(node.name, "data copied")

    _all(fan_out(parts, prepare, timeout_s=UPLOAD_TIMEOUT_S))
    made: list[Seated] = []
    try:
        _create_all(parts, made)
        seated = tuple(sorted(made, key=lambda seat: seat.node_rank))
        _all(fan_out(seated, lambda seat: seat.node.engine.start(seat.container)))
    except BaseException:  # Ctrl-C too: all or none
        fan_out(made, lambda seat: seat.node.engine.remove(seat.container))
        raise
    RunRecord(plan.run_id).save_plan(plan)  # not before: a launch that was refused is no run
    for seat in seated:
        on_step(seat.node.name, "container started")
    return seated


def _create_all(parts: Sequence[tuple[Node, NodePlan]], made: list[Seated]) -> None:
    """Create every container, noting each in `made` at once; its name is the lock.

    The first node by name goes alone: of two launches on the same nodes, one is refused there before it has touched
    another.
    """

    def create(item: tuple[Node, NodePlan]) -> None:
        node, part = item
        made.append(Seated(node=node, node_rank=part.node_rank, container=_create(node, part)))

    in_turn = sorted(parts, key=lambda item: item[0].name)
    _all(fan_out(in_turn[:1], create))
    _all(fan_out(in_turn[1:], create))


def _create(node: Node, part: NodePlan) -> str:
    for _ in range(TRIES):
        try:
            return node.engine.create(part.container)
        except ConflictError as error:
            taken = error
            _step_aside(node, part.container.name)
    raise taken


def _step_aside(node: Node, name: str) -> None:
    """Give an ended run's container another name, so that its logs stay; refuse where a run holds the node."""
    holder = node.engine.container(name)
    if holder is None:
        return  # it went away just now
    if holder.state in (State.RUNNING, State.CREATED):
        raise ConflictError(
            f"run {holder.labels.get(labels.LABEL_RUN, '?')} by {holder.labels.get(labels.LABEL_USER, '?')} "
            f"holds this node since {holder.labels.get(labels.LABEL_STARTED, '?')}",
            node=node.name,
            hint=f"wait for it, or: orch stop {holder.labels.get(labels.LABEL_RUN, '')}".rstrip(),
        )
    with suppress(EngineError):  # another launch may have just done so: the next try to create decides
        node.engine.rename(holder.id, ended_name(holder))


def ended_name(container: ContainerFacts) -> str:
    """What an ended run's container is called once another run needs its name."""
    run, attempt = (container.labels.get(key, "0") for key in (labels.LABEL_RUN, labels.LABEL_ATTEMPT))
    return f"{container.name}-{run}.{attempt}-{container.id[:6]}"


def _all(outcomes: Sequence[Outcome[Any, Any]]) -> None:
    """Raise the first error; name the other nodes that failed with it."""
    failed = [outcome.error for outcome in outcomes if outcome.error]
    if failed:
        others = [error.node for error in failed[1:] if error.node]
        if others:
            failed[0].hint = f"{failed[0].hint} (also: {', '.join(others)})".strip()
        raise failed[0]
