"""Words of commands about a run on a cluster: its scheduler chooses the nodes, so there `--nodes` is a number."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from orchestrator.specs.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """Cluster on which a run is started, and its number of nodes."""

    cluster: str
    nodes: int

    @classmethod
    def of(cls, plan: Plan | None) -> ClusterJob | None:
        """Find the job of a plan; None where it runs on machines of the inventory, or where there is no plan."""
        return cls(cluster=plan.cluster, nodes=plan.nnodes) if plan and plan.cluster else None

    @property
    def on(self) -> str:
        """Options of `launch`, `doctor` and `check-gpus` for as many nodes of the same cluster."""
        return f"--on {shlex.quote(self.cluster)} --nodes {self.nodes}"

    @property
    def test(self) -> str:
        """Command that tries every collective and link."""
        return f"orch launch {self.on} -- test-ddp"

    def without(self, node: str) -> str:
        """The change of the inventory after which the scheduler gives no job this node."""
        return f"add `exclude: {shlex.quote(node)}` to `options:` of cluster {self.cluster} in the inventory"
