"""The checkpoint with the best evaluation, and best.json, which names it: on more than one machine, too."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.fleet.checkpoints.copy import Notify, copy_checkpoint
from orchestrator.nodes.interface import Node
from orchestrator.specs.checkpoint import Held

# A constant; $1: the run's folder of checkpoints, which may begin with ~. What it holds comes on stdin.
_MARK = """
umask 077
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
cd -- "$root/.." && cat > .best.json.new && sync -- .best.json.new 2>/dev/null; mv -- .best.json.new best.json
"""


def best_of(held: Sequence[Held], newest: int) -> Held | None:
    """The one that best.json names, of one run; where nodes differ, the latest: a best one is followed by better ones
    only. None above the step that the run goes on from."""
    named = [one for one in held if one.best and not one.problem and one.step <= newest]
    return max(named, key=lambda one: one.step, default=None)


def bring_best(source: Node, best: Held, target: Node, there: Sequence[Held], root: str, notify: Notify) -> None:
    """Copy it from `source` under `root` on `target` unless it is among those that are there, and name it there.

    Raises as `copy_checkpoint` does.
    """
    same = [one for one in there if one.identity == best.identity and not one.problem]
    if any(one.best for one in same):
        return
    if not same:
        copy_checkpoint(source, best, target, root, notify)
    named = json.dumps({"step": best.step, "checkpoint": best.name}).encode()
    target.run(["sh", "-c", _MARK, "sh", root], stdin=named).check("writing best.json")
