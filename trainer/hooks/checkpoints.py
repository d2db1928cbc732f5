"""Files of the user's own script as checkpoints of the run: verified, copied to other nodes, found at a resume."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from contract.checkpoint import (
    FILES_LIMIT,
    FOLDER,
    MANIFEST,
    CheckpointManifest,
    decode_manifest,
    folder_name,
    is_file_name,
)
from contract.events import CheckpointWritten, TrainingResumed
from trainer import checkpoint_folder
from trainer.checkpoint_folder import Checkpoint, Keep
from trainer.config import RankInfo
from trainer.engine.group import Group
from trainer.engine.process_group import gathered
from trainer.engine.reporting.events import Events
from trainer.errors import ConfigurationError

PIECE = 1 << 24
"""Bytes of a file that are sent at once."""
_SCRATCH = ".received-"


def register(path: Path, environ: Mapping[str, str], step: int | None, keep: int) -> None:
    """Make a checkpoint of a file, or of a folder's files, on rank 0; on other ranks nothing. `step`: None is the one
    after the newest checkpoint's.

    ValueError: a name or a number of files that a checkpoint cannot have. TrainerError: it could not be written.
    """
    place = RankInfo.from_environ(environ)
    if place.rank:
        return
    began = time.perf_counter()
    root = Path(place.run_dir) / "checkpoints"
    if step is None:
        step = max(checkpoint_folder.steps(root), default=0) + 1
    files = _files(path)
    entry = FOLDER if path.is_dir() else next(iter(files))
    manifest = CheckpointManifest(
        step=step, run_id=place.run_id, torch=torch.__version__, entry=entry, attempt=place.attempt
    )
    saved = checkpoint_folder.publish(checkpoint_folder.write(root, manifest, None, files))
    events = Events(place)
    seconds = round(time.perf_counter() - began, 4)
    events.emit(
        CheckpointWritten(
            step=step,
            path=str(saved.path),
            sha256=saved.sha256,
            verified=not saved.problem,
            stopped_s=seconds,
            seconds=seconds,
        )
    )
    if saved.problem:
        events.warn(f"checkpoint {saved.path} is damaged: {saved.problem}")
    else:
        checkpoint_folder.prune(root, step, Keep(count=keep))


def newest(environ: Mapping[str, str]) -> Path | None:
    """Path of the checkpoint that the run continues from, on every node: rank 0's files are sent to the nodes that do
    not have them. To be called by all ranks.

    ConfigurationError: there are checkpoints, and all of them are damaged; or the recorded one is not there.
    """
    place = RankInfo.from_environ(environ)
    root = Path(place.run_dir) / "checkpoints"
    events = Events(place)
    with gathered(place) as group:
        found, refusal = None, None
        if group.place.rank == 0:
            try:
                found = checkpoint_folder.to_resume(root, place.resume_from, place.attempt, events.say)
            except ConfigurationError as error:
                refusal = error
        own = {"refused": refusal is not None, "step": found.step if found else None}
        received = json.loads(group.broadcast_text(json.dumps(own)))
        if refusal:
            raise refusal
        if received["refused"]:
            raise ConfigurationError("rank 0 found no intact checkpoint to resume from: see its message")
        if received["step"] is None:
            return None
        found = _everywhere(root, found, received["step"], group)
    if place.rank == 0:
        events.emit(TrainingResumed(step=found.step, checkpoint=str(found.path)))
        events.say(f"resuming at step {found.step} from {found.path}")
    return found.entry


def _files(path: Path) -> dict[str, Path]:
    """Files of a checkpoint, by the name that they have in it."""
    if path.is_file():
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", path.name).lstrip(".-")[-100:]  # Lightning's have a `=`
        return {plain if is_file_name(plain) else "checkpoint": path}
    files = {each.name: each for each in sorted(path.iterdir())}
    if not files or len(files) > FILES_LIMIT:
        raise ValueError(f"hooks.checkpoint: {path} has {len(files)} files, not 1 to {FILES_LIMIT}")
    for name, each in files.items():
        if not each.is_file():
            raise ValueError(
                f"hooks.checkpoint: {each} is not a file; a checkpoint has no subfolders: write them as one file, for"
                f" example with shutil.make_archive, and register that"
            )
        if not is_file_name(name):
            raise ValueError(
                f"hooks.checkpoint: {each}: a name in a checkpoint has letters, digits, `.`, `_` and `-`, begins with"
                f" none of `.` and `-`, and is not {MANIFEST}"
            )
    return files


def _everywhere(root: Path, found: Checkpoint | None, step: int, group: Group) -> Checkpoint:
    """The checkpoint of `step` on every node; `found`: rank 0's."""
    folder = root / folder_name(step)
    manifest = group.broadcast_text((folder / MANIFEST).read_text("utf-8") if found else "")
    held = found or checkpoint_folder.examine(folder)
    differs = bool(held.problem) or (folder / MANIFEST).read_text("utf-8") != manifest
    place = group.place
    # One rank of a node receives for all of it. Nodes may share a disk, or have a copy from the orchestrator.
    missing = group.all_gather_scalar(float(differs))
    if any(missing):
        _send(root, folder, manifest, group, receives=differs and place.local_rank == 0)
        group.barrier()
        held = checkpoint_folder.examine(folder)
        if any(group.all_gather_scalar(float(bool(held.problem)))):
            raise ConfigurationError(
                f"{folder} did not arrive on every node{f': {held.problem}' if held.problem else ''}"
            )
    return held


def _send(root: Path, folder: Path, manifest: str, group: Group, *, receives: bool) -> None:
    """Every file of rank 0's checkpoint, to the ranks that receive."""
    scratch = root / f"{_SCRATCH}{folder.name}"
    if receives:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        (scratch / MANIFEST).write_text(manifest, "utf-8")
    for listed in decode_manifest(manifest).files:
        with ExitStack() as opened:
            source = opened.enter_context((folder / listed.name).open("rb")) if group.place.rank == 0 else None
            target = opened.enter_context((scratch / listed.name).open("wb")) if receives else None
            for at in range(0, listed.size, PIECE):
                size = min(PIECE, listed.size - at)
                content = bytearray(source.read(size) if source else size)
                piece = torch.frombuffer(content, dtype=torch.uint8)
                group.broadcast(piece)
                if target:
                    target.write(content)
    if receives:
        shutil.rmtree(folder, ignore_errors=True)  # it is damaged, or another run's of this step
        scratch.rename(folder)
        checkpoint_folder.prune(root, decode_manifest(manifest).step, Keep(count=1))
