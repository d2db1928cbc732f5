"""Execute a plan: folders, uploads, containers, all or nothing; or finish a launch that was cut short."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from orchestrator.fleet.fan_out import Notify, fan_out, results_of
from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir, artifacts_of
from orchestrator.fleet.runs.claims import claim_on, release
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.secrets import place_secrets, place_token, remove_secrets, secrets_of
from orchestrator.nodes.interface import Node, Progress
from orchestrator.specs import labels
from orchestrator.specs.errors import ConflictError, EngineError
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.run import ContainerFacts, Run, State
from orchestrator.specs.secret_forms import REDACTED
from orchestrator.store.run_record import RunRecord
from orchestrator.store.secret_values import require_values, secret_values

START_S = 60.0
PAUSES_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses between tries to lock a node: an engine refuses a name before its new container is visible."""

COMPRESSED_FROM = 1 << 20
"""Bytes of a plan that is sent compressed. That of 1,000 nodes has 12 MB, of which each node gets a copy, and 0.1 MB
compressed: each container's command names all nodes."""

# Constants for the node's shell; $1: the project's folder. The plan is on stdin, compressed if $3 says so. The answer:
# which of the paths in $4 and after it are there. A run may have replaced its folder by a link to anywhere.
_PREPARE = """
folder=$1 plan=$1/runs/$2/plan.json packing=$3
for one in data data/.sums runs "runs/$2" "runs/$2/code"; do
  [ ! -L "$folder/$one" ] || { echo "$folder/$one is a link, through which nothing is written" >&2; exit 1; }
done
mkdir -p "$folder/data" "$folder/runs/$2/code" || exit 1
(umask 077 && if [ "$packing" = gzip ]; then gzip -dc; else cat; fi > "$plan.new") && mv -f "$plan.new" "$plan" ||
  exit 1
shift 3
for path; do [ -e "$folder/$path" ] && [ ! -L "$folder/$path" ] && echo "$path"; done
exit 0
"""
# A link and its target, and so on. A folder that holds files of the run is not replaced, nor a file; and a link among
# the parents may lead out of the project's folder.
_LINK = """
cd -- "$1" || exit 1
shift
while [ $# -gt 1 ]; do
  at=$(dirname -- "$1") up=$(dirname -- "$1")
  while [ ! -e "$up" ] && [ ! -L "$up" ]; do up=$(dirname -- "$up"); done
  if [ "$(cd -P -- "$up" 2>/dev/null && pwd -P)" != "$(pwd -P)/$up" ]; then
    echo "$up is a link, through which no data is shown" >&2
    exit 1
  fi
  mkdir -p -- "$at" || exit 1
  if [ -e "$1" ] && [ ! -L "$1" ] && ! rmdir -- "$1" 2>/dev/null; then
    echo "$1 holds files that the run has written, and is now to be data" >&2
    exit 1
  fi
  ln -sfn -- "$2" "$1" || exit 1
  shift 2
done
"""


def launch(
    nodes: Mapping[str, Node],
    plan: Plan,
    *,
    fresh: Mapping[str, Path] = MappingProxyType({}),
    elsewhere: Mapping[str, str] = MappingProxyType({}),
    notify: Notify = lambda _node, _progress: None,
    rest: Callable[[float], object] = time.sleep,
) -> tuple[RunningContainer, ...]:
    """Start every container of the plan, in order of rank, or none of them.

    Nodes that lack the run's code or data get them: from `fresh` (the folders of which the digests were just taken),
    otherwise as `bring` finds them; `elsewhere` is the project's folder on those of `nodes` that have no part in the
    plan. `notify` receives each step, and the bytes of copies. Raises the first node's error after undoing everything:
    ConflictError where another run holds a node.
    """
    parts = [(nodes[part.node], part) for part in plan.nodes]
    require_values(plan.secrets, plan.environment, os.environ)
    secrets = secret_values(plan.secrets, os.environ)

    def must_be_free(item: tuple[Node, NodePlan]) -> None:
        if holder := item[0].engine.container(item[1].container.name):
            _must_be_over(item[0], holder)

    for outcome in fan_out(parts, must_be_free):  # before data is copied for a run that is then refused
        outcome.value()  # its hint is a command, to which no other node is added
    record = RunRecord(plan.run_id)
    claimed_here = record.save_intent(plan)
    made: list[RunningContainer] = []
    places = {**elsewhere, **{part.node: part.folder for part in plan.nodes}}
    try:
        if claimed_here:
            _claim(nodes, plan, places, record)
        stores = [ProjectDir(node=nodes[part.node], folder=part.folder) for part in plan.nodes]
        others = [ProjectDir(node=nodes[name], folder=folder) for name, folder in elsewhere.items()]
        bring_all(stores, plan, fresh, others, notify)
        results_of(fan_out(parts, lambda item: place_secrets(item[0], item[1], secrets)))
        _create_all(parts, made, rest)
        results_of(place_token(parts, plan.run_id))  # now that no other launch of this run can do so
        containers = tuple(sorted(made, key=lambda one: one.node_rank))
        record.save_plan(plan, {one.node.name: one.id for one in containers})
        results_of(fan_out(containers, lambda one: one.node.engine.start(one.id)))
    except BaseException:  # Ctrl-C too: all or none
        fan_out(made, lambda one: one.node.engine.remove(one.id))
        fan_out(parts, lambda item: remove_secrets(item[0], secrets_of(item[1].container.labels)))
        if claimed_here:
            _undo_claim(nodes, places, record, plan)
        raise
    for container in containers:
        notify(container.node.name, Progress(text="container started"))
    return containers


def _claim(nodes: Mapping[str, Node], plan: Plan, places: Mapping[str, str], record: RunRecord) -> None:
    """Claim the attempt on the nodes of the plan, and on the others that it knows of. Raises if one of the plan's nodes
    is not claimed."""
    known = record.journal.attempt(plan.attempt)
    if known is None or plan.cluster:
        return
    own = sorted(part.node for part in plan.nodes)
    in_turn = [nodes[name] for name in (*own, *sorted(places.keys() & nodes.keys() - set(own)))]
    claimed = claim_on(in_turn, places, plan.run_id, known.claim)
    for name in own:
        if name in claimed.failed:
            raise claimed.failed[name]
        if name in claimed.left_out:
            raise ConflictError(
                f"it shows another claim of run {plan.run_id}: {claimed.left_out[name]}",
                node=name,
                hint=f"leave it out with --nodes, or look at it: orch status {plan.run_id}",
            )


def _undo_claim(nodes: Mapping[str, Node], places: Mapping[str, str], record: RunRecord, plan: Plan) -> None:
    known = record.journal.attempt(plan.attempt)
    if known and not plan.cluster:
        release([nodes[name] for name in places if name in nodes], places, plan.run_id, known.claim)
    record.forget_intent(plan.attempt)


def bring_all(
    stores: Sequence[ProjectDir],
    plan: Plan,
    fresh: Mapping[str, Path],
    elsewhere: Sequence[ProjectDir],
    notify: Notify,
) -> None:
    """Bring the run's plan, code, data and agent to the nodes that lack them, and link its data to the places where
    its script looks for it. `fresh`, `elsewhere`: as in `launch`."""
    for one in _prepare(stores, plan, fresh):
        if not (one.missing or one.damaged or one.without_sums):
            continue
        from orchestrator.fleet.runs.bring_artifacts import bring, holders_of  # nothing is sent at most launches
        from orchestrator.fleet.runs.data_repair import note_sums, repair

        artifact, new = one.artifact, fresh.get(one.artifact.digest)
        if one.missing:
            bring(artifact, one.missing, one.having, elsewhere, fresh=new, notify=notify)
        if one.damaged:
            holders = [*one.having, *one.missing] or holders_of(artifact, elsewhere)
            repair(artifact, one.damaged, [] if artifact.parts else holders, fresh=new, notify=notify)
        if one.without_sums:
            note_sums(artifact, one.without_sums, one.having, fresh=new)

    def link(store: ProjectDir) -> None:
        links = {name: to for one in plan.data for name, to in one.links(plan.run_id, store.node.name).items()}
        if links:
            words = [word for pair in links.items() for word in pair]
            made = store.node.run(["sh", "-c", _LINK, "sh", store.folder, *words])
            made.check("showing the data to the script", hint=f"launch it as a new run, or: orch pull {plan.run_id}")

    results_of(fan_out(stores, link))


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Nodes by what they have of a folder that the run was launched with."""

    artifact: Artifact
    missing: Sequence[ProjectDir]
    having: Sequence[ProjectDir]
    """Nodes with a complete copy of which no damage is known."""
    damaged: Sequence[ProjectDir] = ()
    without_sums: Sequence[ProjectDir] = ()
    """Nodes without sums beside their copy of data, those included that are about to get the copy."""


def _prepare(stores: Sequence[ProjectDir], plan: Plan, fresh: Mapping[str, Path]) -> Iterator[_Places]:
    """Make the folders on every node and write the plan there; then each of the run's folders, with what nodes have of
    it."""
    text = to_json(plan).encode()
    packing = "gzip" if len(text) >= COMPRESSED_FROM else ""
    text = gzip.compress(text, mtime=0) if packing else text

    artifacts = artifacts_of(plan)

    def make(store: ProjectDir) -> list[str]:
        words = [store.folder, plan.run_id, packing, *(mark for one in artifacts for mark in one.marks(store))]
        made = store.node.run(["sh", "-c", _PREPARE, "sh", *words], stdin=text)
        hint = "may this user write there? set `workspace` in the inventory"
        return made.check(f"making {store.folder}", hint=hint).split()

    outcomes = fan_out(stores, make)
    results_of(outcomes)
    for artifact in artifacts:
        new = fresh.get(artifact.digest)
        there = [(one.item, [mark in (one.result or ()) for mark in artifact.marks(one.item)]) for one in outcomes]
        # new code replaces files that the run has written
        missing = [store for store, (is_there, *_) in there if not is_there or (new and artifact.is_code)]
        yield _Places(
            artifact=artifact,
            missing=missing,
            having=[store for store, (is_there, *more) in there if is_there and not any(more[1:])],
            damaged=[store for store, (is_there, *more) in there if is_there and any(more[1:])],
            without_sums=[store for store, (is_there, *more) in there if more and not (is_there and more[0])],
        )


def adopt(nodes: Mapping[str, Node], plan: Plan, run: Run) -> tuple[RunningContainer, ...]:
    """Finish a launch that was cut short: all containers of the plan, running.

    Raises the first node's error; containers already started continue. ConflictError: a container is missing, and only
    a launch can create it.
    """
    held = {member.node: member.container for member in run.members if member.container}
    if run.attempt != plan.attempt:
        held = {}
    missing = [part for part in plan.nodes if part.node not in held]
    names, hint = ", ".join(part.node for part in missing), f"orch stop {plan.run_id}, then: orch resume {plan.run_id}"
    if missing and (plan.secrets or REDACTED in plan.environment.values()):  # no plan holds their values
        raise ConflictError(f"run {plan.run_id} has secrets, and no container yet on {names}", hint=hint)
    if any(not part.container.image for part in missing):
        problem = f"run {plan.run_id} was launched from another computer, and has no container yet on {names}"
        raise ConflictError(problem, hint=hint)
    containers = []
    for part in plan.nodes:
        facts = held.get(part.node)
        id = facts.id if facts else nodes[part.node].engine.create(part.container)
        secrets = secrets_of((facts or part.container).labels)
        containers.append(RunningContainer(node=nodes[part.node], node_rank=part.node_rank, id=id, secrets=secrets))
    if all(facts.state is State.CREATED for facts in held.values()):  # otherwise each has its token
        results_of(place_token([(nodes[part.node], part) for part in plan.nodes], plan.run_id))
    running = {node for node, facts in held.items() if facts.state is not State.CREATED}
    created = [one for one in containers if one.node.name not in running]
    results_of(fan_out(created, lambda one: one.node.engine.start(one.id), timeout_s=START_S))
    RunRecord(plan.run_id).save_plan(plan, {one.node.name: one.id for one in containers})
    return tuple(containers)


def discard(container: RunningContainer) -> None:
    """Remove a container and its secrets."""
    container.node.engine.remove(container.id)
    remove_secrets(container.node, container.secrets)


def _create_all(
    parts: Sequence[tuple[Node, NodePlan]], made: list[RunningContainer], rest: Callable[[float], object]
) -> None:
    """Create every container, noting each in `made` at once; its name is the lock.

    First on the first node by name alone: of two launches on the same nodes, one is refused there.
    """

    def create(item: tuple[Node, NodePlan]) -> None:
        node, part = item
        id, secrets = _create(node, part, rest), secrets_of(part.container.labels)
        made.append(RunningContainer(node=node, node_rank=part.node_rank, id=id, secrets=secrets))

    in_turn = sorted(parts, key=lambda item: item[0].name)
    results_of(fan_out(in_turn[:1], create))
    results_of(fan_out(in_turn[1:], create))


def _create(node: Node, part: NodePlan, rest: Callable[[float], object]) -> str:
    for pause_s in PAUSES_S:
        try:
            return node.engine.create(part.container)
        except ConflictError:
            if not _step_aside(node, part.container.name):
                rest(pause_s)
    raise ConflictError(
        "another launch is taking this node at this moment",
        node=node.name,
        hint="see which one, then wait for it or stop it: orch runs",
    )


def _step_aside(node: Node, name: str) -> bool:
    """Rename an ended run's container, so that its logs stay. False: no container has the name now. ConflictError: an
    active run has it."""
    holder = node.engine.container(name)
    if holder is None:
        return False
    _must_be_over(node, holder)
    with suppress(EngineError):  # another launch may have just done so: the next try to create decides
        node.engine.rename_and_keep(holder.id, ended_name(holder))
    return True


def _must_be_over(node: Node, holder: ContainerFacts) -> None:
    """ConflictError: the container's run is still active."""
    if holder.state not in (State.RUNNING, State.CREATED):
        return
    run = holder.labels.get(labels.LABEL_RUN, "")
    user, since = (holder.labels.get(label, "?") for label in (labels.LABEL_USER, labels.LABEL_STARTED))
    hint = f"wait for it, or: orch stop {run}".rstrip()
    if holder.state is State.CREATED:
        hint = f"its launch was cut short, or is under way: orch adopt {run}, or: orch stop {run}"
    raise ConflictError(f"run {run or '?'} by {user} holds this node since {since}", node=node.name, hint=hint)


def ended_name(container: ContainerFacts) -> str:
    """Name of an ended run's container once another run needs its name."""
    run, attempt = (container.labels.get(key, "0") for key in (labels.LABEL_RUN, labels.LABEL_ATTEMPT))
    return f"{container.name}-{run}.{attempt}-{container.id[:6]}"
