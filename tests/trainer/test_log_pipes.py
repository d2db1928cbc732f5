"""Output of the ranks of a real torchrun: it comes through line by line, and leaves no file behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.test_agent import PACKAGES, free_port

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
rank = os.environ["RANK"]
for number in range(3000):
    print(f"line {number} of rank {rank}", flush=number % 100 == 0)
print("x" * 200_000)
for number in range(5):
    print(f"\\r{number} of 5", end="")
print()
print(f"an error of rank {rank}", file=sys.stderr)
if rank == "1" and "fail" in sys.argv:
    raise RuntimeError("nothing works")
sys.stdout.write(f"the last of rank {rank}")
"""


def supervised(script: Path, *words: str, ranks: int = 1) -> list[str]:
    """The one node of a run, as its container begins it."""
    where = ("--nodes", "alpha", "--node-rank", "0", "--address", "127.0.0.1", "--port", str(free_port()))
    torchrun = ("torchrun", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port")
    return [sys.executable, "-m", "trainer.agent", *where, "--", *torchrun, str(free_port()), str(script), *words]


@pytest.fixture
def ran(tmp_path: Path, request: pytest.FixtureRequest) -> subprocess.CompletedProcess[str]:
    """Two ranks of one node, under its agent."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    return subprocess.run(
        supervised(tmp_path / "script.py", *request.param, ranks=2),
        env={
            **os.environ,
            "PYTHONPATH": PACKAGES,
            "TMPDIR": str(tmp_path / "tmp"),
            "ORCH_RUN_DIR": str(tmp_path),
            "ORCH_SAMPLE_S": "0",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("ran", [()], indirect=True, ids=["done"])
def test_every_line_comes_once_in_order_with_its_rank(ran: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    for rank in (0, 1):
        head = f"[rank{rank}]: "
        own = [line.removeprefix(head) for line in lines if line.startswith(head)]
        assert own[:3000] == [f"line {number} of rank {rank}" for number in range(3000)]
        assert own[3000] == "x" * 200_000
        redrawn = [f'@orch {{"event": "redraw", "bar": "", "text": "{number} of 5"}}' for number in range(4)]
        assert own[3001:-1] == [*redrawn, "4 of 5"]
        assert own[-1] == f"the last of rank {rank}"
        assert f"{head}an error of rank {rank}" in ran.stderr.splitlines()
    assert not list((tmp_path / "tmp").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py", "tmp"]


@pytest.mark.parametrize("ran", [("fail",)], indirect=True, ids=["failed"])
def test_a_failure_is_named_by_its_own_lines(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 1
    (over,) = (line for line in ran.stdout.splitlines() if line.startswith("@orch") and '"event": "finished"' in line)
    assert '"outcome": "user"' in over
    assert "RuntimeError: nothing works" in over
    assert "script.py:12 in <module>" in over


BAR = """
import pathlib, sys, time
print("\\r1 of 2\\r2 of 2", end="", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def test_a_progress_bar_is_seen_while_it_moves(tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    process = subprocess.Popen(
        supervised(tmp_path / "bar.py", str(tmp_path / "seen")),
        env={**os.environ, "PYTHONPATH": PACKAGES, "ORCH_RUN_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process as running:
        assert running.stdout
        try:
            state = '[rank0]: @orch {"event": "redraw", "bar": "", "text": "1 of 2"}\n'
            assert state in iter(running.stdout.readline, "")
        finally:
            (tmp_path / "seen").touch()
        assert "[rank0]: 2 of 2\n" in running.stdout.read()
