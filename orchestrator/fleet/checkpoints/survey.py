"""List the checkpoints on the nodes and verify that their content is what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node
from orchestrator.nodes.probes import checkpoint_probe
from orchestrator.plan.checkpoints import candidates
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.cluster import ClusterSpec
from orchestrator.specs.errors import ConfigError, OrchError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.store.run_names import KnownRun, Purpose, resolve
from orchestrator.store.run_record import records_meant

Places = Mapping[str, str]
"""The project's folder on each node, by its name; `~` is the home of the node's user."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Checkpoints on the nodes that answered, and the errors of the others."""

    held: tuple[CheckpointCopy, ...]
    unreachable: Mapping[str, OrchError]


def places_of(plan: Plan) -> Places:
    """The project folders of a run's nodes."""
    return {part.node: part.folder for part in plan.nodes}


def places_in(specs: Sequence[NodeSpec | ClusterSpec], project: str) -> Places:
    """The project folders on these machines of the inventory, whether they took part in a run or not; of a cluster the
    one that its nodes share, on the login node."""
    return {spec.name: spec.folder if isinstance(spec, ClusterSpec) else spec.folder(project) for spec in specs}


def places_for(specs: Sequence[NodeSpec | ClusterSpec], project: str, wanted: str) -> Places:
    """The same, but where the run that `wanted` means was launched into other folders, by its plan on record, those:
    `--engine process` has folders of its own. Empty: the run launched last."""
    plan = next((record.plan() for record in records_meant(wanted)), None)
    return {**places_in(specs, project), **(places_of(plan) if plan else {})}


def run_with_checkpoints(held: Sequence[CheckpointCopy], wanted: str | None, purpose: Purpose = "look") -> str:
    """The run that `wanted` means among those with a checkpoint; the one with the newest where it is None or empty.

    ConfigError: there is none.
    """
    newest_first = sorted(held, key=lambda one: one.age_s)
    if chosen := resolve(wanted, [KnownRun(run_id=one.run_id, at=-one.age_s) for one in newest_first], purpose):
        return chosen
    which = f"of a run {wanted}" if wanted else "of any run"
    raise ConfigError(f"no node that answered holds a checkpoint {which}", hint="orch checkpoints ls")


def survey(nodes: Sequence[Node], places: Places, run: str = "") -> Survey:
    """Ask all nodes at once for the checkpoints of runs whose id begins with `run`: sizes only, so it is quick."""
    outcomes = fan_out(nodes, lambda node: checkpoint_probe.ask(node, project=places[node.name], run=run))
    return Survey(
        held=tuple(held for outcome in outcomes for held in outcome.result or ()),
        unreachable={outcome.item.name: outcome.error for outcome in outcomes if outcome.error},
    )


def verify(nodes: Sequence[Node], held: Sequence[CheckpointCopy]) -> tuple[CheckpointCopy, ...]:
    """The same checkpoints, in order, each file hashed and compared with its manifest; nodes in parallel. The error
    of a node that fails meanwhile becomes their `problem`."""
    by_name = {node.name: node for node in nodes}
    names = list(dict.fromkeys(one.node for one in held))
    outcomes = fan_out(
        names,
        lambda name: [checkpoint_probe.hashed(by_name[name], one) for one in held if one.node == name],
        timeout_s=TRANSFER_TIMEOUT_S,
    )
    looked = {(one.node, one.folder): one for outcome in outcomes for one in outcome.result or ()}
    broken = {outcome.item: f"could not be read: {outcome.error.message}" for outcome in outcomes if outcome.error}
    return tuple(
        replace(one, problem=broken[one.node]) if one.node in broken else looked[one.node, one.folder] for one in held
    )


def newest_sound(
    nodes: Sequence[Node],
    held: Sequence[CheckpointCopy],
    step: int | None = None,
    damaged: Callable[[CheckpointCopy], object] = lambda _one: None,
) -> tuple[CheckpointCopy, ...]:
    """Copies of one run's newest checkpoint (or of `step`) that are sound by their hashes; empty if there are none.

    Older ones are not read: hashing gigabytes would delay a restart. Damaged copies are reported to `damaged`.
    """
    for group in candidates(held, step):
        looked = verify(nodes, group)
        for one in looked:
            if one.problem:
                damaged(one)
        sound = tuple(one for one in looked if not one.problem)
        if sound:
            return sound
    return ()
