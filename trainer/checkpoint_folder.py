"""Checkpoints on the disk, as contract.checkpoint describes them.

A checkpoint is there whole or not at all, and it is believed only while its hashes hold: a flipped bit loads
without complaint otherwise. Nothing here needs torch, so that `verify` answers at once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from contract.checkpoint import (
    BEST,
    MANIFEST,
    MANIFEST_LIMIT,
    STATE,
    CheckpointFile,
    CheckpointManifest,
    StartPoint,
    decode_best,
    decode_manifest,
    encode_best,
    encode_manifest,
    folder_name,
    step_of,
)
from trainer.data.files import exchange, no_room, sha256, sync_folder, write_atomic
from trainer.errors import ConfigurationError, TrainerError

_SCRATCH = ".tmp-"
_OLD = f"{_SCRATCH}old-"
"""Prefix of the name of a checkpoint that is being replaced: it is whole, and counts again if the replacement is cut
short."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    path: Path
    problem: str = ""
    """Reason why it must not be loaded; empty for a sound one."""
    manifest: CheckpointManifest
    sha256: str = ""
    """Hash of the manifest; empty where it could not be read."""

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def state_file(self) -> Path:
        return self.path / STATE

    @property
    def entry(self) -> Path:
        """Path that a user's script loads."""
        return self.path / self.manifest.entry


def examine(folder: Path) -> Checkpoint:
    """Read the manifest and compare every file's length and hash with it."""
    found = _read_manifest(folder)
    if found.problem:
        return found
    try:
        problem = next(filter(None, (_problem(folder / listed.name, listed) for listed in found.manifest.files)), "")
    except OSError as error:
        problem = f"{folder.name} cannot be read: {error}"
    return replace(found, problem=problem)


def _read_manifest(folder: Path) -> Checkpoint:
    """The checkpoint as its manifest describes it; its files are not read."""
    step, path = step_of(folder.name), folder / MANIFEST
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ValueError(f"{MANIFEST} is not a regular file")
        with path.open("rb") as file:
            content = file.read(MANIFEST_LIMIT + 1)
        manifest = decode_manifest(content, step=step)
        return Checkpoint(path=folder, manifest=manifest, sha256=hashlib.sha256(content).hexdigest())
    except FileNotFoundError:
        problem = f"{MANIFEST} is missing"
    except OSError as error:
        problem = f"{MANIFEST} cannot be read: {error}"
    except ValueError as error:
        problem = str(error)
    return Checkpoint(path=folder, problem=problem, manifest=CheckpointManifest(step=-1 if step is None else step))


def survey(root: Path) -> list[Checkpoint]:
    """All checkpoints under `root`, each examined, newest first."""
    return [examine(folder) for folder in _folders(root)]


def to_resume(
    root: Path, start: StartPoint | None, attempt: int, say: Callable[[str], None], *, set_later_aside: bool = True
) -> Checkpoint | None:
    """The checkpoint that this attempt continues from; None: it begins at step 0.

    That is the newest intact one that the attempt itself has written, as in a container that was started again,
    otherwise the one of `start`, whose manifest has that hash: a folder does not count because its step is the highest.
    Later ones of other attempts are set aside, as they would be copied and continued from later; `start` None: the
    newest intact one. ConfigurationError: the one of `start` is not there, or is another one.
    """
    adopt(root)
    if start is None:
        return newest_sound(root, say)
    folders = _folders(root)
    own = [folder for folder in folders if _read_manifest(folder).manifest.attempt == attempt]
    found = None
    for checkpoint in map(examine, own):
        if not checkpoint.problem:
            found = checkpoint
            break
        say(f"checkpoint not used: {checkpoint.path}: {checkpoint.problem}")
    if found is None and start.sha256:
        found = _exactly(root, start)
    if set_later_aside:
        step = found.step if found else 0
        later = [folder for folder in folders if _step(folder) > step and folder not in own]
        if aside := set_aside(later):
            say(f"continuing from step {step}: later checkpoints of other attempts are now in {aside}")
    return found


def _exactly(root: Path, start: StartPoint) -> Checkpoint:
    """The checkpoint of this step and hash. ConfigurationError: it is not there, or is another one."""
    found = examine(root / folder_name(start.step))
    problem = found.problem
    if found.sha256 and found.sha256 != start.sha256:
        problem = f"its {MANIFEST} is not the one that was recorded (sha256 {found.sha256[:8]}, not {start.sha256[:8]})"
    if problem:
        raise ConfigurationError(
            f"{found.path}: {problem}: this attempt was to continue from that checkpoint; nothing was changed, and"
            " `orch resume` looks for an intact copy on all nodes"
        )
    return found


def adopt(root: Path) -> None:
    """Finish a replacement that a kill has cut short between its two renames: see `publish`. Not to be called while
    another process may be publishing."""
    for old in root.glob(f"{_OLD}*"):
        target = root / old.name.removeprefix(_OLD)
        if step_of(target.name) is None or target.exists():
            continue
        new = root / f"{_SCRATCH}{target.name}"
        written = examine(new)
        (new if not written.problem and written.step == _step(target) else old).rename(target)
        sync_folder(root)


def newest_sound(root: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest that can be trusted; damaged newer ones are named. None if there is none at all.

    Older ones are not read: hashing gigabytes that will not be loaded would delay a restart.
    """
    damaged = []
    for folder in _folders(root):
        checkpoint = examine(folder)
        if not checkpoint.problem:
            return checkpoint
        damaged.append(f"{folder}: {checkpoint.problem}")
        say(f"checkpoint not used: {damaged[-1]}")
    if damaged:
        raise ConfigurationError(
            "no sound checkpoint is left:\n  " + "\n  ".join(damaged)
            + "\nthe files stay as they are; --from-scratch sets them aside and starts from the beginning"
        )  # fmt: skip
    return None


def locate(path: Path, say: Callable[[str], None]) -> Checkpoint:
    """The checkpoint that a user means: a state file, a step's folder, a folder of steps, a run's folder, its
    best.json."""
    folder = path.parent if path.name == STATE else path
    if path.name == BEST:
        if not (best := _best(path.parent)):
            raise ConfigurationError(f"{path} names no checkpoint of this run")
        folder = path.parent / "checkpoints" / best
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if step_of(folder.name) is not None or (folder / MANIFEST).exists():
        checkpoint = examine(folder)
        if checkpoint.problem:
            raise ConfigurationError(f"{checkpoint.path}: {checkpoint.problem}")
        return checkpoint
    newest = newest_sound(folder, say)
    if newest is None:
        raise ConfigurationError(f"{path}: no checkpoint there (expected step-NNNNNNNN/{MANIFEST})")
    return newest


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Rule for the checkpoints that stay when a new one is there: the newest `count`, and beside them none older than
    `hours`, save the best."""

    count: int = 3
    hours: float = 0.0


def write(
    root: Path,
    manifest: CheckpointManifest,
    write_state: Callable[[BinaryIO], None] | None,
    attachments: Mapping[str, Path],
) -> Path:
    """A folder beside the checkpoints with all that one has, on the disk: for `publish`. `manifest` is without files.
    `write_state`: None for a user's script, whose files are all attachments.

    TrainerError: it could not be written. Nothing is left of it then, and earlier checkpoints are as they were.
    """
    scratch = root / f"{_SCRATCH}{folder_name(manifest.step)}"
    try:
        if not root.is_dir():
            root.mkdir(parents=True)
            sync_folder(root.parent)  # otherwise a power cut after the first checkpoint could take the folder with it
        adopt(root)
        for leftover in root.glob(f"{_SCRATCH}*"):  # of a process that died while saving: one rank alone writes here
            shutil.rmtree(leftover)
        scratch.mkdir()
        if write_state is not None:
            with (scratch / STATE).open("wb") as file:
                write_state(file)
        for name, source in attachments.items():
            shutil.copyfile(source, scratch / name)
        files = tuple(
            CheckpointFile(name=path.name, size=path.stat().st_size, sha256=sha256(path)) for path in scratch.iterdir()
        )
        (scratch / MANIFEST).write_text(encode_manifest(replace(manifest, files=files)), "utf-8")
        for path in scratch.iterdir():
            _sync(path)
        sync_folder(scratch)
    except (OSError, RuntimeError) as error:  # torch says RuntimeError where its writer meets an OSError
        shutil.rmtree(scratch, ignore_errors=True)
        raise unwritten(f"the checkpoint of step {manifest.step}", root, error) from error
    return scratch


def unwritten(what: str, folder: Path, error: Exception) -> TrainerError:
    """Error of a failed write: its cause, and the checkpoint from which the run can continue."""
    full = no_room(error)
    why = f"{full} for {what} in {folder}" if full else f"{what} cannot be written to {folder}: {error}"
    hint = f"; the checkpoint of step {earlier[0]} is kept" if (earlier := steps(folder)) else ""
    return TrainerError(
        f"{why}{hint}: {'free some space' if full else 'see to it'}, and run the same command again to continue"
    )


def publish(scratch: Path, exchange: Callable[[Path, Path], None] = exchange) -> Checkpoint:
    """Make a checkpoint of what `write` has left, and look at it again.

    One of this step may be there: damaged and so not used, or saved twice. The two names are exchanged in one step.
    Where the file system cannot, as NFS, they are renamed one after the other, and `adopt` finishes that after a kill.
    """
    root, target = scratch.parent, scratch.with_name(scratch.name.removeprefix(_SCRATCH))
    old = root / f"{_OLD}{target.name}"
    if not target.exists():
        scratch.rename(target)
    else:
        try:
            exchange(scratch, target)
        except OSError:
            _rename_both(target, old, scratch)
    sync_folder(root)
    _discard(old)
    _discard(scratch)  # the replaced one, if the names were exchanged
    return examine(target)


def _rename_both(target: Path, old: Path, scratch: Path) -> None:
    """Rename `target` to `old` and `scratch` to `target`; once more if a look from the controller came in between and
    gave `old` its name back, as after a kill."""
    for last in (False, False, True):
        _discard(old)
        target.rename(old)
        try:
            scratch.rename(target)
            return
        except OSError as error:
            if last or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def prune(root: Path, step: int, keep: Keep, clock: Callable[[], float] = time.time) -> None:
    """Remove what `keep` does not ask for, now that `step` is there. What stands beyond it is damaged, or the
    run would have resumed from it: it counts for nothing and is left to be looked at."""
    best = _best(root.parent)
    for folder in [folder for folder in _folders(root) if _step(folder) <= step][keep.count :]:
        if folder.name != best and clock() - folder.stat().st_mtime >= keep.hours * 3600:
            _discard(folder)


def steps(root: Path) -> list[int]:
    """Steps of all checkpoints that are there, sound or not."""
    return [_step(folder) for folder in _folders(root)]


def mark_best(root: Path, step: int) -> None:
    """RUN/best.json names this step from now on, which keeps its checkpoint."""
    write_atomic(root.parent / BEST, encode_best(step).encode())


def _best(run: Path) -> str:
    """The name of the best checkpoint's folder, empty if there is none."""
    try:
        return decode_best((run / BEST).read_bytes())
    except OSError:
        return ""


def set_aside(folders: list[Path]) -> Path | None:
    """Move checkpoints out of the way of a new beginning; nothing is deleted."""
    if not folders:
        return None
    root = folders[0].parent
    number = 1
    while (aside := root.with_name(f"{root.name}.set-aside-{number}")).exists():
        number += 1
    aside.mkdir()
    for folder in folders:
        folder.rename(aside / folder.name)
    return aside


def _folders(root: Path) -> list[Path]:
    """Newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if step_of(path.name) is not None and path.is_dir()]
    return sorted(found, key=_step, reverse=True)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _discard(folder: Path) -> None:
    """Remove a folder, if it is there. Renamed first: half a checkpoint would be taken for a damaged one."""
    gone = folder.with_name(f"{_SCRATCH}gone-{folder.name.removeprefix(_SCRATCH)}")
    if gone.exists():
        shutil.rmtree(gone)
    if folder.exists():
        shutil.rmtree(folder.rename(gone))


def _problem(path: Path, listed: CheckpointFile) -> str:
    if path.exists() and (path.is_symlink() or not path.is_file()):
        return f"{path.name} is not a regular file"
    return listed.wrong_size(path.stat().st_size if path.exists() else None) or listed.wrong_content(sha256(path))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
