"""All faults, in batches that are made at once: on different machines, and so that none hides another.

Of a batch, one `orch doctor` has to tell every fault, each with its node, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.lab.faults.between_nodes import BETWEEN_NODES
from tests.lab.faults.lan import Fault
from tests.lab.faults.on_nodes import ON_NODES

BATCHES: Mapping[str, tuple[Fault, ...]] = {**ON_NODES, **BETWEEN_NODES}
"""Faults by what they have in common."""
