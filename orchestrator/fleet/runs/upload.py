"""Folders in a place where a run finds them, from the controller or another node: none that is not complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node
from orchestrator.specs.errors import OrchError

# $1: a copy that is not complete, or not needed; its folders may be read-only, as those copied are.
_DISCARD = 'chmod -R u+w -- "$1" 2>/dev/null; rm -rf -- "$1"'
_BEGIN = f'{_DISCARD} && mkdir -p -- "$1"'
# $1: a complete copy, $2: its name. A folder of that name is complete, too.
_NAME = (
    """
mv -T -- "$1" "$2" && exit 0
[ -d "$2" ] && [ ! -L "$2" ] || exit 1
"""
    + _DISCARD
)


def upload_data(
    node: Node,
    source: Path,
    target: str,
    *,
    run_id: str,
    only: Sequence[str] | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Copy a folder to `target`, named by its digest. It gets that name when it is complete, and when `check` has
    raised nothing."""
    with copy_aside(node, aside_of(target, run_id)) as aside:
        node.put(source, aside, only=only)
        check()
        settle_data(node, aside, target)


def aside_of(target: str, run_id: str) -> str:
    """Folder of a copy to `target` until it is complete. Launches of the same data each have their own."""
    return f"{target}.{run_id}.partial"


@contextmanager
def copy_aside(node: Node, aside: str) -> Iterator[str]:
    """Make a folder, empty, to which a copy is written; remove it where that fails."""
    node.run(["sh", "-c", _BEGIN, "sh", aside]).check("clearing a copy that broke off")
    try:
        yield aside
    except BaseException:  # Ctrl-C too
        with suppress(OrchError):
            node.run(["sh", "-c", _DISCARD, "sh", aside])
        raise


def settle_data(node: Node, aside: str, target: str) -> None:
    """Give a complete copy its name; where another run's copy has it already, that one is used."""
    named = node.run(["sh", "-c", _NAME, "sh", aside, target], timeout_s=TRANSFER_TIMEOUT_S)
    named.check(f"finishing {target}")
