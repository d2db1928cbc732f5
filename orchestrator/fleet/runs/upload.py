"""Folders of the controller that the nodes need: code for each run, data once by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import ConfigError

DIGEST_LENGTH = 16
CHUNK = 1024 * 1024

# A constant. $1: a run's folder, $2: the digest of its code, $3: a folder aside that the code lies in, empty where it
# is in place already; its files' names on stdin, each ended by a NUL. A run writes into its code's folder: the list
# tells what it was launched with, and is written last: it means complete.
_SETTLE = """
cd -- "$1" || exit 1
[ -z "$3" ] || { mkdir -p code && cp -a -- "$3/." code/ && rm -rf -- "$3"; } || exit 1
cat > .code.list && rm -f -- code-*.list && mv -- .code.list "code-$2.list"
"""


def folder_digest(folder: Path) -> str:
    """A name for a folder's content: file names and bytes decide, times and owners do not."""
    return digest_of({name: _sha256(folder / name) for name in names_in(folder)})


def names_in(folder: Path) -> tuple[str, ...]:
    """All its files. ConfigError where it is no folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    return tuple(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


def digest_of(content: Mapping[str, str]) -> str:
    """The same name, from each file's SHA-256."""
    whole = hashlib.sha256()
    for name in sorted(content, key=PurePosixPath):
        whole.update(f"{name}\0{content[name]}\n".encode())
    return whole.hexdigest()[:DIGEST_LENGTH]


def upload_data(node: Node, source: Path, target: str) -> None:
    """Bring a folder to `target`, whose name is its digest. Copied aside and renamed: the name means complete."""
    aside = f"{target}.partial"
    node.run(["rm", "-rf", aside]).check("clearing a copy that broke off")
    node.put(source, aside)
    settle_data(node, aside, target)


def settle_data(node: Node, aside: str, target: str) -> None:
    node.run(["mv", "-T", aside, target]).check(f"finishing {target}")


def upload_code(node: Node, source: Path, run_folder: str, digest: str) -> None:
    """Bring a folder of code to a run's. What the run has written there stays."""
    node.put(source, f"{run_folder}/code")
    settle_code(node, run_folder, digest, names_in(source))


def settle_code(node: Node, run_folder: str, digest: str, names: tuple[str, ...], *, aside: str = "") -> None:
    listed = "".join(f"./{name}\0" for name in names).encode()
    done = node.run(["sh", "-c", _SETTLE, "sh", run_folder, digest, aside], stdin=listed)
    done.check(f"finishing {run_folder}/code")


def code_list(digest: str) -> str:
    """The file in a run's folder that says which files its code has, and that all of them are there."""
    return f"code-{digest}.list"


def _sha256(file: Path) -> str:
    content = hashlib.sha256()
    with file.open("rb") as source:
        while chunk := source.read(CHUNK):
            content.update(chunk)
    return content.hexdigest()
