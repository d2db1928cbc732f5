"""`orch bench`: how fast each node trains this workload, what it has left, and what the links carry."""

from __future__ import annotations

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.launching.command_words import WORDS_LAST, command_words
from orchestrator.cli.options import (
    DataOption,
    EngineOption,
    EnvOption,
    InventoryOption,
    JsonOption,
    LabelOption,
    MasterOption,
    MountOption,
    NodesOption,
    ProfileOption,
    WorkdirOption,
    WorkloadArgument,
)

EXAMPLES = """Examples:

orch bench

orch bench --nodes 5 -- gpt2 --batch-size 2 --seq-len 128

orch bench --nodes alpha,beta --data ./Data --json -- vision --batch-size 64
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", epilog=EXAMPLES, context_settings=WORDS_LAST, no_args_is_help=False)(bench)


def bench(
    context: typer.Context,
    command: WorkloadArgument = None,
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    label: LabelOption = None,
    master: MasterOption = "",
    profile: ProfileOption = "",
    mount: MountOption = None,
    env: EnvOption = None,
    workdir: WorkdirOption = None,
    data: DataOption = None,
    engine: EngineOption = "",
    as_json: JsonOption = False,
) -> int:
    """Measure a training step of this workload on every node, all at once, and keep the figures for `orch plan`.

    Seconds of a sample and of the optimizer, memory against its limit, the disk, the input pipeline, and what each
    link carries, in the image and on the interfaces of a launch. Nothing is trained, and nothing is left on the nodes.
    """
    from orchestrator.cli.launching.launch_options import LaunchOptions
    from orchestrator.cli.launching.measure import run_bench

    options = LaunchOptions(
        command=command_words(context, command),
        nodes=nodes,
        labels=tuple(label or ()),
        master=master,
        profile=profile,
        mounts=tuple(mount or ()),
        environment=tuple(env or ()),
        workdir=workdir,
        data=data,
        name="bench",
        engine=engine,
    )
    return run_bench(load_inventory(inventory).inventory, options, as_json=as_json)
