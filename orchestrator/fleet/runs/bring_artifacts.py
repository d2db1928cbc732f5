"""Code, data and agent of a run for the nodes without them: from the controller's folder while that is unchanged,
otherwise from a node that has them, streamed through this process.

Content is hashed before it gets its final name: a run never continues with other code or other data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from orchestrator.fleet.fan_out import Notify, copy_from_first, fan_out, results_of
from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir, as_launched
from orchestrator.fleet.runs.code_files import agent_entries
from orchestrator.fleet.runs.known_sums import digest_of, folder_digest
from orchestrator.fleet.runs.send_data import send_data
from orchestrator.fleet.runs.upload import aside_of, copy_aside, settle_data, upload_data
from orchestrator.fleet.runs.upload_code import settle_code, upload_code
from orchestrator.nodes.archive import TarError, unpack
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Progress
from orchestrator.specs.errors import CommandFailedError, OrchError, PreflightError

ASK_S = 15.0

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
_SUMS = r"""
cd -- "$1" && find . \( -type f -o -type l \) -print0 | xargs -0 -r sha256sum -z -- 2>/dev/null
exit 0
"""


def bring(
    artifact: Artifact,
    missing: Sequence[ProjectDir],
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
    if folder := fresh or as_launched(artifact):
        _send(artifact, folder, missing, notify)
    else:  # of parts, no other node has that of this one
        holders = [] if artifact.parts else list(having) or holders_of(artifact, elsewhere)
        if not holders:
            raise _nowhere(artifact, missing)

        def copy(target: ProjectDir) -> None:
            copy_from_first(holders, lambda source: _copy(artifact, source, target, notify), target.node.name)
            notify(target.node.name, Progress(text=f"{artifact.what} copied", done=1, total=1))

        results_of(fan_out(missing, copy, timeout_s=TRANSFER_TIMEOUT_S))
    if artifact.what == "data":
        _protect(artifact, missing)


def _send(artifact: Artifact, folder: Path, missing: Sequence[ProjectDir], notify: Notify) -> None:
    """Copy from the controller's folder. Code is copied at every launch, and is small: no report, unless some of it was
    there."""

    def send_code(target: ProjectDir) -> None:
        if upload_code(target.node, folder, artifact.run_folder(target), artifact.digest, artifact.without):
            notify(target.node.name, Progress(text="changed code copied", done=1, total=1))

    def send_agent(target: ProjectDir) -> None:
        upload_data(target.node, folder, artifact.place(target), run_id=artifact.run_id, only=agent_entries())
        notify(target.node.name, Progress(text="agent copied", done=1, total=1))

    if artifact.what == "data":
        send_data(artifact, folder, missing, notify)
    else:
        send = send_code if artifact.is_code else send_agent
        results_of(fan_out(missing, send, timeout_s=TRANSFER_TIMEOUT_S))


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
        for chunk in _archive(artifact, source):
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


def _copy(artifact: Artifact, source: ProjectDir, target: ProjectDir, notify: Notify) -> None:
    place, node, broken = artifact.place(target), target.node, list[OrchError]()
    code_aside = f"{artifact.run_folder(target)}/.code-{artifact.digest}"

    def archive() -> Iterator[bytes]:
        """Keep an error of the source: the target's thread reads this."""
        text, sent = f"bringing the run's {artifact.what} from {source.node.name}", 0
        notify(node.name, Progress(text=text))
        try:
            for chunk in _archive(artifact, source):
                yield chunk
                sent += len(chunk)
                notify(node.name, Progress(text=text, done=sent))
        except OrchError as error:
            broken.append(error)

    with copy_aside(node, code_aside if artifact.is_code else aside_of(place, artifact.run_id)) as aside:
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


def _archive(artifact: Artifact, source: ProjectDir) -> Iterator[bytes]:
    """The artifact on a node as a tar archive."""
    return source.node.stream(["sh", "-c", _SEND, "sh", artifact.place(source), *artifact.words_to_send])


def _nowhere(artifact: Artifact, missing: Sequence[ProjectDir]) -> PreflightError:
    names, what, run_id = ", ".join(target.node.name for target in missing), artifact.what, artifact.run_id
    if what == "agent":
        return PreflightError(
            f"{names}: run {run_id} was launched with the agent of another orch, and no node that answers has it",
            hint=f"continue with this one: orch resume {run_id}",
        )
    there = Path(artifact.origin).is_dir()
    state = "holds something else now" if there else "is not on this computer"
    option = "--workdir" if artifact.is_code else "--data"
    return PreflightError(
        f"{names} {'lacks' if len(missing) == 1 else 'lack'} the {what} that run {run_id} was launched with: "
        f"{artifact.origin or 'its folder'} {state}, and no node that answers has it",
        hint=f"restore it, or resume with {'its current content' if there else 'other ' + what}: "
        f"orch resume {run_id} {option} {artifact.origin if there else 'FOLDER'}",
    )


def _other_now(artifact: Artifact, source: ProjectDir) -> PreflightError:
    return PreflightError(
        f"{artifact.place(source)} has changed since run {artifact.run_id} was launched",
        node=source.node.name,
        hint=f"restore {artifact.origin or 'the folder'} on this computer and try again",
    )
