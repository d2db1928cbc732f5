"""Fixtures of the trainer's tests: a little data, and ways to run it as one process or under torchrun."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_TORCH
from tests.trainer.forked import ForkedRanks
from trainer.cli import main

# Before any test imports torch, as `main` does it: threads that spin take the cores from the other ranks.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[2]
MODEL = ("--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16", "--lr", "3e-3")
AS_ONE = ("--sync", "fp32", "--shares", "equal", "--no-compile")
"""Options with which several ranks repeat one process: nothing is decided by a measured time, nothing compressed."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if {"torchrun", "forked"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.slow)


@dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (line for line in self.out.splitlines() if line.startswith("@orch "))
        return [e for e in (json.loads(line.removeprefix("@orch ")) for line in lines) if e["event"] == kind]

    def losses(self) -> dict[int, float]:
        return {event["step"]: event["loss"] for event in self.events("step")}


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some thousand tokens of words in an order that can be learned a little."""
    pytest.importorskip("torch", reason=NO_TORCH)
    folder = tmp_path_factory.mktemp("prepared")
    words = ["en", "el", "principio", "era", "la", "palabra", "y", "con", "ella", "vino", "toda", "cosa"]
    # Residues of a prime: an order without chance, but not one that a model guesses at once.
    lines = (" ".join(words[line * word * 37 % 101 % 12] for word in range(1, 13)) + "." for line in range(600))
    (folder / "texto.txt").write_text("\n".join(lines), "utf-8")
    where = ("--text", str(folder / "texto.txt"), "--data-dir", str(folder / "Data"))
    assert main(["gpt2", "prepare", *where, "--vocab-size", "300"]) == 0
    return folder / "Data"


@pytest.fixture(scope="session")
def picture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of three classes: stripes that lie, stand or lean, in any colour, 12 pictures each."""
    pytest.importorskip("torch", reason=NO_TORCH)
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    y, x = np.mgrid[:40, :52]
    for name, place in (("lying", y), ("standing", x), ("leaning", x + y)):
        (folder / name).mkdir()
        for number in range(12):
            colour = np.array([(37 * number + 85 * channel) % 256 for channel in range(3)])
            stripes = (place + number) // 4 % 2
            pixels = np.where(stripes[..., None], colour, 255 - colour).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02d}.png")
    return folder


Call = Callable[..., Result]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """The command line in this very process, which has torch imported already."""

    def run(*argv: str) -> Result:
        capfd.readouterr()
        try:
            code = main(argv)
        except SystemExit as end:  # argparse's way to say 2
            code = int(end.code or 0)
        captured = capfd.readouterr()
        return Result(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def train(call: Call, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`train(run_dir, *options)` in this process, with events and a line for each step."""
    monkeypatch.setenv("ORCH_EVENTS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return lambda run_dir, *options: call(*_train_command(data_dir, run_dir), *options)


def _train_command(data_dir: Path, run_dir: Path) -> list[str]:
    return [
        "gpt2", "train", *MODEL, "--data-dir", str(data_dir), "--run-dir", str(run_dir), "--log-every", "1",
        "--precision", "fp32", "--num-workers", "0", *AS_ONE,
    ]  # fmt: skip


@pytest.fixture
def child_environ() -> dict[str, str]:
    return _child_environ()


def _child_environ() -> dict[str, str]:
    """Return the environment of a container, and no more: no HOME, no locale, no name for the user."""
    passed_on = ("PATH", "LD_LIBRARY_PATH", "CXX", "CC", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR")
    saved = {name: os.environ[name] for name in passed_on if name in os.environ}
    return {
        **saved,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONWARNINGS": "default",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "ORCH_EVENTS": "1",
        "ORCH_NODE": "alpha",
        "ORCH_PG_TIMEOUT_S": "60",
    }


class Torchrun:
    """torchrun on loopback, its workers' output taken together."""

    def __init__(self, ranks: int, *argv: str, module: str = "trainer") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = (
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks),
            "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", module, *argv,
        )  # fmt: skip
        self.process = subprocess.Popen(
            command,
            env=_child_environ(),
            bufsize=0,  # otherwise `communicate` would lose the lines that came together with the last one of `lines`
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.seen: list[bytes] = []

    def lines(self) -> Iterator[str]:
        assert self.process.stdout
        for line in self.process.stdout:
            self.seen.append(line)
            yield line.decode()

    def kill(self) -> None:
        """All of it, at once."""
        os.kill(self.process.pid, signal.SIGSTOP)  # it would end the other ranks in order
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for rank in (task / "children").read_text().split():
                os.kill(int(rank), signal.SIGKILL)
        os.kill(self.process.pid, signal.SIGKILL)

    def result(self, timeout_s: float = 100) -> Result:
        rest, err = self.process.communicate(timeout=timeout_s)
        return Result(code=self.process.returncode, out=b"".join([*self.seen, rest]).decode(), err=err.decode())


@pytest.fixture
def torchrun() -> Iterator[Callable[..., Torchrun]]:
    """`torchrun(ranks, *argv)` starts `-m trainer`, or another `module`; `.lines()` and `.result()` read what it says.
    Nothing is left running."""
    pytest.importorskip("torch", reason=NO_TORCH)
    started: list[Torchrun] = []

    def start(ranks: int, *argv: str, module: str = "trainer") -> Torchrun:
        started.append(Torchrun(ranks, *argv, module=module))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.kill()
        run.process.communicate()


class Ranks(ForkedRanks):
    """Ranks that need no interpreter of their own, and no torchrun: 3 to 8 seconds less of a CPU."""

    def __init__(self, ranks: int, *argv: str, module: str = "trainer", nodes: Sequence[int] = ()) -> None:
        super().__init__(ranks, *argv, environ=_child_environ(), module=module, nodes=nodes)

    def result(self) -> Result:
        code, out, err = self.end()
        return Result(code=code, out=out, err=err)


@pytest.fixture
def forked() -> Iterator[Callable[..., Ranks]]:
    """`forked(number, *argv)`: like `torchrun`, where torchrun itself is not what is tested."""
    pytest.importorskip("torch", reason=NO_TORCH)
    with ExitStack() as started:
        yield lambda number, *argv, **options: started.enter_context(closing(Ranks(number, *argv, **options)))


@pytest.fixture
def observe(
    forked: Callable[..., Ranks], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """`observe(run_dir, number of ranks, wishes, **options)` trains the workload of observed.py."""
    monkeypatch.setenv("ORCH_EVENTS", "1")

    def run(
        run_dir: Path,
        number: int = 1,
        wishes: Mapping[str, Any] | None = None,
        nodes: Sequence[int] = (),
        **options: Any,
    ) -> Result:
        from tests.trainer import observed

        usual = {"precision": "fp32", "compile": False, "num_workers": 0, "checkpoint_every": 0, "log_every": 1}
        usual |= {"sync": "fp32", "shares": "equal"}
        words = json.dumps({**usual, **options, "run_dir": str(run_dir)}), json.dumps(wishes or {})
        if number > 1:
            return forked(number, *words, module="tests.trainer.observed", nodes=nodes).result()
        capfd.readouterr()
        code = observed.main(words)
        captured = capfd.readouterr()
        return Result(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def train_command(data_dir: Path) -> Callable[[Path], list[str]]:
    """The words of `train` for torchrun."""
    return lambda run_dir: _train_command(data_dir, run_dir)
