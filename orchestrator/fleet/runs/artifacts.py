"""Code and data of a run: identified by a digest, uploaded from the controller, or copied between nodes.

A resumed run takes them from the controller's folder while its content is what was launched; otherwise from a node that
has them, streamed through this process. Content is hashed before it gets its final name: a run never continues with
other code or other data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node
from orchestrator.specs.errors import CommandFailedError, ConfigError, OrchError, PreflightError
from orchestrator.specs.plan import Plan

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
    """Paths of all files in the folder, relative to it. ConfigError if it is not a folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    return tuple(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


def digest_of(content: Mapping[str, str]) -> str:
    """Digest of a folder from the SHA-256 of each file, by name."""
    whole = hashlib.sha256()
    for name in sorted(content, key=PurePosixPath):
        whole.update(f"{name}\0{content[name]}\n".encode())
    return whole.hexdigest()[:DIGEST_LENGTH]


def upload_data(node: Node, source: Path, target: str) -> None:
    """Copy a folder to `target`, named by its digest. Copied to a temporary folder and renamed when complete."""
    aside = f"{target}.partial"
    node.run(["rm", "-rf", aside]).check("clearing a copy that broke off")
    node.put(source, aside)
    settle_data(node, aside, target)


def settle_data(node: Node, aside: str, target: str) -> None:
    node.run(["mv", "-T", aside, target]).check(f"finishing {target}")


def upload_code(node: Node, source: Path, run_folder: str, digest: str) -> None:
    """Copy a folder of code into a run's folder. Files that the run has written there stay."""
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


ASK_S = 15.0

# Constants. $1: the folder (which may begin with ~), $2: a list of its files beside it, empty for all that is there.
_PLACE = r"""
case $1 in "~"*) place=$HOME${1#"~"};; *) place=$1;; esac
cd -- "$place" 2>/dev/null || exit 1
[ -z "$2" ] || [ -f "../$2" ] || exit 1
"""
_HOLDS = _PLACE
_SEND = (
    _PLACE
    + r"""
if [ -z "$2" ]; then exec tar -c .; fi
{ cat -- "../$2"; find . \( -type d -o -type l \) -print0; } | tar -c --null --no-recursion -T -
"""
)
_BEGIN = 'rm -rf -- "$1" && mkdir -p -- "$1"'
_SUMS = r"""
cd -- "$1" && find . \( -type f -o -type l \) -print0 | xargs -0 -r sha256sum -z -- 2>/dev/null
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class ProjectDir:
    """The project's folder on a node."""

    node: Node
    folder: str


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder that a run was launched with."""

    what: str
    """`code` or `data`."""
    run_id: str
    digest: str
    origin: str
    """Its folder on the controller that launched the run."""

    @property
    def is_code(self) -> bool:
        return self.what == "code"

    @property
    def listed(self) -> str:
        """Name of the list of code files, as the run writes into the same folder; empty for data."""
        return code_list(self.digest) if self.is_code else ""

    def run_folder(self, target: ProjectDir) -> str:
        return f"{target.folder}/runs/{self.run_id}"

    def place(self, target: ProjectDir) -> str:
        return f"{self.run_folder(target)}/code" if self.is_code else f"{target.folder}/data/{self.digest}"


def artifacts_of(plan: Plan) -> tuple[Artifact, ...]:
    """Code and data of this run for which its plan has a digest."""
    found = (("code", plan.code_digest, plan.code_origin), ("data", plan.data_digest, plan.data_origin))
    return tuple(
        Artifact(what=what, run_id=plan.run_id, digest=digest, origin=origin)
        for what, digest, origin in found
        if digest
    )


def bring(
    artifact: Artifact,
    lacking: Sequence[ProjectDir],
    having: Sequence[ProjectDir],
    elsewhere: Sequence[ProjectDir],
    *,
    fresh: Path | None,
    on_step: Callable[[str, str], None],
) -> None:
    """Copy the artifact to the nodes without it, from those that have it or from other nodes of the inventory.

    `fresh` is a folder of the controller whose digest was taken just now. Raises `PreflightError` if
    no copy is left, or the first node's error.
    """
    folder = fresh or _as_launched(artifact)
    holders = [] if folder else having or _holders(artifact, elsewhere)
    if not folder and not holders:
        raise _nowhere(artifact, lacking)

    def supply(target: ProjectDir) -> None:
        if folder:
            _upload(artifact, folder, target)
        else:
            on_step(target.node.name, f"bringing the run's {artifact.what} from {holders[0].node.name}")
            _first_that_can(artifact, holders, target)
        if folder is None or not artifact.is_code:  # code goes with every launch, and is small
            on_step(target.node.name, f"{artifact.what} copied")

    for outcome in fan_out(lacking, supply, timeout_s=TRANSFER_TIMEOUT_S):
        outcome.value()


def _as_launched(artifact: Artifact) -> Path | None:
    """The controller's folder, while its content is what the run was launched with."""
    folder = Path(artifact.origin)
    with suppress(ConfigError, OSError):
        return folder if artifact.origin and folder_digest(folder) == artifact.digest else None
    return None


def _holders(artifact: Artifact, others: Sequence[ProjectDir]) -> Sequence[ProjectDir]:
    def holds(target: ProjectDir) -> bool:
        asked = ["sh", "-c", _HOLDS, "sh", artifact.place(target), artifact.listed]
        return target.node.run(asked, timeout_s=ASK_S).exit_code == 0

    return [outcome.item for outcome in fan_out(others, holds, timeout_s=ASK_S) if outcome.result]


def _nowhere(artifact: Artifact, lacking: Sequence[ProjectDir]) -> PreflightError:
    """Which folder it was, and what to do about it."""
    names, what, run_id = ", ".join(target.node.name for target in lacking), artifact.what, artifact.run_id
    there = Path(artifact.origin).is_dir()
    state = "holds something else now" if there else "is not on this computer"
    option = "--workdir" if artifact.is_code else "--data"
    return PreflightError(
        f"{names} {'lacks' if len(lacking) == 1 else 'lack'} the {what} that run {run_id} was launched with: "
        f"{artifact.origin or 'its folder'} {state}, and no node that answers has it",
        hint=f"restore it, or resume with {'its current content' if there else 'other ' + what}: "
        f"orch resume {run_id} {option} {artifact.origin if there else 'FOLDER'}",
    )


def _upload(artifact: Artifact, folder: Path, target: ProjectDir) -> None:
    if artifact.is_code:
        upload_code(target.node, folder, artifact.run_folder(target), artifact.digest)
    else:
        upload_data(target.node, folder, artifact.place(target))


def _first_that_can(artifact: Artifact, holders: Sequence[ProjectDir], target: ProjectDir) -> None:
    """Copy from the first holder with unchanged content. An error of the target itself is raised at once."""
    for number, source in enumerate(holders):
        try:
            _copy(artifact, source, target)
            return
        except OrchError as error:
            if error.node == target.node.name or number == len(holders) - 1:
                raise


def _copy(artifact: Artifact, source: ProjectDir, target: ProjectDir) -> None:
    place = artifact.place(target)
    aside = f"{artifact.run_folder(target)}/.code-{artifact.digest}" if artifact.is_code else f"{place}.partial"
    node, passing = (
        target.node,
        _Passing(source.node, ["sh", "-c", _SEND, "sh", artifact.place(source), artifact.listed]),
    )
    try:
        node.run(["sh", "-c", _BEGIN, "sh", aside]).check("clearing a copy that broke off")
        unpacked = node.run(["tar", "-x", "-p", "-C", aside], stdin=passing.chunks(), timeout_s=TRANSFER_TIMEOUT_S)
        if isinstance(passing.error, CommandFailedError):  # a file that was launched is not there any more
            raise _other_now(artifact, source) from passing.error
        if passing.error:
            raise passing.error
        unpacked.check(f"copying {artifact.what} from {source.node.name}", hint="is the disk full? df -h")
        sums = _sums(node, aside)
        if digest_of(sums) != artifact.digest:
            raise _other_now(artifact, source)
        if artifact.is_code:
            names = tuple(sorted(sums, key=PurePosixPath))
            settle_code(node, artifact.run_folder(target), artifact.digest, names, aside=aside)
        else:
            settle_data(node, aside, place)
    except BaseException:  # Ctrl-C too
        with suppress(OrchError):
            node.run(["rm", "-rf", "--", aside])
        raise


def _other_now(artifact: Artifact, source: ProjectDir) -> PreflightError:
    return PreflightError(
        f"{artifact.place(source)} has changed since run {artifact.run_id} was launched",
        node=source.node.name,
        hint=f"restore {artifact.origin or 'the folder'} on this computer and try again",
    )


def _sums(node: Node, folder: str) -> dict[str, str]:
    """SHA-256 of each file, by its path in the folder."""
    answer = node.run(["sh", "-c", _SUMS, "sh", folder], timeout_s=TRANSFER_TIMEOUT_S).stdout
    lines = [line.partition("  ") for line in answer.split("\0") if line]
    return {name.removeprefix("./"): digest for digest, _, name in lines}


class _Passing:
    """An archive on its way. What breaks it off at its origin is kept: its reader is another node's thread."""

    def __init__(self, node: Node, argv: Sequence[str]) -> None:
        self._node, self._argv = node, argv
        self.error: OrchError | None = None

    def chunks(self) -> Iterator[bytes]:
        try:
            yield from self._node.stream(self._argv)
        except OrchError as error:
            self.error = error
