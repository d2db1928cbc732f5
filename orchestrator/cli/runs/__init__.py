"""`orch runs`: list runs, compare two of them, or run one again."""

from __future__ import annotations

from orchestrator.cli.flags import CommandGroup, expand
from orchestrator.cli.runs.compare import diff
from orchestrator.cli.runs.listing import runs
from orchestrator.cli.runs.repeat import rerun

GROUP = CommandGroup(
    epilog="orch runs\norch runs --state running,failed --since 2d\norch runs --grep 'gpt2.*--epochs 5' -o name\n"
    "orch runs diff RUN OTHER\norch runs rerun RUN",
    subcommand_metavar="[diff|rerun ...]",
)
GROUP.callback(invoke_without_command=True)(expand()(runs))
GROUP.command(epilog="orch runs diff RUN OTHER\norch runs diff RUN OTHER --all -o json")(diff)
GROUP.command(epilog="orch runs rerun RUN --dry-run\norch runs rerun RUN -n alpha,beta --detach")(rerun)
