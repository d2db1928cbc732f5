"""Checkpoints on the disk: whole or not there, believed only while their hashes hold."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from contract.checkpoint import CheckpointManifest, StartPoint, decode_start, encode_start
from trainer import checkpoint_folder
from trainer.checkpoint_folder import Keep
from trainer.errors import ConfigurationError, TrainerError


def save(
    root: Path, step: int, *, keep: int = 3, hours: float = 0, now: float = 0, attempt: int = 0
) -> checkpoint_folder.Checkpoint:
    root.parent.mkdir(exist_ok=True)
    extra = root.parent / "tokenizer.json"
    extra.write_text("{}")

    def weights(file: BinaryIO) -> None:
        file.write(b"weights" * 100)

    manifest = CheckpointManifest(step=step, run_id="r1", attempt=attempt)
    saved = checkpoint_folder.publish(checkpoint_folder.write(root, manifest, weights, {extra.name: extra}))
    os.utime(saved.path, (now, now))
    checkpoint_folder.prune(root, step, Keep(count=keep, hours=hours), clock=lambda: now)
    return saved


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_saved_is_verified_and_only_the_newest_stay(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (10, 20, 30, 40):
        assert not save(root, step, keep=2).problem
    assert names(root) == ["step-00000030", "step-00000040"]
    assert (root / "step-00000040" / "tokenizer.json").exists()


def test_beside_the_newest_those_of_the_last_hours_and_the_best_stay(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for number in range(1, 7):  # one every hour
        save(root, number, keep=1, hours=3, now=number * 3600)
        if number == 1:
            checkpoint_folder.mark_best(root, number)
    assert checkpoint_folder.steps(root) == [6, 5, 4, 1]
    save(root, 7, keep=3, hours=1, now=99 * 3600)  # none of them young any more: the count stays
    assert checkpoint_folder.steps(root) == [7, 6, 5, 1]


def test_what_has_just_been_written_stays_below_damaged_ones(tmp_path: Path) -> None:
    """A run that could not use step 30 and 40 resumes from 20, and is stopped at 25."""
    root = tmp_path / "checkpoints"
    for step in (20, 30, 40):
        flip_a_bit(save(root, step).path / "state.pt")
    save(root, 25, keep=1)
    found = checkpoint_folder.newest_sound(root, lambda line: None)
    assert found is not None
    assert found.step == 25


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device for the checkpoint of step 20"),
        (OSError(errno.EIO, "Input/output error"), "the checkpoint of step 20 cannot be written .*Input/output error"),
    ],
)
@pytest.mark.parametrize("behind_another", [False, True])
def test_a_failed_save_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, error: OSError, message: str, behind_another: bool
) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)

    def fails(file: BinaryIO) -> None:
        file.write(b"half")
        try:
            raise error
        finally:
            if behind_another:  # as torch's writer: what it says first is that its file ends in the wrong place
                raise RuntimeError(f"unexpected pos 704 vs 598 ({error.strerror})")

    with pytest.raises(TrainerError, match=f"{message}.*; the checkpoint of step 10 is kept"):
        checkpoint_folder.write(root, CheckpointManifest(step=20), fails, {})
    assert names(root) == ["step-00000010"]


def test_leftovers_of_a_killed_save_are_no_checkpoint_and_go(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    (root / ".tmp-step-00000005").mkdir(parents=True)
    assert checkpoint_folder.survey(root) == []
    save(root, 10)
    assert names(root) == ["step-00000010"]


@pytest.mark.parametrize("harm", ["flip", "truncate", "no manifest", "bad manifest", "missing file"])
def test_a_damaged_newest_is_named_and_the_one_before_used(tmp_path: Path, harm: str) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)
    newest = save(root, 20).path
    match harm:
        case "flip":
            flip_a_bit(newest / "state.pt")
        case "truncate":
            (newest / "state.pt").write_bytes(b"weights")
        case "no manifest":
            (newest / "manifest.json").unlink()
        case "bad manifest":
            (newest / "manifest.json").write_text("[1, 2")
        case "missing file":
            (newest / "tokenizer.json").unlink()
    messages: list[str] = []
    found = checkpoint_folder.newest_sound(root, messages.append)
    assert found is not None
    assert found.step == 10
    assert len(messages) == 1
    assert "step-00000020" in messages[0]


def test_a_folder_renamed_to_another_step_is_not_believed(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 10).path
    assert checkpoint_folder.examine(path.rename(path.with_name("step-00000099"))).problem


def test_all_bad_is_an_error_and_none_is_not(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert checkpoint_folder.newest_sound(root, print) is None
    flip_a_bit(save(root, 10).path / "state.pt")
    with pytest.raises(ConfigurationError, match="--from-scratch"):
        checkpoint_folder.newest_sound(root, lambda line: None)


def test_saving_over_a_damaged_step_replaces_it(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    flip_a_bit(save(root, 10).path / "state.pt")
    assert not save(root, 10).problem
    assert names(root) == ["step-00000010"]


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for number in (1, 2):
        aside = checkpoint_folder.set_aside([save(root, 10).path])
        assert aside == tmp_path / f"checkpoints.set-aside-{number}"
        assert not checkpoint_folder.examine(aside / "step-00000010").problem
    assert checkpoint_folder.set_aside([]) is None


@pytest.mark.parametrize("meant", ["run", "run/checkpoints", "run/checkpoints/step-00000020/state.pt"])
def test_ways_to_name_a_checkpoint(tmp_path: Path, meant: str) -> None:
    for step in (10, 20):
        save(tmp_path / "run/checkpoints", step)
    assert checkpoint_folder.locate(tmp_path / meant, print).step == 20
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        checkpoint_folder.locate(tmp_path / "nowhere", print)


def test_verify_command(call, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert call("verify", str(root)).code == 3
    save(root, 10)
    flip_a_bit(save(root, 20).path / "state.pt")
    message = call("verify", str(root))
    assert message.code == 0
    assert "newest verified step: 10" in message.out
    assert "step 20: state.pt has changed" in message.out
    data = json.loads(call("verify", str(tmp_path), "--json").out)
    assert data["newest_verified_step"] == 10
    assert [(c["step"], c["verified"]) for c in data["checkpoints"]] == [(20, False), (10, True)]
    flip_a_bit(root / "step-00000010" / "state.pt")
    assert call("verify", str(root)).code == 3
    assert call("verify", str(root), "--json").code == 3


@pytest.mark.parametrize("manner", ["exchange", "rename"])
def test_a_kill_at_any_line_of_a_replacement_leaves_a_checkpoint(tmp_path: Path, manner: str) -> None:
    """`rename`: on a file system without an exchange of names. Before: both copies there, none found, then deleted."""
    argv = [sys.executable, "-m", "tests.trainer.killed_publish", str(tmp_path), manner]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).parents[2])
    kills = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(kills) > 30
    assert {(one["step"], tuple(one["problems"]), tuple(one["left"])) for one in kills} == {
        (10, (), ("step-00000010",))
    }
    assert {one["size"] for one in kills} == {3, 300}  # the old one, and from some line on the new one


def test_a_look_that_gives_the_old_one_its_name_back_does_not_stop_a_replacement(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)
    looks: list[threading.Thread] = []

    def no_exchange(_first: Path, second: Path) -> None:
        looks.append(threading.Thread(target=give_back, args=(second,)))
        looks[-1].start()
        raise OSError(errno.EINVAL, "no exchange here")

    def give_back(target: Path) -> None:  # as the controller's script does, once, at a moment of chance
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                target.with_name(f".tmp-old-{target.name}").rename(target)
                return

    def state(file: BinaryIO) -> None:
        file.write(b"state")

    for _ in range(5):
        saved = checkpoint_folder.publish(
            checkpoint_folder.write(root, CheckpointManifest(step=10), state, {}), no_exchange
        )
        looks[-1].join()
        assert not saved.problem
        assert saved.state_file.read_bytes() == b"state"


OWN, OTHER = 4, 1
"""Attempts."""


@dataclass(frozen=True)
class Folders:
    """Checkpoints on rank 0's node: the attempt of each step."""

    attempts: dict[int, int]
    start: int | None
    """Step of the recorded checkpoint; 0: the attempt begins at step 0, None: nothing is recorded."""
    found: int | None
    aside: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "case",
    [
        Folders({300: OTHER, 600: OTHER}, 600, 600),
        Folders({300: OTHER, 600: OTHER}, 300, 300, (600,)),  # the user went back
        Folders({600: OTHER, 9999: OTHER}, 600, 600, (9999,)),  # no rank has reported it
        Folders({600: OTHER, 700: OWN}, 600, 700),  # the container was started again
        Folders({600: OTHER, 700: OWN, 9999: OTHER}, 600, 700, (9999,)),
        Folders({9999: OTHER}, 0, None, (9999,)),
        Folders({600: OTHER, 9999: OTHER}, None, 9999),  # by hand, or in a job
    ],
)
def test_an_attempt_continues_from_the_recorded_checkpoint(tmp_path: Path, case: Folders) -> None:
    root = tmp_path / "checkpoints"
    saved = {step: save(root, step, keep=9, attempt=attempt) for step, attempt in case.attempts.items()}
    start = None
    if case.start is not None:
        start = StartPoint(step=case.start, sha256=saved[case.start].sha256) if case.start else StartPoint()
        assert decode_start(encode_start(start)) == start
    messages: list[str] = []
    for _again in range(2):
        found = checkpoint_folder.to_resume(root, start, OWN, messages.append)
        assert (found and found.step) == case.found
    assert sorted(set(case.attempts) - set(checkpoint_folder.steps(root))) == list(case.aside)
    assert len(messages) == bool(case.aside)


def test_another_checkpoint_of_the_recorded_step_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    saved = save(root, 600)
    recorded = StartPoint(step=600, sha256="ab" * 32)
    with pytest.raises(ConfigurationError, match="not the one that was recorded"):
        checkpoint_folder.to_resume(root, recorded, OWN, print)
    with pytest.raises(ConfigurationError, match=r"manifest\.json is missing"):
        checkpoint_folder.to_resume(root, StartPoint(step=700, sha256="ab" * 32), OWN, print)
    flip_a_bit(saved.path / "state.pt")
    with pytest.raises(ConfigurationError, match=r"state\.pt has changed"):
        checkpoint_folder.to_resume(root, StartPoint(step=600, sha256=saved.sha256), OWN, print)
    assert checkpoint_folder.steps(root) == [600]  # nothing was moved
