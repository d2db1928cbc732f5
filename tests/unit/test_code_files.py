"""Files of a code folder that are sent: ignore files as git and docker read them, and folders that never are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.fleet.runs.code_files import NEVER, code_digest, code_files
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.upload_code import upload_code
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import ConfigError


def made(folder: Path, *paths: str, **ignored: str) -> Path:
    """A code folder with these files; `git`, `orch` and `docker` are the text of its ignore files."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    for kind, text in ignored.items():
        (folder / f".{kind}ignore").write_text(text)
    return folder


def sent(folder: Path) -> set[str]:
    """Names without the ignore files themselves."""
    return {name for name in code_files(folder).names if not name.endswith("ignore")}


CASES = {
    "a name in every folder": ("*.pt\n", {"a.py", "b/c.py"}, {"x.pt", "b/y.pt"}),
    "a name at the top": ("/out\n", {"b/out/z"}, {"out/x"}),
    "a path": ("b/out\n", {"out/x", "c/b/out/z"}, {"b/out/y"}),
    "folders only": ("data/\n", {"b/data"}, {"data/x", "c/data/y"}),
    "negation": ("*.txt\n!keep.txt\n", {"keep.txt", "b/keep.txt"}, {"a.txt"}),
    "the last match decides": ("!a.txt\na.txt\n", {"b.txt"}, {"a.txt"}),
    "comments and escapes": ("# c.py\n\\#d.py\n\\!e.py\n", {"c.py"}, {"#d.py", "!e.py"}),
    "two stars": ("logs/**\n**/tmp/x\n", {"b/logs/y", "tmp/y"}, {"logs/a/b", "tmp/x", "b/c/tmp/x"}),
    "nothing below a folder comes back": ("out\n!out/keep\n", {"a"}, {"out/keep"}),
    "one character and a range": ("?.log\n[ab].txt\n", {"ab.log", "c.txt"}, {"a.log", "a.txt"}),
}


@pytest.mark.parametrize(("text", "saved", "ignored"), CASES.values(), ids=CASES)
def test_lines_are_read_as_git_reads_them(text: str, saved: set[str], ignored: set[str], tmp_path: Path) -> None:
    folder = made(tmp_path, *saved, *ignored, git=text)
    assert sent(folder) == saved
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    asked = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "-z", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {name for name in asked.stdout.split("\0") if name} - {".gitignore"} == saved


def test_a_gitignore_of_a_folder_counts_below_it_and_decides_later(tmp_path: Path) -> None:
    folder = made(tmp_path, "a.pt", "b/a.pt", "b/c/a.pt", "b/d.csv", git="*.pt\n")
    made(tmp_path / "b", git="!a.pt\n/d.csv\n")
    assert sent(folder) == {"b/a.pt", "b/c/a.pt"}


def test_a_dockerignore_counts_from_the_top_and_an_orchignore_decides_last(tmp_path: Path) -> None:
    folder = made(
        tmp_path, "data/x", "b/data/y", "b/z", "notes.md",
        docker="data\nnotes.md\n**/z\n", orch="!/data\n",
    )  # fmt: skip
    made(tmp_path / "b", docker="data\n")
    assert sent(folder) == {"data/x", "b/data/y"}


def test_folders_that_no_training_reads_are_never_sent_nor_entered(tmp_path: Path) -> None:
    folder = made(tmp_path, "train.py", *(f"{name}/x" for name in NEVER), "env/pyvenv.cfg", "b/__pycache__/y")
    (folder / "env" / "lib").mkdir()
    (folder / "env" / "lib" / "secret").symlink_to("/nonexistent")
    found = code_files(folder)
    assert found.names == ("train.py",)
    assert found.entries == ("b", "train.py")
    assert set(found.left_out) == {*NEVER, "env", "b/__pycache__"}
    assert found.left_out_with("env/lib/secret") == "env"


def test_links_and_empty_folders_are_sent_as_they_are(tmp_path: Path) -> None:
    folder = made(tmp_path / "mine", "model.py")
    (folder / "empty").mkdir()
    (folder / "same.py").symlink_to("model.py")
    (folder / "below").symlink_to("empty")
    found = code_files(folder)
    assert found.names == ("model.py", "same.py")
    assert set(found.entries) == {"model.py", "same.py", "empty", "below"}


def test_a_folder_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        code_files(tmp_path / "none")


def test_digest_copy_and_list_leave_out_the_same(tmp_path: Path) -> None:
    folder = made(tmp_path / "mine", "train.py", "pkg/model.py", git="*.pt\n")
    digest = code_digest(folder)
    made(folder, "x.pt", ".venv/pyvenv.cfg", ".git/config")
    assert code_digest(folder) == digest != folder_digest(folder)
    run = tmp_path / "run"
    run.mkdir()
    upload_code(LocalNode("alpha"), folder, str(run), digest)
    there = {str(path.relative_to(run / "code")) for path in (run / "code").rglob("*") if path.is_file()}
    assert there == {"train.py", "pkg/model.py", ".gitignore"}
    listed = (run / f"code-{digest}.list").read_bytes().decode().split("\0")
    assert set(filter(None, listed)) == {f"./{name}" for name in there}
    assert folder_digest(run / "code") == digest
