"""Predicted time of one step for a set of nodes, their shares, and a sync method.

step = max over ranks(share × sample_s + step_s) + latency + (exchange - hidden) / every
exchange = codec + max over nodes(bytes / upload, bytes / download) / efficiency + within + collectives × latency
bytes = 2 (k-1)/k × parameters × bytes per parameter, both ways, for k nodes
within = 2 × parameters × 4 bytes × max over nodes((ranks - 1) / owners / inside), for several nodes with several ranks;
owners: ranks of each node that exchange with other nodes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from contract.cost_model.shares import split

ALONE = "alone"
"""Name of the row without an exchange: a single node."""
VALUE = 4
"""Bytes of a gradient's value within a node."""
BACKWARD = 2 / 3
"""Share of a forward and backward pass that is backward: two products per weight against one."""


@dataclass(frozen=True, kw_only=True)
class NodeSet:
    """Nodes that train together, and the share of each."""

    members: tuple[NodeSpeed, ...]
    shares: tuple[int, ...]
    compute_s: float
    """Seconds until the last node has computed its share."""
    link: float
    """Bytes per second of the slowest link among them; of ranks of one node, between them."""

    # Each is asked for with every sync method.

    @cached_property
    def ranks_of_nodes(self) -> list[list[NodeSpeed]]:
        if all(member.host < 0 for member in self.members):
            return [[member] for member in self.members]
        nodes: dict[int, list[NodeSpeed]] = {}
        for number, member in enumerate(self.members):
            nodes.setdefault(member.host if member.host >= 0 else -1 - number, []).append(member)
        return list(nodes.values())

    @property
    def senders(self) -> int:
        """Nodes that exchange; ranks, if there is one node."""
        nodes = len(self.ranks_of_nodes)
        return nodes if nodes > 1 else len(self.members)

    @cached_property
    def _within(self) -> tuple[int, float]:
        """The fewest ranks of a node, and the most seconds per byte and rank to reach the others of its node."""
        if len(self.ranks_of_nodes) == len(self.members):
            return 1, 0.0
        rates = [(len(node) - 1, min(rank.inside or rank.link for rank in node)) for node in self.ranks_of_nodes]
        return min(others for others, _ in rates) + 1, max(others / rate for others, rate in rates)

    def within_s(self, copy: float, *, whole: bool) -> float:
        """Seconds to sum `copy` bytes of gradients within each node and to collect the mean there again."""
        if len(self.ranks_of_nodes) < 2:
            return 0.0
        owners, s_per_byte = self._within
        return 2 * copy / (1 if whole else owners) * s_per_byte

    @cached_property
    def window_s(self) -> float:
        """Seconds in which an exchange can overlap the last micro-batch's backward pass on all nodes."""
        ready = max(
            share * node.sample_s + node.step_s - BACKWARD * min(share, node.micro_batch) * node.sample_s
            for node, share in zip(self.members, self.shares, strict=True)
        )
        return self.compute_s - ready


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Predicted step of one sync method with one set of nodes."""

    sync: str
    """Sync method; `alone` for a single node."""
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    shares: tuple[int, ...]
    """Samples of each of `nodes` in a step."""
    compute_s: float
    exchange_s: float
    """Seconds that the exchange adds to an average step, without the part that overlaps computing."""
    step_s: float
    per_s: float
    """Units per second of all nodes."""
    speedup: float
    """Speed divided by that of the best single node."""
    sent_bytes: float
    """Bytes that a node sends in an average step."""
    proven: bool


def node_set(members: Sequence[NodeSpeed], samples: int, *, equal: bool = False) -> NodeSet:
    """Return the set with its shares. CostModelError: fewer samples than members."""
    sample_s = [1.0] * len(members) if equal else [node.sample_s for node in members]
    shares = split(samples, sample_s, [] if equal else [node.step_s for node in members])
    one_node = len({node.host if node.host >= 0 else -1 - number for number, node in enumerate(members)}) == 1
    return NodeSet(
        members=tuple(members),
        shares=shares,
        compute_s=max(share * node.sample_s + node.step_s for node, share in zip(members, shares, strict=True)),
        link=min((node.inside or node.link) if one_node else node.link for node in members),
    )


def step_s(measured: Measurement, together: NodeSet, cost: SyncCost | None) -> float:
    """Seconds of an average step; without a cost nothing is exchanged."""
    if cost is None or len(together.members) == 1:
        return together.compute_s
    sent = exchanged(measured, together, cost)
    encoding = cost.codec_s_per_parameter * measured.parameters
    travel = sent / (cost.efficiency * together.link) + cost.collectives * measured.latency_s
    travel += together.within_s(VALUE * measured.parameters, whole=cost.whole)
    # Encoding needs the processor that computes: only the transfer can overlap computing.
    hidden = min(cost.overlap * travel, together.window_s)
    # Every step averages the loss over all ranks, with any sync method.
    return together.compute_s + measured.latency_s + (encoding + travel - hidden) / cost.every


def exchanged(measured: Measurement, together: NodeSet, cost: SyncCost) -> float:
    """Bytes that each node sends to others, and receives, in one exchange."""
    k = together.senders
    return 2 * (k - 1) / k * measured.parameters * cost.bytes_per_parameter


def step_time(measured: Measurement, together: NodeSet, cost: SyncCost | None, alone_s: float) -> StepTime:
    """`alone_s`: seconds that the best single node takes for the same step."""
    seconds = step_s(measured, together, cost)
    return StepTime(
        sync=cost.sync if cost else ALONE,
        nodes=tuple(node.node for node in together.members),
        ranks=tuple(node.rank for node in together.members),
        shares=together.shares,
        compute_s=together.compute_s,
        exchange_s=seconds - together.compute_s,
        step_s=seconds,
        per_s=measured.samples_per_step * measured.units_per_sample / seconds,
        speedup=alone_s / seconds,
        sent_bytes=exchanged(measured, together, cost) / cost.every if cost else 0.0,
        proven=cost.proven if cost else True,
    )
