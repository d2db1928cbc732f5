"""The token by which the agents of an attempt authenticate each other: new for each attempt, stored only on the nodes.

It lies in the run's folder, beside the plan, not in a node's memory: a machine that was switched off is to come back
into its run without a controller. No plan, label, environment, command line or record holds it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from contract.run_folder import AGENTS_TOKEN
from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.nodes.interface import Node
from orchestrator.specs.plan import NodePlan

BYTES = 32

# A constant for the node's shell; $1 folder of the run (which may begin with ~), $2 name of the file, $3 node: several
# may share the folder. The token comes on stdin.
_PLACE = """
umask 077
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
cat > "$folder/.$2.$3" && mv -f "$folder/.$2.$3" "$folder/$2"
"""


def place_token(parts: Sequence[tuple[Node, NodePlan]], run_id: str) -> Sequence[Outcome[tuple[Node, NodePlan], None]]:
    """Write the same token on each node, readable by its user alone. Call it while the attempt holds all its nodes and
    before the first container starts; a single node needs no token."""
    token = secrets.token_hex(BYTES).encode()

    def place(item: tuple[Node, NodePlan]) -> None:
        node, part = item
        argv = ["sh", "-c", _PLACE, "sh", f"{part.folder}/runs/{run_id}", AGENTS_TOKEN, node.name]
        node.run(argv, stdin=token).check("writing the token of the run's agents")

    return fan_out(parts, place) if len(parts) > 1 else ()
