"""Checkpoints on the disk: RUN/checkpoints/step-00000300/{state.pt, manifest.json, attachments}.

A checkpoint is there whole or not at all, and it is believed only while its hashes hold: a flipped bit loads
without complaint otherwise. Nothing here needs torch, so that `verify` answers at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.files import sha256, sync_folder, write_atomic
from trainer.errors import ConfigurationError

STATE = "state.pt"
MANIFEST = "manifest.json"
BEST = "best.json"
"""Beside the checkpoints: which of them has the best evaluation."""
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    path: Path
    step: int
    problem: str = ""
    """Why it must not be loaded; empty for a sound one."""
    manifest: Mapping[str, Any]

    @property
    def state_file(self) -> Path:
        return self.path / STATE


def examine(folder: Path) -> Checkpoint:
    """Read the manifest and compare every file's length and hash with it."""
    found = _NAME.fullmatch(folder.name)
    step = int(found.group(1)) if found else -1
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        problem = next((p for name, entry in manifest["files"].items() if (p := _differs(folder / name, entry))), "")
        if not problem and found and manifest["step"] != step:
            problem = f"its manifest speaks of step {manifest['step']}"
        return Checkpoint(path=folder, step=int(manifest["step"]), problem=problem, manifest=manifest)
    except FileNotFoundError:
        problem = f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{MANIFEST} cannot be read ({type(error).__name__})"
    return Checkpoint(path=folder, step=step, problem=problem, manifest={})


def survey(root: Path) -> list[Checkpoint]:
    """All checkpoints under `root`, each examined, newest first."""
    return [examine(folder) for folder in _folders(root)]


def newest_sound(root: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest that can be trusted; damaged newer ones are named. None if there is none at all.

    Older ones are not read: hashing gigabytes that nobody will load costs a restart its time.
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
            + "\nthe files stay as they are; --from-scratch sets them aside and starts anew"
        )  # fmt: skip
    return None


def locate(path: Path, say: Callable[[str], None]) -> Checkpoint:
    """The checkpoint that a user means: a state file, a step's folder, a folder of steps, a run's folder, its
    best.json."""
    folder = path.parent if path.name == STATE else path
    if path.name == BEST:
        folder = path.parent / "checkpoints" / _best(path.parent)
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if _NAME.fullmatch(folder.name) or (folder / MANIFEST).exists():
        checkpoint = examine(folder)
        if checkpoint.problem:
            raise ConfigurationError(f"{checkpoint.path}: {checkpoint.problem}")
        return checkpoint
    newest = newest_sound(folder, say)
    if newest is None:
        raise ConfigurationError(f"{path}: no checkpoint there (expected step-NNNNNNNN/{MANIFEST})")
    return newest


def save(
    root: Path,
    about: Mapping[str, Any],
    write_state: Callable[[Path], None],
    attachments: Mapping[str, Path],
    keep: int,
) -> Checkpoint:
    """Write beside, sync, rename, look again; only then remove what is older than the newest `keep`."""
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(".tmp-*"):  # of a process that died while saving: one rank alone writes here
        shutil.rmtree(leftover)
    target = root / _folder_name(about["step"])
    scratch = root / f".tmp-{target.name}"
    scratch.mkdir()
    try:
        write_state(scratch / STATE)
        for name, source in attachments.items():
            shutil.copyfile(source, scratch / name)
        files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in scratch.iterdir()}
        (scratch / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=2), "utf-8")
        for path in scratch.iterdir():
            _sync(path)
        sync_folder(scratch)
        if target.exists():  # a damaged one that was not used, or the same step saved twice
            target.rename(root / f".tmp-old-{target.name}")
        scratch.rename(target)
        sync_folder(root)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(root / f".tmp-old-{target.name}", ignore_errors=True)
    saved = examine(target)
    if not saved.problem:
        best = _best(root.parent)
        for folder in _folders(root)[keep:]:
            if folder.name != best:
                shutil.rmtree(folder)
    return saved


def mark_best(root: Path, step: int) -> None:
    """RUN/best.json names this step from now on, which keeps its checkpoint."""
    write_atomic(root.parent / BEST, json.dumps({"step": step, "checkpoint": _folder_name(step)}).encode())


def _best(run: Path) -> str:
    """The name of the best checkpoint's folder, empty if there is none."""
    try:
        return str(json.loads((run / BEST).read_text("utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _folder_name(step: int) -> str:
    return f"step-{step:08d}"


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
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def _differs(path: Path, entry: Mapping[str, Any]) -> str:
    if not path.exists():
        return f"{path.name} is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"{path.name} has {path.stat().st_size} bytes instead of {entry['bytes']}"
    return "" if sha256(path) == entry["sha256"] else f"{path.name} has changed since it was written (sha256 differs)"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
