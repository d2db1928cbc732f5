"""Code and data of a run, and its agent if the image has none: identified by a digest, uploaded from the controller, or
copied between nodes.

A resumed run takes them from the controller's folder while that is unchanged, otherwise from a node that has them,
streamed through this process. Content is hashed before it gets its final name: a run never continues with other code
or other data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from contract.data_check import DAMAGED, SUMS
from contract.data_parts import MANIFEST
from orchestrator.fleet.fan_out import Notify, Outcome, copy_from_first, fan_out, results_of
from orchestrator.fleet.relay import RELAYED_FROM, WITHOUT_END_S, Delivered, Destination, send_folder
from orchestrator.fleet.runs.code_files import PACKAGES, agent_entries, agent_names, code_files
from orchestrator.fleet.runs.known_sums import SumsReader, sum_of
from orchestrator.fleet.runs.send_data import folder_to_send, part_of_data
from orchestrator.nodes.archive import TarError, unpack
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.specs.data import DIGEST_LENGTH, data_name, in_code
from orchestrator.specs.errors import CommandFailedError, ConfigError, OrchError, PreflightError
from orchestrator.specs.plan import Plan

# A constant. $1: a run's folder, $2: the digest of its code, $3: a temporary folder with the code, empty if it is in
# place; its files' names on stdin, each ended by a NUL. A run writes into its code's folder: the list says what it was
# launched with, and is written last: it means complete.
_SETTLE = """
cd -- "$1" || exit 1
[ -z "$3" ] || { mkdir -p code && cp -a -- "$3/." code/ && rm -rf -- "$3"; } || exit 1
cat > .code.list && rm -f -- code-*.list && mv -- .code.list "code-$2.list"
"""

# Constants. $1: a copy of data that is not complete, or not needed; its folders may be read-only, as those copied are.
_DISCARD = 'chmod -R u+w -- "$1" 2>/dev/null; rm -rf -- "$1"'
# $1: a complete copy, $2: its name. A folder of that name is complete, too.
_NAME = (
    """
mv -T -- "$1" "$2" && exit 0
[ -d "$2" ] && [ ! -L "$2" ] || exit 1
"""
    + _DISCARD
)


def code_digest(folder: Path, without: Collection[str] = ()) -> str:
    """Return the digest of a code folder, `without` these paths, and what its ignore files leave out."""
    return folder_digest(folder, code_files(folder, without).names)


def agent_digest() -> str:
    """Return the digest of this computer's agent."""
    return folder_digest(PACKAGES, agent_names())


def data_digest(folder: Path, notify: Callable[[str], object] = lambda _line: None) -> str:
    """`folder_digest` of a data folder; reads only the files that have changed since they were last read."""
    return digest_of(SumsReader(notify=notify).sums(folder, names_in(folder)))


def folder_digest(folder: Path, names: Sequence[str] | None = None) -> str:
    """A name for a folder's content: file names and bytes decide, times and owners do not. `names`: default, all."""
    return digest_of(file_sums(folder, names_in(folder) if names is None else names))


def file_sums(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each file, by its path in the folder."""
    return {name: sum_of(folder / name) for name in names}


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


def upload_data(
    node: Node,
    source: Path,
    target: str,
    *,
    run_id: str,
    only: Sequence[str] | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Copy a folder to `target`, named by its digest. Copied to a temporary folder of this run and renamed when
    complete, and when `check` has raised nothing."""
    aside = _aside(target, run_id)
    node.run(["sh", "-c", _DISCARD, "sh", aside]).check("clearing a copy that broke off")
    try:
        node.put(source, aside, only=only)
        check()
        settle_data(node, aside, target)
    except BaseException:  # Ctrl-C too
        with suppress(OrchError):
            node.run(["sh", "-c", _DISCARD, "sh", aside])
        raise


def _aside(target: str, run_id: str) -> str:
    """Folder of a copy to `target` until it is complete. Launches of the same data each have their own."""
    return f"{target}.{run_id}.partial"


def settle_data(node: Node, aside: str, target: str) -> None:
    """Give a complete copy its name; where another run's copy has it already, that one is used."""
    named = node.run(["sh", "-c", _NAME, "sh", aside, target], timeout_s=TRANSFER_TIMEOUT_S)
    named.check(f"finishing {target}")


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


def code_list(digest: str) -> str:
    """Name of the file in a run's folder that lists its code's files; it exists once all of them are there."""
    return f"code-{digest}.list"


ASK_S = 15.0

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

# Constants. $1: the folder (which may begin with ~), $2: a list of its files next to it; empty: all files in it; then
# paths in the folder that are links to data, and belong to no code.
_HOLDS = r"""
case $1 in "~"*) place=$HOME${1#"~"};; *) place=$1;; esac
cd -- "$place" 2>/dev/null || exit 1
[ -z "$2" ] || [ -f "../$2" ] || exit 1
[ ! -e "../.sums/${PWD##*/}.damaged" ] || exit 1
"""
_SEND = (
    _HOLDS
    + r"""
if [ -z "$2" ]; then exec tar -c .; fi
list=$2
shift 2
for path; do set -- "$@" ! -path "./$path"; shift; done
{ cat -- "../$list"; find . \( -type d -o -type l \) "$@" -print0; } | tar -c --null --no-recursion -T -
"""
)
_BEGIN = f'{_DISCARD} && mkdir -p -- "$1"'
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
    """`code`, `data` or `agent`."""
    run_id: str
    digest: str
    origin: str
    """Its folder on the controller that launched the run."""
    parts: tuple[str, ...] = ()
    """Nodes in the order of their parts of the data; empty: each has all of it."""
    without: frozenset[str] = frozenset()
    """Paths in the folder of the code that are data."""

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
        if self.is_code:
            return f"{self.run_folder(target)}/code"
        return f"{target.folder}/{self.mark(target)}"

    def mark(self, target: ProjectDir) -> str:
        """Path in the project's folder that exists once the artifact is complete on the node."""
        if self.is_code:
            return f"runs/{self.run_id}/{self.listed}"
        return f"{self.what}/{data_name(self.digest, self.parts, target.node.name)}"

    def marks(self, target: ProjectDir) -> tuple[str, ...]:
        """The same; of data also its sums, and the list of its damaged files, which exists if there are any."""
        if self.what != "data":
            return (self.mark(target),)
        sums = f"data/{SUMS}/{PurePosixPath(self.mark(target)).name}"
        return self.mark(target), sums, f"{sums}{DAMAGED}"

    @property
    def words_to_send(self) -> tuple[str, ...]:
        """Words after the folder for the script that sends it."""
        return (self.listed, *sorted(self.without))


def artifacts_of(plan: Plan) -> tuple[Artifact, ...]:
    """Code, data and agent of this run for which its plan has a digest."""
    code = Artifact(
        what="code",
        run_id=plan.run_id,
        digest=plan.code_digest,
        origin=plan.code_origin,
        without=in_code(plan.data),
    )
    data = {
        one.digest: Artifact(what="data", run_id=plan.run_id, digest=one.digest, origin=one.origin, parts=one.parts)
        for one in plan.data
    }
    agent = Artifact(what="agent", run_id=plan.run_id, digest=plan.agent_digest, origin=str(PACKAGES))
    return tuple(one for one in (code, *data.values(), agent) if one.digest)


def bring(
    artifact: Artifact,
    lacking: Sequence[ProjectDir],
    having: Sequence[ProjectDir],
    elsewhere: Sequence[ProjectDir],
    *,
    fresh: Path | None,
    notify: Notify,
) -> None:
    """Copy the artifact to the nodes without it, from those that have it or from other nodes of the inventory.

    `fresh`: a folder of the controller, with the artifact's digest. PreflightError: no copy is left. Otherwise raises
    the first node's error.
    """
    folder, holders = fresh or as_launched(artifact), [] if artifact.parts else list(having)
    if not folder and not holders:
        holders = [] if artifact.parts else holders_of(artifact, elsewhere)  # no other node has the part of this one
        if not holders:
            raise _nowhere(artifact, lacking)

    def tell(target: ProjectDir, step: str) -> None:
        notify(target.node.name, Progress(text=step))

    def supply(target: ProjectDir) -> None:
        place = artifact.place(target)
        if folder is None:
            copy_from_first(holders, lambda source: _copy(artifact, source, target, notify), target.node.name)
        elif artifact.is_code:
            run_folder = artifact.run_folder(target)
            if upload_code(target.node, folder, run_folder, artifact.digest, artifact.without):
                tell(target, "changed code copied")
        elif artifact.what == "agent":
            upload_data(target.node, folder, place, run_id=artifact.run_id, only=agent_entries())
        else:
            check = partial(_sums_as_read, artifact, folder)
            upload_data(target.node, folder, place, run_id=artifact.run_id, check=check)
        if folder is None or not artifact.is_code:  # code is copied at every launch, and is small
            tell(target, f"{artifact.what} copied")

    sums = _sums_as_read(artifact, folder) if folder and artifact.what == "data" else {}
    if folder and sums and (artifact.parts or sum((folder / name).stat().st_size for name in sums) >= RELAYED_FROM):
        try:
            send_data(artifact, folder, sums, lacking, notify)
        except OrchError:
            _must_be_unchanged(artifact, folder, lacking)
            raise
    else:
        results_of(fan_out(lacking, supply, timeout_s=TRANSFER_TIMEOUT_S))
    if artifact.what == "data":
        _protect(artifact, lacking)


def _sums_as_read(artifact: Artifact, folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each file. ConfigError: the folder has changed since its digest was taken."""
    sums = SumsReader().sums(folder, names_in(folder))
    if digest_of(sums) != artifact.digest:
        raise ConfigError(
            f"{folder} has changed while it was copied",
            hint="launch again when nothing writes to it",
        )
    return sums


def _must_be_unchanged(artifact: Artifact, folder: Path, targets: Sequence[ProjectDir]) -> None:
    """ConfigError, with nothing left on the nodes: the folder has changed. What has arrived of another one stays, for
    the next launch to continue with."""
    try:
        _sums_as_read(artifact, folder)
    except ConfigError:
        fan_out(targets, lambda target: target.node.run(["rm", "-rf", "--", f"{artifact.place(target)}.partial"]))
        raise


def _protect(artifact: Artifact, targets: Sequence[ProjectDir]) -> None:
    """Make data read-only where no container does: another run finds it by its content."""

    def protect(target: ProjectDir) -> None:
        target.node.run(["chmod", "-R", "a-w", artifact.place(target)], timeout_s=TRANSFER_TIMEOUT_S)

    results_of(fan_out(targets, protect, timeout_s=TRANSFER_TIMEOUT_S))


def holders_of(artifact: Artifact, targets: Sequence[ProjectDir]) -> list[ProjectDir]:
    """The nodes that have the artifact, complete."""

    def holds(target: ProjectDir) -> bool:
        asked = ["sh", "-c", _HOLDS, "sh", artifact.place(target), artifact.listed]
        return target.node.run(asked, timeout_s=ASK_S).exit_code == 0

    return [outcome.item for outcome in fan_out(targets, holds, timeout_s=ASK_S) if outcome.result]


def fetch(artifact: Artifact, source: ProjectDir, target: Path) -> None:
    """Copy the artifact from a node to a folder of this computer. PreflightError: it has changed there."""
    with TemporaryFile() as archive:
        for chunk in source.node.stream(["sh", "-c", _SEND, "sh", artifact.place(source), *artifact.words_to_send]):
            archive.write(chunk)
        archive.seek(0)
        try:
            unpack(cast("BinaryIO", archive), target)
        except TarError as error:
            raise CommandFailedError(
                f"copying {artifact.place(source)} failed: {error}", node=source.node.name
            ) from error
    if folder_digest(target) != artifact.digest:
        raise _other_now(artifact, source)


def send_data(
    artifact: Artifact,
    folder: Path,
    sums: Mapping[str, str],
    lacking: Sequence[ProjectDir],
    notify: Notify,
) -> None:
    """Copy data, or to each node its part, over the controller's link once. Raises the first error, which names the
    others."""

    def send(source: Path, hashes: Mapping[str, str], *to: ProjectDir) -> Sequence[Outcome[Destination, Delivered]]:
        content = folder_to_send(source, hashes)

        def otherwise(target: Destination) -> Delivered:
            upload_data(target.node, source, target.folder, run_id=artifact.run_id)
            return Delivered(folder=target.folder, came=content.size, fed=content.size)

        targets = [Destination(node=target.node, folder=artifact.place(target)) for target in to]
        return send_folder(content, targets, notify, otherwise=otherwise)

    def send_part(target: ProjectDir) -> Outcome[Destination, Delivered]:
        with part_of_data(folder, artifact.parts.index(target.node.name), len(artifact.parts)) as part:
            own = {name: sums.get(name) or sum_of(part / name) for name in names_in(part)}
            return send(part, own | {MANIFEST: sum_of(part / MANIFEST)}, target)[0]

    if artifact.parts:
        outcomes = results_of(fan_out(lacking, send_part, timeout_s=WITHOUT_END_S))
    else:
        outcomes = list(send(folder, sums, *lacking))
    failed = list[OrchError]()
    for outcome in outcomes:
        if outcome.error:
            failed.append(outcome.error)
        else:
            doubt = outcome.value().doubt
            text = f"data copied; {doubt}" if doubt else "data copied"
            notify(outcome.item.node.name, Progress(text=text, done=1, total=1))
    if failed:
        for error in failed[1:]:
            failed[0].message += f"; {error}"
        raise failed[0]


def as_launched(artifact: Artifact) -> Path | None:
    """The controller's folder; None if its content has changed since the launch."""
    folder = Path(artifact.origin)
    with suppress(ConfigError, OSError):
        if not artifact.origin:
            return None
        if artifact.what == "agent":
            found = agent_digest()
        else:
            found = code_digest(folder, artifact.without) if artifact.is_code else data_digest(folder)
        return folder if found == artifact.digest else None
    return None


def _nowhere(artifact: Artifact, lacking: Sequence[ProjectDir]) -> PreflightError:
    names, what, run_id = ", ".join(target.node.name for target in lacking), artifact.what, artifact.run_id
    if what == "agent":
        return PreflightError(
            f"{names}: run {run_id} was launched with the agent of another orch, and no node that answers has it",
            hint=f"continue with this one: orch resume {run_id}",
        )
    there = Path(artifact.origin).is_dir()
    state = "holds something else now" if there else "is not on this computer"
    option = "--workdir" if artifact.is_code else "--data"
    return PreflightError(
        f"{names} {'lacks' if len(lacking) == 1 else 'lack'} the {what} that run {run_id} was launched with: "
        f"{artifact.origin or 'its folder'} {state}, and no node that answers has it",
        hint=f"restore it, or resume with {'its current content' if there else 'other ' + what}: "
        f"orch resume {run_id} {option} {artifact.origin if there else 'FOLDER'}",
    )


def _copy(artifact: Artifact, source: ProjectDir, target: ProjectDir, notify: Notify) -> None:
    place, node, broken = artifact.place(target), target.node, list[OrchError]()
    code_aside = f"{artifact.run_folder(target)}/.code-{artifact.digest}"
    aside = code_aside if artifact.is_code else _aside(place, artifact.run_id)

    def archive() -> Iterator[bytes]:
        """Keep an error of the source: the target's thread reads this."""
        text, sent = f"bringing the run's {artifact.what} from {source.node.name}", 0
        notify(node.name, Progress(text=text))
        try:
            for chunk in source.node.stream(["sh", "-c", _SEND, "sh", artifact.place(source), *artifact.words_to_send]):
                yield chunk
                sent += len(chunk)
                notify(node.name, Progress(text=text, done=sent))
        except OrchError as error:
            broken.append(error)

    try:
        node.run(["sh", "-c", _BEGIN, "sh", aside]).check("clearing a copy that broke off")
        unpacked = node.run(["tar", "-x", "-p", "-C", aside], stdin=archive(), timeout_s=TRANSFER_TIMEOUT_S)
        for error in broken:
            if isinstance(error, CommandFailedError):  # a file of the launch is missing there now
                raise _other_now(artifact, source) from error
            raise error
        unpacked.check(f"copying {artifact.what} from {source.node.name}", hint="is the disk full? df -h")
        answer = node.run(["sh", "-c", _SUMS, "sh", aside], timeout_s=TRANSFER_TIMEOUT_S).stdout
        lines = [line.partition("  ") for line in answer.split("\0") if line]
        sums = {name.removeprefix("./"): digest for digest, _, name in lines}
        if digest_of(sums) != artifact.digest:
            raise _other_now(artifact, source)
        if artifact.is_code:
            names = tuple(sorted(sums, key=PurePosixPath))
            settle_code(node, artifact.run_folder(target), artifact.digest, names, aside=aside)
        else:
            settle_data(node, aside, place)
    except BaseException:  # Ctrl-C too
        with suppress(OrchError):
            node.run(["sh", "-c", _DISCARD, "sh", aside])
        raise


def _other_now(artifact: Artifact, source: ProjectDir) -> PreflightError:
    return PreflightError(
        f"{artifact.place(source)} has changed since run {artifact.run_id} was launched",
        node=source.node.name,
        hint=f"restore {artifact.origin or 'the folder'} on this computer and try again",
    )
