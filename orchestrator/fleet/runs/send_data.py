"""Data that the controller sends: a folder to all nodes, to each node its part, or some files of a copy.

Much goes over the controller's link once, and from node to node; little is sent to each node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from contract.data_check import FileSums
from contract.data_parts import MANIFEST, divide, files_of
from orchestrator.fleet.fan_out import Notify, Outcome, fan_out, results_of
from orchestrator.fleet.relay import (
    CHUNK,
    RELAYED_FROM,
    WITHOUT_END_S,
    Delivered,
    Destination,
    FolderToSend,
    send_folder,
)
from orchestrator.fleet.relay_messages import FileToSend
from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir
from orchestrator.fleet.runs.known_sums import SumsReader, digest_of, names_in, sums_of
from orchestrator.fleet.runs.upload import upload_data
from orchestrator.nodes.archive import outside_file
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Progress
from orchestrator.specs.errors import ConfigError, OrchError


def send_data(artifact: Artifact, folder: Path, missing: Sequence[ProjectDir], notify: Notify) -> None:
    """Copy data, or to each node its part. Raises the first error, which names the others; ConfigError, with nothing
    left on the nodes: the folder has changed since its digest was taken."""
    known = _sums_as_read(artifact, folder)

    def send(source: Path, sums: Mapping[str, FileSums], *to: ProjectDir) -> Sequence[Outcome[Destination, Delivered]]:
        def upload(target: Destination) -> None:
            unchanged = partial(_sums_as_read, artifact, folder)
            upload_data(target.node, source, target.folder, run_id=artifact.run_id, check=unchanged)

        targets = [Destination(node=target.node, folder=artifact.place(target)) for target in to]
        return send_files(source, sums, targets, notify, upload=upload)

    def send_part(target: ProjectDir) -> Outcome[Destination, Delivered]:
        with data_for(artifact, target, folder, known) as (source, sums):
            return send(source, sums, target)[0]

    try:
        if artifact.parts:
            outcomes = results_of(fan_out(missing, send_part, timeout_s=WITHOUT_END_S))
        else:
            outcomes = list(send(folder, known, *missing))
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
    except OrchError:
        _must_be_unchanged(artifact, folder, missing)
        raise


def send_files(
    source: Path,
    sums: Mapping[str, FileSums],
    targets: Sequence[Destination],
    notify: Notify,
    *,
    upload: Callable[[Destination], object],
    only: Collection[str] = (),
) -> Sequence[Outcome[Destination, Delivered]]:
    """Copy a folder with these sums, or `only` these files of it, to the folder of each target; `upload` copies it to
    one of them."""
    content = folder_to_send(source, {name: one.sha256 for name, one in sums.items()}, only)

    def directly(target: Destination) -> Delivered:
        upload(target)
        return Delivered(folder=target.folder, came=content.size, fed=content.size)

    if content.size < RELAYED_FROM:
        return fan_out(targets, directly, timeout_s=TRANSFER_TIMEOUT_S)
    return send_folder(content, targets, notify, otherwise=directly)


@contextmanager
def data_for(
    artifact: Artifact, target: ProjectDir, folder: Path, known: Mapping[str, FileSums]
) -> Iterator[tuple[Path, Mapping[str, FileSums]]]:
    """A folder with what the node has of the data, all or its part, and the sums of its files. `known`: those of the
    whole folder."""
    if not artifact.parts:
        yield folder, known
        return
    with part_of_data(folder, artifact.parts.index(target.node.name), len(artifact.parts)) as part:
        own = {name: known[name] for name in names_in(part) if name in known and name != MANIFEST}
        yield part, {name: own.get(name) or sums_of(part / name) for name in names_in(part)}


def _sums_as_read(artifact: Artifact, folder: Path) -> Mapping[str, FileSums]:
    """Return the sums of each file. ConfigError: the folder has changed since its digest was taken."""
    sums = SumsReader().of_files(folder, names_in(folder))
    if digest_of({name: one.sha256 for name, one in sums.items()}) != artifact.digest:
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


def folder_to_send(folder: Path, sums: Mapping[str, str], only: Collection[str] = ()) -> FolderToSend:
    """Everything in the folder, with the SHA-256 of each file; or `only` these files. Links as `outside_file` says."""
    links, folders, files = dict[str, str](), list[str](), sorted(only)
    for path in sorted(folder.rglob("*")) if not only else ():
        name = str(path.relative_to(folder))
        if path.is_symlink() and not outside_file(path, folder):
            links[name] = str(path.readlink())
        elif path.is_file():
            files.append(name)
        elif path.is_dir() and not any(path.iterdir()):
            folders.append(name)

    def read(file: FileToSend, offset: int) -> Iterator[bytes]:
        with (folder / file.name).open("rb") as content:
            content.seek(offset)
            while chunk := content.read(CHUNK):
                yield chunk

    return FolderToSend(
        what="data",
        files=[_file(folder, name, sums[name]) for name in files],
        read=read,
        links=links,
        folders=folders,
    )


@contextmanager
def part_of_data(folder: Path, number: int, parts: int) -> Iterator[Path]:
    """A temporary folder with the manifest of a part, and links to its files."""
    manifest = divide(json.loads((folder / MANIFEST).read_text("utf-8")), parts)[number]
    with TemporaryDirectory(prefix="orch-part-") as name:
        part = Path(name)
        for file in files_of(manifest):
            (part / file).symlink_to((folder / file).resolve())
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False))
        yield part


def _file(folder: Path, name: str, sha256: str) -> FileToSend:
    facts = (folder / name).stat()
    return FileToSend(name=name, size=facts.st_size, sha256=sha256, mode=facts.st_mode & 0o777)
