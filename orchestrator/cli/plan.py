"""`orch plan`: predict the time of a training, with how many nodes and which."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.launching.command_words import WORDS_LAST, with_command
from orchestrator.cli.options import InventoryOption, Output, WorkloadArgument
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch plan --nodes 5 -- gpt2 --batch-size 2 --seq-len 128
orch plan --measure --epochs 3 -- gpt2 --batch-size 2
orch plan --steps 10000 --json -- vision --batch-size 64 --sync int8
"""
SETTINGS = WORDS_LAST


@expand(only=("nodes", "profile", "environment", "workdir", "data", "engine", "output", "as_json"))
def plan(
    *,
    context: typer.Context,
    options: LaunchOptions,
    command: WorkloadArgument = None,
    inventory: InventoryOption = None,
    steps: int | None = typer.Option(None, min=1, metavar="N", help="Length of the training in steps."),
    epochs: float | None = typer.Option(None, min=0.001, metavar="N", help="Length in epochs."),
    samples: int | None = typer.Option(None, min=1, metavar="N", help="Length in samples."),
    measure: bool = typer.Option(False, "--measure", help="Run `orch bench` first."),
    output: Output,
) -> int:
    """Predict how long a training takes with each number of nodes and each sync method.

    Shows which nodes make a step faster or slower, the share of a step that each node computes, and the speed with a
    larger step. The prediction uses the newest `orch bench` measurement of this workload; nodes are
    asked only with --measure.
    """
    from orchestrator.cli.launching.capacity import Length, show_capacity

    options = replace(with_command(context, options, command), name="bench")
    length = Length(steps=steps, epochs=epochs, samples=samples)
    return show_capacity(load_inventory(inventory).inventory, options, length, output, measures=measure)
