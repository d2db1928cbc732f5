"""Start or resume a run where its options say: on a cluster, or on nodes of the inventory.

A run on a cluster needs neither Docker's library nor most of what a launch on machines does: it is submitted earlier
without those imports.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.cli.options import OutputMode
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan


def start_run(inventory: Inventory, options: LaunchOptions, mode: OutputMode, *, earlier: Plan | None = None) -> int:
    """Start a run or resume one, or print its plan; return the exit code. `earlier`: as in `run_launch`."""
    if not earlier and (options.on or options.resume):
        from orchestrator.cli.launching.cluster_launch import earlier_on, launch_on

        before = earlier_on(inventory, options) if options.resume else None
        if before or options.on:
            on = before.cluster if before else options.on
            return launch_on(inventory, replace(options, on=on), mode, earlier=before)
    from orchestrator.cli.launching.run_launch import run_launch

    return run_launch(inventory, options, mode, earlier=earlier)
