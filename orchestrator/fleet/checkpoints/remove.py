"""Take checkpoints away from a node."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.nodes.interface import Node
from orchestrator.specs.checkpoint import Held

TIMEOUT_S = 120.0

# A constant; the folders are its arguments. Renamed first: one that is half gone is not to be taken for a damaged one.
# Not to `.tmp-*`: those the trainer clears away while it saves, and would stumble where two clear at once.
_REMOVE = """
for folder in "$@"; do
  gone=${folder%/*}/.copy-gone-${folder##*/}
  rm -rf -- "$gone"
  [ ! -e "$folder" ] || { mv -T -- "$folder" "$gone" && rm -rf -- "$gone"; } || exit 1
done
"""


def remove(node: Node, held: Sequence[Held]) -> None:
    """Remove these of the node's checkpoints, oldest first; what is gone already is no error."""
    if held:
        folders = [one.folder for one in sorted(held, key=lambda one: one.step)]
        done = node.run(["sh", "-c", _REMOVE, "sh", *folders], timeout_s=TIMEOUT_S)
        done.check(f"removing {len(folders)} checkpoint{'' if len(folders) == 1 else 's'}")


def remove_all(nodes: Sequence[Node], held: Sequence[Held]) -> tuple[Outcome[Node, None], ...]:
    """Remove these, each from its node; one outcome for each node that had any."""
    concerned = [node for node in nodes if any(one.node == node.name for one in held)]
    return fan_out(concerned, lambda node: remove(node, [one for one in held if one.node == node.name]))
