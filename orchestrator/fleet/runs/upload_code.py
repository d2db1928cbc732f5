"""Code of a run, sent to its folder on a node: whole if it is small, otherwise what its newest run there has not."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from orchestrator.fleet.runs.code_files import code_files
from orchestrator.fleet.runs.known_sums import file_sums
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node
from orchestrator.specs.errors import CommandFailedError

SENT_WHOLE = 256_000
"""Bytes of a code folder that is sent whole: sooner done than asking what the node has."""

# Constants. $1: a run's folder. `from`: the code of the newest other run whose list says that it is complete.
_NEWEST = r"""
cd -- "$1/.." || exit 1
list=$(ls -t -- */code-*.list 2>/dev/null | grep -v "^$(basename -- "$1")/" | head -n 1)
[ -n "$list" ] && cd -- "${list%/*}/code" || exit 1
"""
_KNOWN = (
    _NEWEST
    + r"""xargs -0 -r sha256sum -z -- < "../${list##*/}" 2>/dev/null
exit 0
"""
)
_TAKE = (
    _NEWEST
    + r"""mkdir -p -- "$1/code" && tar -c -h --null --no-recursion -T - | tar -x -p -C "$1/code"
"""
)

# A constant. $1: a run's folder, $2: the digest of its code, $3: a temporary folder with the code, empty if it is in
# place; its files' names on stdin, each ended by a NUL. A run writes into its code's folder: the list says what it was
# launched with, and is written last: it means complete.
_SETTLE = """
cd -- "$1" || exit 1
[ -z "$3" ] || { mkdir -p code && cp -a -- "$3/." code/ && rm -rf -- "$3"; } || exit 1
cat > .code.list && rm -f -- code-*.list && mv -- .code.list "code-$2.list"
"""


def upload_code(node: Node, source: Path, run_folder: str, digest: str, without: Collection[str] = ()) -> bool:
    """Copy a folder of code into a run's folder. Returns whether only a part of it had to be sent.

    Files that the run has written there stay. Of a folder that is not small, files are copied on the node from the
    newest run that has the same.
    """
    code = code_files(source, without)
    size = sum((source / name).stat().st_size for name in code.names)
    there = _copy_known(node, source, run_folder, code.names) if size > SENT_WHOLE else frozenset()
    node.put(source, f"{run_folder}/code", only=[entry for entry in code.entries if entry not in there])
    settle_code(node, run_folder, digest, code.names)
    return bool(there)


def _copy_known(node: Node, source: Path, run_folder: str, names: Sequence[str]) -> frozenset[str]:
    """Copy on the node, into the run's code, the files whose content its newest run with code has; return their names.

    What the node says is compared with our own sums. A file with a permission to execute is sent: modes are not asked.
    """
    try:
        answer = node.run(["sh", "-c", _KNOWN, "sh", run_folder], timeout_s=TRANSFER_TIMEOUT_S)
    except CommandFailedError:  # an answer of more than the limit: more files than code has
        return frozenset()
    lines = (line.partition("  ") for line in answer.stdout.split("\0"))
    held = {name.removeprefix("./"): digest for digest, _, name in lines}
    own = file_sums(source, [name for name in names if name in held and not os.access(source / name, os.X_OK)])
    same = [name for name, digest in own.items() if held[name] == digest]
    if answer.exit_code or not same:
        return frozenset()
    listed = "".join(f"./{name}\0" for name in same).encode()
    copied = node.run(["sh", "-c", _TAKE, "sh", run_folder], stdin=listed, timeout_s=TRANSFER_TIMEOUT_S)
    return frozenset() if copied.exit_code else frozenset(same)


def settle_code(node: Node, run_folder: str, digest: str, names: tuple[str, ...], *, aside: str = "") -> None:
    listed = "".join(f"./{name}\0" for name in names).encode()
    done = node.run(["sh", "-c", _SETTLE, "sh", run_folder, digest, aside], stdin=listed)
    done.check(f"finishing {run_folder}/code")
