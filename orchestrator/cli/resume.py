"""`orch resume`: go on with a run, on the nodes that it had or on others."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.launching.command_words import WORDS_AFTER_AN_ARGUMENT, command_words
from orchestrator.cli.launching.launch_options import LaunchOptions, OutputMode
from orchestrator.cli.options import (
    DataOption,
    DetachOption,
    EngineOption,
    EnvOption,
    InventoryOption,
    JsonOption,
    LabelOption,
    MasterOption,
    MasterPortOption,
    MaxRestartsOption,
    MinNodesOption,
    MountOption,
    NodesOption,
    NodeTimeoutOption,
    NoWatchOption,
    ProfileOption,
    ReplicasOption,
    SecretOption,
    WorkdirOption,
    YesOption,
)

EXAMPLES = """Examples:

orch resume RUN

orch resume RUN --nodes alpha,beta

orch resume RUN --min-nodes 2 -- gpt2 --epochs 5
"""


def register(app: typer.Typer) -> None:
    app.command("resume", epilog=EXAMPLES, context_settings=WORDS_AFTER_AN_ARGUMENT)(resume)


def resume(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id or its beginning.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND…]", help="Other words than it had before.")
    ] = None,
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    label: LabelOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: JsonOption = False,
    detach: DetachOption = False,
    no_watch: NoWatchOption = False,
    master: MasterOption = "",
    master_port: MasterPortOption = None,
    profile: ProfileOption = "",
    mount: MountOption = None,
    env: EnvOption = None,
    secret: SecretOption = None,
    workdir: WorkdirOption = None,
    data: DataOption = None,
    max_restarts: MaxRestartsOption = None,
    node_timeout: NodeTimeoutOption = None,
    min_nodes: MinNodesOption = None,
    replicas: ReplicasOption = None,
    engine: EngineOption = "",
    yes: YesOption = False,
) -> int:
    """Go on with a run from its newest checkpoint: the same run, its next attempt.

    What is not said is as it was, code and data too: nodes that lack them get what was launched. Rank 0 goes to a node
    that holds the newest sound checkpoint; where none of them takes part, it is brought to rank 0's.
    """
    from orchestrator.cli.launching.run_launch import run_launch

    options = LaunchOptions(
        resume=run,
        command=command_words(context, command),
        nodes=nodes,
        labels=tuple(label or ()),
        master=master,
        master_port=master_port,
        profile=profile,
        mounts=tuple(mount or ()),
        environment=tuple(env or ()),
        secrets=tuple(secret or ()),
        workdir=workdir,
        data=data,
        engine=engine,
        max_restarts=max_restarts,
        node_timeout_s=node_timeout,
        min_nodes=min_nodes,
        replicas=replicas,
    )
    loaded = load_inventory(inventory)
    mode = OutputMode(
        dry_run=dry_run,
        forecast=False,
        as_json=as_json,
        detach=detach,
        confirmed=yes,
        watch=not no_watch,
        inventory_file=loaded.path.absolute(),
        engine=engine,
    )
    return run_launch(loaded.inventory, options, mode)
