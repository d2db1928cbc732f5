"""Sums beside each copy of data on the nodes, and the files of a copy that are replaced because they are damaged.

An agent, or `orch doctor --deep`, lists damaged files in `data/.sums/NAME.damaged`. The next start sends these files
again: each is written aside and renamed, as a process may still have the old one mapped. What a node lists is its own
matter: it can cause its own files to be sent again, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from contract.data_check import DAMAGED, SUMS, FileSums, decode_sums, encode_sums
from orchestrator.fleet.fan_out import Notify, copy_from_first, fan_out, results_of
from orchestrator.fleet.relay import Destination
from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir, as_launched
from orchestrator.fleet.runs.held_data import HeldData
from orchestrator.fleet.runs.known_sums import SumsReader, digest_of, names_in
from orchestrator.fleet.runs.send_data import data_for, send_files
from orchestrator.fleet.runs.upload import upload_data
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.specs.errors import CommandFailedError, OrchError, PreflightError
from orchestrator.store.run_record import recorded_runs

# Constants. $1: the project's folder, $2: the name of a copy. A run may have left links anywhere in that folder: what
# is written is made as a new file, and no folder on the way to it may be a link.
_ENTER = r"""
cd -- "$1/data" || exit 1
[ ! -L .sums ] || { echo "$1/data/.sums is a link, through which nothing is written" >&2; exit 1; }
mkdir -p .sums || exit 1
name=$2
"""
# The sums are on stdin.
_NOTE = (
    _ENTER
    + r"""rm -rf -- ".sums/$name.new" && set -C && cat > ".sums/$name.new" || exit 1
mv -fT -- ".sums/$name.new" ".sums/$name" && rm -f -- ".sums/$name.damaged" ".sums/$name.checked"
"""
)
_READ = r"""cd -- "$1/data/.sums" && cat -- "$2" 2>/dev/null
exit 0
"""
# $1: the project's folder, which may begin with ~.
_PLACE = r"""
place=$1
case $place in "~"*) place=$HOME${place#"~"};; esac
cd -- "$place" && pwd
"""
_CLEAR = (
    _ENTER
    + r"""rm -rf -- ".sums/$name.arrived"
"""
)
# $3 and after it: names of files.
_SEND = r"""cd -- "$1/data/$2" || exit 1
shift 2
exec tar -c -h -- "$@"
"""
# $1: a folder.
_UNPACK = r"""mkdir -- "$1" && exec tar -x -C "$1"
"""
# $3 and after it: pairs of a file's SHA-256 and its name.
_REPLACE = (
    _ENTER
    + r"""shift 2
arrived=.sums/$name.arrived here=$(pwd -P) sum=
for word; do
  if [ -z "$sum" ]; then sum=$word; continue; fi
  found=$(sha256sum < "$arrived/$word" | cut -c 1-64)
  [ "$found" = "$sum" ] || { echo "$word has not arrived as it was sent" >&2; exit 1; }
  up=$(dirname -- "$name/$word")
  [ "$(cd -P -- "$up" 2>/dev/null && pwd -P)" = "$here/$up" ] || { echo "$up is missing or a link" >&2; exit 1; }
  chmod a-w -- "$arrived/$word" && chmod u+w -- "$up" && mv -fT -- "$arrived/$word" "$name/$word" || exit 1
  chmod a-w -- "$up"
  sum=
done
rm -rf -- "$arrived" "$arrived".* && rm -f -- ".sums/$name.damaged"
"""
)


def note_sums(
    artifact: Artifact, targets: Sequence[ProjectDir], holders: Sequence[ProjectDir], *, fresh: Path | None
) -> None:
    """Write sums beside complete copies of data. They are those of the controller's folder, otherwise those that a
    holder has, without its sums of blocks: the digest of the data proves the others alone."""
    folder = fresh or as_launched(artifact)
    known = SumsReader().of_files(folder, names_in(folder)) if folder else {}

    def note(target: ProjectDir) -> None:
        if folder:
            with data_for(artifact, target, folder, known) as (_, own):
                sums = own
        else:
            found = (_proven(artifact, one) for one in holders)
            sums = {name: one._replace(blocks="") for name, one in next((one for one in found if one), {}).items()}
        if sums:
            words = [target.folder, _name(artifact, target)]
            written = target.node.run(["sh", "-c", _NOTE, "sh", *words], stdin=encode_sums(sums).encode())
            written.check(f"writing the sums of {artifact.place(target)}")

    results_of(fan_out(targets, note, timeout_s=TRANSFER_TIMEOUT_S))


def repair(
    artifact: Artifact,
    damaged: Sequence[ProjectDir],
    holders: Sequence[ProjectDir],
    *,
    fresh: Path | None,
    notify: Notify,
) -> None:
    """Replace the files of these copies that are listed as damaged, from the controller's folder, otherwise from a
    node that has them. PreflightError: no intact copy is left. Otherwise raises the first node's error."""
    folder = fresh or as_launched(artifact)
    known = SumsReader().of_files(folder, names_in(folder)) if folder else {}

    def replace_on(target: ProjectDir) -> None:
        if folder:
            with data_for(artifact, target, folder, known) as (source, own):
                if sums := _listed(artifact, target, own):
                    _put(artifact, target, source, sums, notify)
                    _replace(artifact, target, sums, notify)
        elif sums := _listed(artifact, target, _proven(artifact, target)):
            if not holders:
                raise _nowhere(artifact, target, sums)
            copy_from_first(holders, lambda one: _copy(artifact, one, target, sums, notify), target.node.name)

    results_of(fan_out(damaged, replace_on, timeout_s=TRANSFER_TIMEOUT_S))


def repair_held(
    nodes: Sequence[Node],
    places: Mapping[str, str],
    held: Sequence[HeldData],
    chosen: Sequence[HeldData],
    notify: Notify,
) -> list[OrchError]:
    """Replace the damaged files of the chosen copies, of all that the nodes hold; the errors of those that stay."""
    by_name, errors = {node.name: node for node in nodes}, list[OrchError]()
    recorded = _recorded()

    def at(one: HeldData) -> ProjectDir:
        node = by_name[one.node]
        found = node.run(["sh", "-c", _PLACE, "sh", places[one.node]]).check(f"finding {places[one.node]}")
        return ProjectDir(node=node, folder=found.strip())

    for name in dict.fromkeys(one.name for one in chosen):
        artifact = recorded.get(name, Artifact(what="data", run_id="repair", digest=name, origin=""))
        intact = [one for one in held if one.name == name and not one.is_damaged and not artifact.parts]
        try:
            damaged = [at(one) for one in chosen if one.name == name]
            repair(artifact, damaged, [at(one) for one in intact], fresh=None, notify=notify)
        except OrchError as error:
            errors.append(error)
    return errors


def _recorded() -> dict[str, Artifact]:
    """Data of the runs on record, by the name of a copy."""
    plans = [plan for record in recorded_runs() if (plan := record.plan())]
    return {
        one.held_as(part.node): Artifact(
            what="data", run_id=plan.run_id, digest=one.digest, origin=one.origin, parts=one.parts
        )
        for plan in reversed(plans)
        for part in plan.nodes
        for one in plan.data
    }


def _proven(artifact: Artifact, target: ProjectDir) -> Mapping[str, FileSums]:
    """The sums that a node has beside its copy, if they are those of this data; empty: they are not, or it cannot be
    proven, as of a part."""
    try:
        sums = decode_sums(_read(target, _name(artifact, target)))
    except (ValueError, CommandFailedError):
        return {}
    is_same = digest_of({name: one.sha256 for name, one in sums.items()}) == artifact.digest
    return sums if is_same else {}


def _listed(artifact: Artifact, target: ProjectDir, known: Mapping[str, FileSums]) -> Mapping[str, FileSums]:
    """Files that the node lists as damaged, of those that its copy has."""
    try:
        names = json.loads(_read(target, f"{_name(artifact, target)}{DAMAGED}"))
        return {name: known[name] for name in names if name in known}
    except (ValueError, TypeError, RecursionError):
        return {}


def _put(artifact: Artifact, target: ProjectDir, source: Path, sums: Mapping[str, FileSums], notify: Notify) -> None:
    """Send files from this computer to the folder beside the sums."""
    _clear(artifact, target)
    parents = {str(up) for name in sums for up in PurePosixPath(name).parents if str(up) != "."}

    def upload(to: Destination) -> None:
        upload_data(to.node, source, to.folder, run_id=artifact.run_id, only=[*sorted(parents), *sums])

    to = Destination(node=target.node, folder=_arrived(artifact, target))
    send_files(source, sums, [to], notify, upload=upload, only=sums.keys())[0].value()


def _copy(
    artifact: Artifact, source: ProjectDir, target: ProjectDir, sums: Mapping[str, FileSums], notify: Notify
) -> None:
    """Copy files from another node, through this computer."""
    _clear(artifact, target)
    words = [source.folder, _name(artifact, source), *sums]
    archive = source.node.stream(["sh", "-c", _SEND, "sh", *words])
    unpacked = target.node.run(
        ["sh", "-c", _UNPACK, "sh", _arrived(artifact, target)], stdin=archive, timeout_s=TRANSFER_TIMEOUT_S
    )
    unpacked.check(f"copying data from {source.node.name}", hint="is the disk full? df -h")
    _replace(artifact, target, sums, notify)


def _clear(artifact: Artifact, target: ProjectDir) -> None:
    words = [target.folder, _name(artifact, target)]
    target.node.run(["sh", "-c", _CLEAR, "sh", *words]).check("clearing a copy that broke off")


def _replace(artifact: Artifact, target: ProjectDir, sums: Mapping[str, FileSums], notify: Notify) -> None:
    pairs = [word for name, one in sums.items() for word in (one.sha256, name)]
    words = [target.folder, _name(artifact, target), *pairs]
    done = target.node.run(["sh", "-c", _REPLACE, "sh", *words], timeout_s=TRANSFER_TIMEOUT_S)
    done.check(f"replacing damaged files of {artifact.place(target)}", hint="orch data rm, and launch again")
    notify(target.node.name, Progress(text=f"damaged data replaced: {', '.join(sums)}"))


def _read(target: ProjectDir, file: str) -> str:
    return target.node.run(["sh", "-c", _READ, "sh", target.folder, file]).stdout


def _name(artifact: Artifact, target: ProjectDir) -> str:
    return PurePosixPath(artifact.place(target)).name


def _arrived(artifact: Artifact, target: ProjectDir) -> str:
    return f"{target.folder}/data/{SUMS}/{_name(artifact, target)}.arrived"


def _nowhere(artifact: Artifact, target: ProjectDir, sums: Mapping[str, FileSums]) -> PreflightError:
    first, *others = sums
    more = f" and {len(others)} more" if others else ""
    here = f"{artifact.origin} is no longer the folder of the launch" if artifact.origin else "this computer has none"
    return PreflightError(
        f"{first}{more} of data {_name(artifact, target)} is damaged, {here}, and no node has an intact copy",
        node=target.node.name,
        hint=f"restore that folder, or resume with other data: orch resume {artifact.run_id} --data FOLDER",
    )
