"""Completion by bash, zsh and fish, by the protocol that their scripts speak, on a state folder with many runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.completion import CACHE, MOST
from trainer.workloads import WORKLOADS

RUNS = 1000
INVENTORY = """\
nodes:
  alpha: {address: 10.0.0.1, labels: {room: lab, tags: "fast,quiet"}}
  beta: {address: 10.0.0.2, labels: {room: study}}
clusters:
  uni: {login: local, workspace: /scratch/orch}
"""
SLOW = ("pydantic", "rich", "docker", "fabric", "ruamel.yaml", "contract.events")
"""Modules that take longer to load than the whole answer may."""


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for number in range(RUNS):
        folder = runs / f"gpt2-{number:04}"
        folder.mkdir()
        os.utime(folder, (1_700_000_000 + number, 1_700_000_000 + number))
    (runs / "vision-1a2b").mkdir()
    (runs / "-no-run; rm -rf").mkdir()
    return runs


@pytest.fixture
def here(tmp_path: Path, state: Path, many_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state.mkdir(parents=True)
    (state / "runs").symlink_to(many_runs)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Complete = Callable[..., list[str]]


@pytest.fixture
def complete(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """`complete(line, shell="bash")`: the words that a shell offers after this line; of a fish or zsh with
    descriptions, the words alone."""

    def run(line: str, shell: str = "bash") -> list[str]:
        with monkeypatch.context() as patch:
            for name, value in asked_by(shell, line).items():
                patch.setenv(name, value)
            assert main([]) == 0
        output = capsys.readouterr()
        assert output.err == ""
        return [line for line in output.out.splitlines() if line]

    return run


def asked_by(shell: str, line: str) -> dict[str, str]:
    """Variables by which its script asks for the words after a line."""
    if shell == "bash":
        protocol = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        protocol = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return {"_ORCH_COMPLETE": f"complete_{shell}", **protocol}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("orch logs vis", ["vision-1a2b"]),
        ("orch resume gpt2-0999", ["gpt2-0999"]),
        ("orch runs diff vis", ["vision-1a2b"]),
        ("orch runs diff gpt2-0001 vis", ["vision-1a2b"]),
        ("orch launch --resume vis", ["vision-1a2b"]),
        ("orch runs ", ["diff", "rerun"]),
        ("orch runs --state f", ["failed"]),
        ("orch runs --state failed,st", ["failed,starting", "failed,stopping", "failed,stopped"]),
        ("orch doctor -n ", ["alpha", "beta", "room=lab", "room=study", "tags=fast", "tags=quiet"]),
        ("orch launch --nodes alpha,b", ["alpha,beta"]),
        ("orch launch --master b", ["beta"]),
        ("orch launch --on u", ["uni"]),
        ("orch launch --on ", ["uni"]),
        ("orch shell a", ["alpha"]),
        ("orch exec be", ["beta"]),
        ("orch -i inventory.yaml shell b", ["beta"]),
        ("orch explain clock.s", ["clock.skew"]),
        ("orch explain gp", ["gpu"]),
        ("orch launch -- ", list(WORKLOADS)),
        ("orch prepare -- vis", ["vision"]),
        ("orch launch -- gpt2 ", []),
        ("orch lau", ["launch"]),
    ],
)  # fmt: skip
def test_words_are_completed(complete: Complete, line: str, expected: list[str]) -> None:
    found = complete(line)
    assert found[: len(expected)] == expected if line.endswith("gp") else found == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell(complete: Complete, shell: str) -> None:
    text = "\n".join(complete("orch logs vis", shell))
    assert "vision-1a2b" in text
    assert "gpt2" not in text


def test_of_many_runs_the_newest_are_offered(complete: Complete) -> None:
    found = complete("orch status ")
    assert len(found) == MOST
    assert found[:2] == ["vision-1a2b", "gpt2-0999"]


def test_nothing_slow_is_loaded(complete: Complete) -> None:
    complete("orch shell a")  # reads the inventory, and keeps its names
    lines = ["orch logs gpt2-09", "orch lau", "orch explain clo", "orch launch -n al", "orch launch -- g",
             "orch stop v", "orch runs rerun v", "orch exec al", "orch checkpoints pull v"]  # fmt: skip
    code = f"""
import os, sys
from orchestrator.cli import main
for line, variables in {[(line, asked_by("bash", line)) for line in lines]}:
    os.environ.update(variables)
    assert main([]) == 0
    if loaded := {set(SLOW)} & set(sys.modules):
        sys.exit(f"{{line}}: loads {{loaded}}")
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False, env=environ)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[0].startswith("gpt2-09")
    assert "launch" in ran.stdout


def test_names_of_an_inventory_are_read_again_when_it_changes(complete: Complete, here: Path, state: Path) -> None:
    assert complete("orch shell ") == ["alpha", "beta"]
    assert (state / CACHE).stat().st_mode & 0o077 == 0
    (here / "inventory.yaml").write_text(INVENTORY.replace("beta", "gamma"))
    assert complete("orch shell ") == ["alpha", "gamma"]
    (state / CACHE).write_text('{"key": 3')
    assert complete("orch shell ") == ["alpha", "gamma"]


@pytest.mark.parametrize("text", ["nodes: [", "\x00", "nodes: {alpha: {adress: x}}"])
def test_an_inventory_that_is_not_valid_offers_nothing(complete: Complete, here: Path, text: str) -> None:
    (here / "inventory.yaml").write_text(text)
    assert complete("orch shell ") == []


def test_the_script_of_each_shell_is_printed(here: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        ran = subprocess.run(
            (sys.executable, "-m", "orchestrator"), cwd=here, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "_ORCH_COMPLETE": f"source_{shell}"},
        )  # fmt: skip
        assert "_ORCH_COMPLETE=complete_" in ran.stdout
