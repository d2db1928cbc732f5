"""Checkpoints on the disk: whole or not there, believed only while their hashes hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.engine import checkpoint
from trainer.errors import ConfigurationError


def save(root: Path, step: int, *, keep: int = 3, content: bytes = b"weights" * 100) -> checkpoint.Checkpoint:
    root.parent.mkdir(exist_ok=True)
    extra = root.parent / "tokenizer.json"
    extra.write_text("{}")
    return checkpoint.save(
        root, {"step": step, "run_id": "r1"}, lambda path: path.write_bytes(content) and None,
        {"tokenizer.json": extra}, keep,
    )  # fmt: skip


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_saved_is_verified_and_only_the_newest_stay(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (10, 20, 30, 40):
        assert not save(root, step, keep=2).problem
    assert [path.name for path in sorted(root.iterdir())] == ["step-00000030", "step-00000040"]
    assert (root / "step-00000040" / "tokenizer.json").exists()


def test_a_failed_save_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)

    def disk_full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.save(root, {"step": 20}, disk_full, {}, 3)
    assert [path.name for path in root.iterdir()] == ["step-00000010"]


def test_leftovers_of_a_killed_save_are_no_checkpoint_and_go(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    (root / ".tmp-step-00000005").mkdir(parents=True)
    assert checkpoint.survey(root) == []
    save(root, 10)
    assert [path.name for path in root.iterdir()] == ["step-00000010"]


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
    said: list[str] = []
    found = checkpoint.newest_sound(root, said.append)
    assert found is not None
    assert found.step == 10
    assert len(said) == 1
    assert "step-00000020" in said[0]


def test_a_folder_renamed_to_another_step_is_not_believed(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 10).path
    assert checkpoint.examine(path.rename(path.with_name("step-00000099"))).problem


def test_all_bad_is_an_error_and_none_is_not(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert checkpoint.newest_sound(root, print) is None
    flip_a_bit(save(root, 10).path / "state.pt")
    with pytest.raises(ConfigurationError, match="--from-scratch"):
        checkpoint.newest_sound(root, lambda line: None)


def test_saving_over_a_damaged_step_replaces_it(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    flip_a_bit(save(root, 10).path / "state.pt")
    assert not save(root, 10).problem
    assert [path.name for path in root.iterdir()] == ["step-00000010"]


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for number in (1, 2):
        aside = checkpoint.set_aside([save(root, 10).path])
        assert aside == tmp_path / f"checkpoints.set-aside-{number}"
        assert not checkpoint.examine(aside / "step-00000010").problem
    assert checkpoint.set_aside([]) is None


@pytest.mark.parametrize("meant", ["run", "run/checkpoints", "run/checkpoints/step-00000020/state.pt"])
def test_ways_to_name_a_checkpoint(tmp_path: Path, meant: str) -> None:
    for step in (10, 20):
        save(tmp_path / "run/checkpoints", step)
    assert checkpoint.locate(tmp_path / meant, print).step == 20
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        checkpoint.locate(tmp_path / "nowhere", print)


def test_verify_command(call, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert call("verify", str(root)).code == 3
    save(root, 10)
    flip_a_bit(save(root, 20).path / "state.pt")
    said = call("verify", str(root))
    assert said.code == 0
    assert "newest verified step: 10" in said.out
    assert "step 20: state.pt has changed" in said.out
    told = json.loads(call("verify", str(tmp_path), "--json").out)
    assert told["newest_verified_step"] == 10
    assert [(c["step"], c["verified"]) for c in told["checkpoints"]] == [(20, False), (10, True)]
    flip_a_bit(root / "step-00000010" / "state.pt")
    assert call("verify", str(root)).code == 3
    assert call("verify", str(root), "--json").code == 3
