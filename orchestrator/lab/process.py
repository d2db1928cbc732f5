"""A lab without containers: every node is a process of this computer with an address of its own in 127.0.0.0/8."""

from __future__ import annotations

import os
from collections.abc import Callable

from orchestrator.lab.inventory_text import inventory_text
from orchestrator.lab.sizing import suited_limits
from orchestrator.lab.state import Lab, LabNode, inventory_file, lab_folder, save_lab
from orchestrator.nodes.state_files import replace_file

FIRST_HOST = 11
"""alpha is 127.0.0.11, as it is .11 on the network of containers."""
_MIB = 1024 * 1024


def create(name: str, names: tuple[str, ...], report: Callable[[str], None]) -> Lab:
    """Nothing to start: the inventory is all there is."""
    nodes = tuple(LabNode(name=node, address=f"127.0.0.{FIRST_HOST + index}") for index, node in enumerate(names))
    lab = Lab(name=name, engine="process", nodes=nodes)
    cpus = float(os.cpu_count() or 1)
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    limits = suited_limits(len(nodes), cpus=cpus, memory_mib=memory_mib)
    save_lab(lab)
    replace_file(inventory_file(), inventory_text(lab, limits, lab_folder()))
    report(f"{len(nodes)} nodes, each a process of this computer")
    return lab
