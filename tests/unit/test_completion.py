"""Completion by bash, zsh and fish, by the protocol that their scripts speak, on a state folder with many runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def here(tmp_path: Path, state: Path) -> Path:
    (state / "runs").mkdir(parents=True)
    for number in range(RUNS):
        folder = state / "runs" / f"gpt2-{number:04}"
        folder.mkdir()
        os.utime(folder, (1_700_000_000 + number, 1_700_000_000 + number))
    (state / "runs" / "vision-1a2b").mkdir()
    (state / "runs" / "-no-run; rm -rf").mkdir()
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return tmp_path


def complete(here: Path, line: str, shell: str = "bash", *, modules: bool = False) -> list[str]:
    """The words that a shell offers after this line; of a fish or zsh with descriptions, the words alone."""
    words = line.split(" ")
    protocol = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)} if shell == "bash" else {
        "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    code = "import os, sys; from orchestrator.cli import main; main(sys.argv[1:])"
    if modules:
        code += f"; print(*[name for name in {SLOW!r} if name in sys.modules])"
    ran = subprocess.run(
        (sys.executable, "-c", code), cwd=here, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "_ORCH_COMPLETE": f"complete_{shell}",
             **protocol},
    )  # fmt: skip
    assert ran.stderr == ""
    return [line for line in ran.stdout.splitlines() if line or modules]


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
        ("orch runs --state failed,s", ["failed,stopped"]),
        ("orch doctor -n ", ["alpha", "beta", "room=lab", "room=study", "tags=fast", "tags=quiet"]),
        ("orch launch --nodes alpha,b", ["alpha,beta"]),
        ("orch launch --master b", ["beta"]),
        ("orch launch --on u", ["uni"]),
        ("orch export sbatch --on ", ["uni"]),
        ("orch launch --label room=s", ["room=study"]),
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
def test_words_are_completed(here: Path, line: str, expected: list[str]) -> None:
    found = complete(here, line)
    assert found[: len(expected)] == expected if line.endswith("gp") else found == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell(here: Path, shell: str) -> None:
    text = "\n".join(complete(here, "orch logs vis", shell))
    assert "vision-1a2b" in text
    assert "gpt2" not in text


def test_of_many_runs_the_newest_are_offered(here: Path) -> None:
    found = complete(here, "orch status ")
    assert len(found) == MOST
    assert found[:2] == ["vision-1a2b", "gpt2-0999"]


@pytest.mark.parametrize(
    "line", ["orch logs gpt2-09", "orch lau", "orch explain clo", "orch launch -n al", "orch launch -- g",
             "orch stop v", "orch runs rerun v", "orch exec al", "orch checkpoints pull v"],
)  # fmt: skip
def test_nothing_slow_is_loaded(here: Path, line: str) -> None:
    complete(here, "orch shell a")  # reads the inventory, and keeps its names
    assert complete(here, line, modules=True)[-1] == ""


def test_names_of_an_inventory_are_read_again_when_it_changes(here: Path, state: Path) -> None:
    assert complete(here, "orch shell ") == ["alpha", "beta"]
    assert (state / CACHE).stat().st_mode & 0o077 == 0
    (here / "inventory.yaml").write_text(INVENTORY.replace("beta", "gamma"))
    assert complete(here, "orch shell ") == ["alpha", "gamma"]
    (state / CACHE).write_text('{"key": 3')
    assert complete(here, "orch shell ") == ["alpha", "gamma"]


@pytest.mark.parametrize("text", ["nodes: [", "\x00", "nodes: {alpha: {adress: x}}"])
def test_an_inventory_that_is_not_valid_offers_nothing(here: Path, text: str) -> None:
    (here / "inventory.yaml").write_text(text)
    assert complete(here, "orch shell ") == []


def test_the_script_of_each_shell_is_printed(here: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        ran = subprocess.run(
            (sys.executable, "-m", "orchestrator"), cwd=here, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "_ORCH_COMPLETE": f"source_{shell}"},
        )  # fmt: skip
        assert "_ORCH_COMPLETE=complete_" in ran.stdout
