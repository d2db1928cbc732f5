"""`orch checkpoints`: list, verify, copy, remove and export the checkpoints on the nodes."""

from __future__ import annotations

import typer

from orchestrator.cli.checkpoints.looking import ls, verify
from orchestrator.cli.checkpoints.moving import export, pull, push
from orchestrator.cli.checkpoints.pruning import prune


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="List, verify, pull, push, prune and export the checkpoints on the nodes.",
        epilog="orch checkpoints ls\norch checkpoints pull RUN",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("ls", epilog="orch checkpoints ls\norch checkpoints ls RUN --verify --json")(ls)
    group.command("verify", epilog="orch checkpoints verify RUN")(verify)
    group.command("pull", epilog="orch checkpoints pull\norch checkpoints pull RUN --step 300 --to ./kept")(pull)
    group.command("push", epilog="orch checkpoints push RUN --from ./kept\norch checkpoints push --to beta")(push)
    group.command("prune", epilog="orch checkpoints prune RUN --keep 2 --older-than 24")(prune)
    group.command("export", epilog="orch checkpoints export RUN --to model.safetensors")(export)
    app.add_typer(group, name="checkpoints")
