"""A folder of the user's with modules called as ours is launched like any other: neither hides the other's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.nodes.processes.command import resolve
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.request import LaunchRequest
from tests import lan
from tests.trainer.test_agent import free_port

ROOT = str(Path(__file__).parents[2])
OURS = ("trainer.py", "contract.py", "orchestrator.py", "sitecustomize.py", "wire.py", "streams.py", "options.py")
SCRIPT = """
import contract, trainer, wire
from package import main
print("the user's:", contract.MINE, trainer.MINE, wire.MINE, main.MINE)
"""

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torchrun comes with torch")


@pytest.fixture(params=["module", "package"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A user's code, as it lies in a run's folder."""
    for name in OURS:
        (tmp_path / name).write_text(f"MINE = '{name}'\n")
    if request.param == "package":
        (tmp_path / "trainer.py").unlink()
        (tmp_path / "trainer").mkdir()
        (tmp_path / "trainer" / "__init__.py").write_text("MINE = 'trainer.py'\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "main.py").write_text(f"MINE = 'main'\nif __name__ == '__main__':\n    exec({SCRIPT!r})\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def ran(folder: Path, *command: str, torchrun: bool = True) -> subprocess.CompletedProcess[str]:
    """The container of a run of one node, as a process; without torchrun, its agent starts the rank itself."""
    request = LaunchRequest(project="orch", nodes=(lan.spec("alpha"),), command=command)
    (part,) = plan_launch(request, {"alpha": lan.facts("alpha")}, lan.IDENTITY).nodes
    words = list(part.container.command)
    words[words.index("--master-addr") + 1] = "127.0.0.1"
    words[words.index("--master-port") + 1] = str(free_port())
    if not torchrun:
        words[words.index("torchrun") :] = [sys.executable, *command[1:]]
    return subprocess.run(
        resolve(tuple(words), "alpha"),
        cwd=folder,
        env={**os.environ, **part.container.environment, "PYTHONPATH": ROOT, "ORCH_RUN_DIR": str(folder / "run"),
             "GLOO_SOCKET_IFNAME": "lo", "ORCH_BEATS": str(folder), "LOCAL_RANK": "0"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", [("train.py",), ("-m", "package.main")])
def test_a_script_finds_its_own_modules(folder: Path, words: tuple[str, ...]) -> None:
    done = ran(folder, "python", *words, torchrun=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the user's: contract.py trainer.py wire.py main" in done.stdout


@needs_torch
@pytest.mark.parametrize("folder", ["module"], indirect=True)
def test_torchrun_starts_it_too(folder: Path) -> None:
    done = ran(folder, "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[rank0]: the user's: contract.py trainer.py wire.py main" in done.stdout


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("folder", ["package"], indirect=True)
def test_a_workload_is_ours_whatever_lies_in_its_folder(folder: Path) -> None:
    done = ran(folder, "gpt2", "--data-dir", str(folder / "Data"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no prepared data" in done.stdout + done.stderr
