"""The user's code folder: looked at before it is copied to all nodes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.specs.program import Program
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch


def _code(folder: str = "mine") -> Path:
    mine = Path(folder)
    (mine / "pkg").mkdir(parents=True)
    (mine / "train.py").write_text("print('hola')\n")
    (mine / "pkg/model.py").write_text("width = 3\n")
    return mine


def _with_script() -> Path:
    mine = _code()
    (mine / "run.sh").write_text("#!/bin/sh\ntorchrun train.py\n")
    return mine


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--workdir mine -- python trian.py", "no trian.py in mine; did you mean train.py?", "mine -- python train.py"),
        ("-- python train.py", "did you mean mine/train.py?", "orch launch -y --workdir mine -- python train.py"),
        ("--workdir mine -- python mine/train.py", "a path inside the code folder", "mine -- python train.py"),
        ("--workdir mine -- python -m pkg.modle", "in mine; did you mean pkg.model?", "python -m pkg.model"),
        ("--workdir mine -- nothing.py", "no nothing.py in mine", "orch launch -y --workdir FOLDER"),
        ("--workdir mine -- bash rum.sh", "no rum.sh in mine; did you mean run.sh?", "--workdir mine -- bash run.sh"),
        (
            "--env A=b --nodes 2 -- python train.py --lr 1",
            "did you mean mine/train.py?",
            "orch launch -y --env A=b --nodes 2 --workdir mine -- python train.py --lr 1",
        ),
        ("-- bash run.sh", "did you mean mine/run.sh?", "orch launch -y --workdir mine -- bash run.sh"),
    ],
)  # fmt: skip
def test_a_script_that_is_not_there_is_named_before_a_node_is_asked(
    orch: Orch, words: str, message: str, hint: str
) -> None:
    _with_script()
    ran = orch("launch", "-y", *words.split(), on=lan.Lan())
    assert ran.code == 3
    assert message in ran.err
    assert hint in ran.err.split("→")[1]


@pytest.mark.parametrize(
    ("ignored", "words", "message", "hint"),
    [
        ("run.sh\n", "sh run.sh", ".gitignore:1 leaves out run.sh", "echo '!/run.sh' >> mine/.orchignore"),
        ("train.py\n", "train.py", ".gitignore:1 leaves out train.py", "echo '!/train.py' >> mine/.orchignore"),
        ("# a\npkg/\n", "-m pkg.model", ".gitignore:2 leaves out pkg", "echo '!/pkg' >> mine/.orchignore"),
    ],
)
def test_a_script_that_would_not_be_sent_is_refused_with_the_line_that_sends_it(
    orch: Orch, ignored: str, words: str, message: str, hint: str
) -> None:
    mine = _with_script()
    (mine / ".gitignore").write_text(ignored)
    ran = orch("launch", "-y", "--workdir", "mine", "--", *words.split(), on=lan.Lan())
    assert ran.code == 3
    assert message in ran.err
    assert hint in ran.err
    with (mine / ".orchignore").open("a") as again:
        again.write(hint.split("'")[1] + "\n")
    assert orch("launch", "-y", "-d", "--workdir", "mine", "--", *words.split(), on=lan.lan(*THREE)).code == 0


def test_what_is_left_out_is_reported(orch: Orch) -> None:
    mine = _code()
    for name in (".git", ".venv", "runs", "wandb", "x", "y"):
        (mine / name).mkdir()
    (mine / ".venv" / "pyvenv.cfg").write_text("")
    (mine / ".gitignore").write_text("runs\nwandb\nx\ny\n")
    ran = orch("launch", "-y", "-d", "--workdir", "mine", "--", "python", "train.py", on=lan.lan(*THREE))
    assert (
        "code: ./mine, 3 files, 39 B (left out: .git, .venv, runs, wandb, 2 more), to be copied to 3 nodes\n" in ran.err
    )


def test_what_is_copied_is_reported(orch: Orch) -> None:
    _code()
    ran = orch("launch", "-y", "-d", "--workdir", "mine", "--", "python", "train.py", on=lan.lan(*THREE))
    assert ran.code == 0
    assert "code: ./mine, 2 files, 24 B, to be copied to 3 nodes\n" in ran.err
    installed = orch(
        "launch", "-y", "--dry-run", "--workdir", "mine", "--", "python", "-m", "torchvision.x", on=lan.lan(*THREE)
    )
    assert installed.code == 0  # no module of the folder: the image may have it


def test_a_folder_larger_than_code_is_asked_about(orch: Orch) -> None:
    mine = _code()
    with (mine / "model.pt").open("wb") as file:
        file.truncate(60_000_000)
    words = ("launch", "--workdir", "mine", "--", "python", "train.py")
    declined = orch(*words, on=lan.Lan(), says=False)
    assert (declined.code, declined.asked) == (130, ("Copy all of it to every node?",))
    assert "code: ./mine, 3 files, 60 MB" in declined.err
    assert "orch launch --data mine/FOLDER …" in declined.err
    (mine / "images").mkdir()
    (mine / "model.pt").rename(mine / "images/all.bin")
    assert "orch launch --data mine/images …   # data" in orch(*words, on=lan.Lan(), says=False).err
    (mine / "images/all.bin").write_bytes(b"1")
    as_data = orch(*words[:3], "--data", "mine/images", "--dry-run", *words[3:], on=lan.lan(*THREE))
    assert "code: ./mine, 2 files, 24 B (left out: images)" in as_data.err


@pytest.mark.parametrize("folder", ["~", "/"])
def test_neither_the_home_nor_the_whole_disk_is_code(
    orch: Orch, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").touch()
    place = str(Path(folder).expanduser())
    ran = orch("launch", "-y", "--workdir", place, "--", "python", "train.py", on=lan.Lan())
    assert ran.code == 2
    assert f"{place} would be copied to every node" in ran.err


def test_a_shell_script_has_to_be_executable_or_named_after_a_shell(orch: Orch) -> None:
    mine = _with_script()
    refused = orch("launch", "-y", "--workdir", "mine", "--", "run.sh", on=lan.Lan())
    assert refused.code == 2
    assert "./run.sh is not executable" in refused.err
    assert "orch launch -y --workdir mine -- bash ./run.sh" in refused.err
    (mine / "run.sh").chmod(0o755)
    for words in ("run.sh", "bash ./run.sh", "bash -c 'torchrun train.py'"):
        assert orch("launch", "--dry-run", "--workdir", "mine", "--", *shlex.split(words), on=lan.lan(*THREE)).code == 0


def test_a_shell_script_is_started_once_per_node_with_the_variables_of_torchrun(orch: Orch) -> None:
    _with_script()
    ran = orch("launch", "--dry-run", "--workdir", "mine", "--", "bash", "run.sh", "--lr", "1", on=lan.lan(*THREE))
    assert ran.code == 0
    lines = [line for line in ran.out.splitlines() if " trainer.agent " in line]
    for node_rank, line in enumerate(lines):
        words = shlex.split(line)
        assert words[-7:] == ["--script-ranks", "1", "--", "bash", "run.sh", "--lr", "1"]
        given = {"WORLD_SIZE=3", "NNODES=3", "NPROC_PER_NODE=1", "PET_NNODES=3", f"PET_NODE_RANK={node_rank}"}
        assert given | {"PET_RDZV_BACKEND=static", "ORCH_RESUME="} <= set(words)
    assert len(lines) == 3


def test_options_of_accelerate_are_in_the_plan_and_those_of_env_decide(orch: Orch) -> None:
    _code()
    words = ("launch", "--dry-run", "--workdir", "mine", "--env", "ACCELERATE_USE_CPU=false", "--")
    accelerate = ("accelerate", "launch", "--cpu", "--mixed_precision", "bf16", "train.py")
    ran = orch(*words, *accelerate, on=lan.lan(*THREE))
    assert ran.code == 0
    assert "become ACCELERATE_USE_CPU=true ACCELERATE_MIXED_PRECISION=bf16\n" in ran.err
    lines = [line for line in ran.out.splitlines() if " trainer.agent " in line]
    assert len(lines) == 3
    assert all(
        {"ACCELERATE_MIXED_PRECISION=bf16", "ACCELERATE_USE_CPU=false"} <= set(shlex.split(line)) for line in lines
    )


def test_a_reporter_is_copied_like_code_of_ones_own() -> None:
    assert Program.of(("gpt2", "--reporter", "mine.py:Reporter")).brings_own_code
    assert Program.of(("gpt2", "--reporter=mine.py:Reporter")).brings_own_code
    assert not Program.of(("gpt2", "--lr", "1")).brings_own_code
    assert not Program.of(("gpt2", "--reporter", "mine.py:Reporter")).trains_own_code  # its data can be divided


def test_a_launch_with_a_reporter_copies_the_folder(orch: Orch) -> None:
    Path("mine.py").write_text("class Reporter: ...\n")
    here = lan.lan(*THREE)
    ran = orch("launch", "--dry-run", "--json", "--", "gpt2", "--reporter", "mine.py:Reporter", on=here)
    assert ran.code == 0, ran.err
    plan = json_data(ran.out)
    assert plan["own_code"]
    assert plan["nodes"][0]["container"]["working_dir"].endswith("/code")
