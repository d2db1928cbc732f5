"""The token of an attempt, with which its nodes' agents know each other: new for each, and nowhere but on the nodes.

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
    """The same on each node, readable for its user alone. To be called while the attempt holds all of its nodes and
    before it starts on one; a single node has nobody to talk to."""
    token = secrets.token_hex(BYTES).encode()

    def place(item: tuple[Node, NodePlan]) -> None:
        node, part = item
        argv = ["sh", "-c", _PLACE, "sh", f"{part.folder}/runs/{run_id}", AGENTS_TOKEN, node.name]
        node.run(argv, stdin=token).check("writing the token of the run's agents")

    return fan_out(parts, place) if len(parts) > 1 else ()
