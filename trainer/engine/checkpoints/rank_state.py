"""State that each rank alone has, beside the checkpoints: RUN/ranks/step-00000300/rank-3-of-5.pt, on its own node.

It is as large as the model, and a slow LAN is the last place to send it to: each rank writes its own before rank 0's
checkpoint is one, and reads it again from there.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import torch

from trainer.checkpoint_folder import unwritten
from trainer.data.files import sync_folder
from trainer.engine.checkpoints.state_file import must_fit_in, read_saved
from trainer.engine.group import Group
from trainer.engine.sync.strategy import RankState, Sync
from trainer.errors import ConfigurationError, TrainerError

FOLDER = "ranks"
_NAME = re.compile(r"rank-(\d+)-of-(\d+)\.pt")
Say = Callable[[str], None]


def save(run_dir: Path, step: int, mine: RankState, layout: str) -> None:
    """This rank's file for `step`, whole or not at all. TrainerError: it could not be written."""
    folder = _folder(run_dir, step)
    path = folder / f"rank-{mine.rank}-of-{mine.world_size}.pt"
    scratch = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            torch.save({"layout": layout, "state": dict(mine.state)}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        for _, then, other in _files(folder):
            if then != mine.world_size:
                other.unlink(missing_ok=True)  # of an earlier attempt, whose steps from here on are void
        sync_folder(folder)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            scratch.unlink()
        raise unwritten(f"what rank {mine.rank} alone knows at step {step}", folder, error) from error


def prune(run_dir: Path, steps: Collection[int], until: int) -> None:
    """Remove the files of all other steps up to `until`: a rank of this node may be writing those of a later one."""
    stay = {_folder(run_dir, step).name for step in steps}
    for folder in (run_dir / FOLDER).glob("step-*"):
        if folder.name <= _folder(run_dir, until).name and folder.name not in stay:
            shutil.rmtree(folder, ignore_errors=True)  # ranks of one node share the folder


def restore(run_dir: Path, step: int, sync: Sync, group: Group, warn: Say) -> None:
    """Bring `sync` to where it was at `step`, from what the ranks find on their nodes."""
    if not sync.state():
        return
    place = group.place
    found = {(rank, then): path for rank, then, path in _files(_folder(run_dir, step))}
    taken = found.get((place.rank, place.world_size))
    saved = _read(taken, place.rank, place.world_size, sync, warn) if taken else None
    everyone_has_its_own = all(group.all_gather_scalar(float(saved is not None)))
    if everyone_has_its_own and taken and saved:
        with must_fit_in(taken):
            sync.restore([saved], exact=True)
        return
    then = int(max(group.all_gather_scalar(float(max((then for _, then in found), default=0)))))
    mine, paths = [], list[Path]()
    for rank in range(then):
        holders = [holder for holder, has in enumerate(group.all_gather_scalar(float((rank, then) in found))) if has]
        # Its own file where it has one; else the first rank that sees it: a folder may be shared.
        is_mine = holders and place.rank == (rank if rank in holders else holders[0])
        if is_mine and (one := _read(found[rank, then], rank, then, sync, warn)):
            mine.append(one)
            paths.append(found[rank, then])
    with must_fit_in(paths[0] if len(paths) == 1 else _folder(run_dir, step)):
        sync.restore(mine, exact=False)
    sync.agree()
    total = int(sum(group.all_gather_scalar(float(len(mine)))))
    if total < max(then, 1) and place.rank == 0:
        warn(
            f"of what {then or place.world_size} ranks had not yet sent at step {step}, the files of {total} are there:"
            " the others' is lost, at most one step's worth of learning"
        )


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    for path in sorted(folder.glob("rank-*.pt")):
        if match := _NAME.fullmatch(path.name):
            yield int(match.group(1)), int(match.group(2)), path


def _read(path: Path, rank: int, world_size: int, sync: Sync, warn: Say) -> RankState | None:
    try:
        with must_fit_in(path), zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():  # torch loads a file with a flipped bit without an error
                raise ValueError(f"{damaged} has changed since it was written")
        saved = read_saved(path, layout=str, state=dict)
        with must_fit_in(path):
            if saved["layout"] != sync.layout:
                raise ValueError(f"it was kept for {saved['layout']}, and this run continues with {sync.layout}")
            if not all(isinstance(one, torch.Tensor) for one in saved["state"].values()):
                raise TypeError("its state has no tensors alone")
    except (ConfigurationError, TrainerError) as error:
        warn(f"{path.name} is not used: {error}")
        return None
    return RankState(rank=rank, world_size=world_size, state=saved["state"])


def _folder(run_dir: Path, step: int) -> Path:
    return run_dir / FOLDER / f"step-{step:08d}"
