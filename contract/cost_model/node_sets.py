"""Sets of nodes that may train together: the fastest nodes, with and without those on slow links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from contract.cost_model.step_time import NodeSet, node_set, step_s

JUMP = 1.5
"""Gap between two link rates: sets without the nodes below it are tried too."""
GROWTH = 32
"""Sizes of sets that are tried grow by a 32nd, and by at least one node: up to 64 nodes every size is."""
NEARLY = 0.98
"""Speed, relative to the fastest set, that counts as equal: the measurement is no more precise."""


def node_sets(measured: Measurement, *, equal: bool = False) -> list[NodeSet]:
    """Return sets of two or more nodes, all nodes first, each in order of rank. Not all sets: 64 nodes have too many.

    CostModelError: fewer samples in a step than nodes.
    """
    sets = {
        tuple(sorted(fastest[:size], key=lambda node: node.rank))
        for fastest in _orders(measured.nodes)
        for size in _sizes(len(fastest))
    }
    largest_first = sorted(sets, key=lambda members: (-len(members), [node.rank for node in members]))
    return [node_set(members, measured.samples_per_step, equal=equal) for members in largest_first]


def _sizes(most: int) -> Iterator[int]:
    size = 2
    while size < most:
        yield size
        size += max(1, size // GROWTH)
    if most >= 2:
        yield most


def _orders(nodes: Sequence[NodeSpeed]) -> Iterator[list[NodeSpeed]]:
    """Yield nodes by speed: all of them, and those above each gap between link rates."""
    by_speed = sorted(nodes, key=lambda node: (node.sample_s, node.rank))
    links = sorted({node.link for node in nodes})
    gaps = [upper for lower, upper in pairwise(links) if upper >= JUMP * lower]
    for least in [0.0, *gaps]:
        yield [node for node in by_speed if node.link >= least]


def best_alone(measured: Measurement) -> NodeSet:
    """Return the node that computes a whole step alone in the shortest time."""
    return min(
        (node_set([node], measured.samples_per_step) for node in measured.nodes),
        key=lambda single: (single.compute_s, single.members[0].rank),
    )


def best_node_set(measured: Measurement, candidates: Sequence[NodeSet], cost: SyncCost) -> NodeSet:
    """Return the largest of the sets that are nearly as fast as the fastest."""
    seconds = [step_s(measured, candidate, cost) for candidate in candidates]
    good_enough = min(seconds) / NEARLY
    return max(
        (pair for pair in zip(candidates, seconds, strict=True) if pair[1] <= good_enough),
        key=lambda pair: (len(pair[0].members), -pair[1], pair[0].members[0].rank),
    )[0]
