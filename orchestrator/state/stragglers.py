"""The node that holds a run back, and why: its computing, its data, its link, or a machine that is slowed down."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from contract.resources import ResourceUsage
from orchestrator.checks.slow_ranks import SlowRank, slow_ranks
from orchestrator.state.condition import Code, Condition, Scalar
from orchestrator.state.run_state import RunState

WAITING, EXCHANGING = 0.2, 0.3
"""Shares of the time from which waiting for data, or for the exchange between nodes, is worth a look."""
SLOW_LINK = 0.7
"""Times the other links' speed."""
SWAP_MIB = 512
"""Swapped memory from which a slow node counts as swapping: systems swap out some of what is never used."""


def slow_node(state: RunState) -> Condition | None:
    """The condition of the node that the others wait for in every step; None: there is none, or it is not known.

    Shares of the time are those of the rank that reports: where it waits for data, it is the slow one.
    """
    leader = state.leader
    if leader is None or leader.part.progress is None:
        return None
    names = [one.name for one in state.members]
    if slow := slow_ranks(leader.part.progress, names):
        used = next((one.usage for one in state.members if one.name == slow[0].node), None)
        cluster: dict[str, Scalar] = {"cluster": state.plan.cluster, "nnodes": state.plan.nnodes} if state.plan else {}
        return _slow_rank(slow[0], used, cluster)
    waiting, exchanging = (leader.part.shares.get(name, 0.0) for name in ("waiting", "exchanging"))
    if waiting >= WAITING:
        return Condition(code=Code.SLOW_DATA, severity="warning", node=leader.name, values={"share": waiting})
    if exchanging >= EXCHANGING:
        speeds = state.forecast.link_mbit_s if state.forecast else {}
        links = {name: speed for label, speed in speeds.items() if (name := node_of(label, names)) and speed > 0}
        return _slow_link(exchanging, links)
    return None


def node_of(label: str, names: list[str]) -> str:
    """Node of `NODE` or `NODE.LOCAL_RANK`; empty where there is none of this name."""
    node = label if label in names else label.rpartition(".")[0]
    return node if node in names else ""


def _slow_rank(slow: SlowRank, used: ResourceUsage | None, cluster: Mapping[str, Scalar]) -> Condition:
    values: dict[str, Scalar] = {"ratio": slow.ratio, "label": slow.label, "balanced": slow.balanced, **cluster}
    slowed = next((gpu for gpu in used.gpus if gpu.slowed_by), None) if used else None
    code = Code.SLOW_COMPUTE
    if slowed:
        code = Code.THROTTLED
        values |= {"slowed_by": slowed.slowed_by, "gpu": slowed.index}
    elif used and used.swap_used_mib >= SWAP_MIB:
        code = Code.SWAPPING
        values |= {"swap_mib": used.swap_used_mib}
    return Condition(code=code, severity="warning", node=slow.node, values=values)


def _slow_link(share: float, links: Mapping[str, float]) -> Condition:
    values: dict[str, Scalar] = {"share": share}
    node = ""
    if len(links) > 1:
        slowest = min(links, key=lambda name: links[name])
        others = median(speed for name, speed in links.items() if name != slowest)
        if links[slowest] < SLOW_LINK * others:
            node, values = slowest, {**values, "mbit_s": links[slowest], "others_mbit_s": others}
    return Condition(code=Code.SLOW_LINK, severity="warning", node=node, values=values)
