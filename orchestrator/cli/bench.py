"""`orch bench`: how fast each node trains this workload, what it has left, and what the links carry."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.launching.command_words import WORDS_LAST, with_command
from orchestrator.cli.options import InventoryOption, Output, WorkloadArgument
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch bench
orch bench --nodes 5 -- gpt2 --batch-size 2 --seq-len 128
orch bench --nodes alpha,beta --data ./Data --json -- vision --batch-size 64
"""
SETTINGS = WORDS_LAST


@expand(
    only=(
        "nodes",
        "master",
        "profile",
        "mounts",
        "environment",
        "workdir",
        "data",
        "engine",
        "output",
        "as_json",
    )
)
def bench(
    *,
    context: typer.Context,
    options: LaunchOptions,
    command: WorkloadArgument = None,
    inventory: InventoryOption = None,
    output: Output,
) -> int:
    """Measure a training step of a workload on all nodes at once, and save the result for `orch plan`.

    Measures the time per sample and of the optimizer, memory, disk, dataloader and links, in the image and on the
    interfaces of a launch. Nothing is trained, and nothing is left on the nodes.
    """
    from orchestrator.cli.launching.measure import run_bench

    options = replace(with_command(context, options, command), name="bench")
    return run_bench(load_inventory(inventory).inventory, options, output)
