"""`orch checkpoints`: list, verify, copy, remove and export the checkpoints on the nodes."""

from __future__ import annotations

from orchestrator.cli.checkpoints.looking import ls, prune, verify
from orchestrator.cli.checkpoints.moving import export, pull, push
from orchestrator.cli.flags import Command, CommandGroup

GROUP = CommandGroup(
    help="List, verify, pull, push, prune and export the checkpoints on the nodes.",
    epilog="orch checkpoints ls\norch checkpoints pull RUN",
    no_args_is_help=True,
)
EXAMPLES: dict[Command, str] = {
    ls: "orch checkpoints ls\norch checkpoints ls RUN --verify -o wide",
    verify: "orch checkpoints verify RUN",
    pull: "orch checkpoints pull\norch checkpoints pull RUN --step 300 --to ./kept",
    push: "orch checkpoints push RUN --from ./kept\norch checkpoints push --to beta",
    prune: "orch checkpoints prune RUN --keep 2 --older-than 24",
    export: "orch checkpoints export RUN --to model.safetensors",
}
for command, examples in EXAMPLES.items():
    GROUP.command(epilog=examples)(command)
