"""Ranks that are forked from a process with torch imported, beside those that are starts of Python."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.warm_start import KILLED, kill_agents, kill_within_a_run, loopback_nodes
from tests.trainer.test_agent import PACKAGES, free_port
from trainer.agent import at_start, processes
from trainer.agent.ranks import adopt_orphans
from trainer.agent.warm_rank import Imported, why_not
from trainer.agent.warm_start import WarmStart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FACTS = """
import json, os, signal, sys
main = sys.modules["__main__"]
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags), "name": __name__,
    "file": __file__, "package": __package__, "spec": getattr(__spec__, "name", None), "main": sorted(vars(main)),
    "is_main": vars(main) is globals(), "loader": type(__loader__).__name__, "cached": __cached__,
    "command": open("/proc/self/cmdline").read(), "process": sorted(open("/proc/self/environ").read().split(chr(0))),
    "environ": dict(os.environ), "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "folder": os.getcwd(),
    "signals": [str(signal.getsignal(number)) for number in (2, 13, 15, 17)],
    "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in "012"), "open": len(os.listdir("/proc/self/fd")),
    "hooks": str(sys.excepthook), "out": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "seekable": [sys.stdout.seekable(), sys.stderr.seekable(), sys.stdin.seekable()],
    "err": [sys.stderr.errors, sys.stderr.line_buffering], "trainer": "trainer" in sys.modules,
}
import torch
facts["threads"] = torch.get_num_threads()
sys.stdout.reconfigure(errors="replace", line_buffering=True)
print("facts", json.dumps(facts))
"""
SEEDS = """
import os, random, numpy, torch
print("drawn", torch.rand(1).item(), numpy.random.rand(), random.random(), flush=True)
"""
CHILDREN = """
import multiprocessing, os, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(float(index)), os.environ["LOCAL_RANK"]
def double(value): return 2 * value
def late():
    time.sleep(0.5)
    print("late", double(4), flush=True)
if __name__ == "__main__":
    import atexit
    multiprocessing.set_start_method("spawn")
    atexit.register(lambda: print("at exit", double(5), flush=True))
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
        print(method, sum(batch.sum().item() for batch, _ in loader), flush=True)
    with multiprocessing.Pool(1) as pool:
        print("pool", pool.map(double, [1, 2]), flush=True)
    torch.set_num_threads(2)
    print("threads", torch.ones(512, 512).matmul(torch.ones(512, 512)).sum().item() == 512.0 ** 3, flush=True)
    child = os.fork()
    if not child:
        os._exit(7)
    print("forked", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    threading.Thread(target=late).start()
"""
COMPILES = """
import torch
print("compiled", torch.compile(lambda x: (x.sin() + 1).relu())(torch.zeros(8)).sum().item())
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def exit_codes(self) -> list[int]:
        """Exit codes of the ranks as torchrun reports them."""
        return [int(code) for code in re.findall(r"exitcode  : (-?\d+)", self.err)]


class Launcher:
    """torchrun in a folder, with and without a warm process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        paths = os.pathsep.join((str(Path(at_start.__file__).parent), PACKAGES))
        self.environ = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self.warm = WarmStart(self.environ, self.notes.append)

    def ready(self) -> bool:
        self.warm.prepare()
        while not self.warm.is_settled():
            time.sleep(processes.POLL_S)
        return self.warm.pid != 0

    def run(self, *program: str, ranks: int = 1, warm: bool = True) -> Ended:
        """Run torchrun to its end."""
        here, there = socket.socketpair()
        ends = [os.pipe(), os.pipe()]
        words = ["--nproc-per-node", str(ranks), "--master-port", str(free_port()), "--max-restarts", "0", *program]
        files = [ends[0][1], ends[1][1], there.fileno()]
        environ = {**self.environ, "ORCH_GENERATION": "1", "MASTER_PORT": "1"}
        line = [sys.executable, "-P", "-m", "trainer.agent.torchrun", str(there.fileno()), "-1", *words]
        process: processes.ChildProcess | subprocess.Popen[bytes] | None
        if warm:
            process = self.warm.torchrun(line, words, environ, ranks, files)
            assert process, self.notes
        else:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1], env=environ, pass_fds=files[2:]
            )
        there.close()
        for _, writer in ends:
            os.close(writer)
        Thread(target=lambda: (here.recv(9), here.close())).start()
        with ThreadPoolExecutor(2) as readers:
            out, err = readers.map(_text, [reader for reader, _ in ends])
        return Ended(process.wait(200), out, err)


def _text(reader: int) -> str:
    with os.fdopen(reader) as file:
        return file.read()


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    before, folder = Path.cwd(), tmp_path_factory.mktemp("warm")
    adopt_orphans()
    os.chdir(folder)
    launcher = Launcher(folder)
    try:
        assert launcher.ready(), launcher.notes
        yield launcher
    finally:
        launcher.warm.end()
        os.chdir(before)
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@pytest.fixture
def script(launcher: Launcher) -> Callable[[str], str]:
    (launcher.folder / "part").mkdir(exist_ok=True)

    def write(text: str) -> str:
        (launcher.folder / "part/script.py").write_text(text)
        return "part/script.py"

    return write


@pytest.mark.parametrize("words", [("part/script.py", "--lr", "1"), ("-m", "part.script", "--lr", "1")])
def test_a_program_finds_what_a_start_of_python_gives_it(
    launcher: Launcher, script: Callable[[str], str], words: tuple[str, ...]
) -> None:
    script(FACTS)
    found = [launcher.run(*words, warm=warm) for warm in (True, False)]
    assert "without the warm process" not in found[0].err
    forked, started = (json.loads(one.out.partition("facts ")[2]) for one in found)
    for facts in (forked, started):
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"):
            facts["environ"].pop(name, None)
        facts["process"] = [one for one in facts["process"] if not one.startswith(("TORCHELASTIC_", "MASTER_PORT"))]
        facts["files"] = [one for one in facts["files"] if not one.startswith("pipe:")]
    assert forked == started


def test_ranks_draw_their_own_random_numbers(launcher: Launcher, script: Callable[[str], str]) -> None:
    path = script(SEEDS)
    out = "".join(launcher.run(path, ranks=2).out for _ in range(2))
    drawn = [number for line in re.findall(r"drawn (.+)", out) for number in line.split()]
    assert len(set(drawn)) == 2 * 2 * 3


def test_start_methods_threads_and_handlers_of_a_script_work(launcher: Launcher, script: Callable[[str], str]) -> None:
    ended = launcher.run(script(CHILDREN))
    assert (ended.code, ended.out.splitlines()) == (
        0,
        [
            "fork 28.0", "spawn 28.0", "forkserver 28.0", "pool [2, 4]", "threads True", "forked 7", "late 8",
            "at exit 10",
        ],
    ), ended.err  # fmt: skip


def test_compiling_works(launcher: Launcher, script: Callable[[str], str]) -> None:
    ended = launcher.run(script(COMPILES))
    assert (ended.code, ended.out) == (0, "compiled 8.0\n"), ended.err


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f():\n    raise ValueError('no such label')\nf()", 1),
        ("def f(:", 1),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no such file')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os._exit(9)", 9),
    ],
)
def test_a_failure_is_that_of_a_start_of_python(
    launcher: Launcher, script: Callable[[str], str], text: str, code: int
) -> None:
    path = script(text)
    forked = launcher.run(path)
    started = subprocess.run([sys.executable, "-u", path], capture_output=True, text=True, check=False)
    assert (forked.code, forked.exit_codes) == (1, [code])
    assert started.returncode == code
    assert forked.err.startswith(started.stderr)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("part/queue.py", "", "queue.py has the name of a module that torch imports"),
        ("part/ours.py", "", ""),
        ("part/script.py", "import os\nos.environ['OMP_NUM_THREADS'] = '2'\n", "OMP_NUM_THREADS"),
        ("part/script.py", "import os\nos.environ.setdefault('TORCH_LOGS', '')\n", "TORCH_LOGS"),
        ("part/script.py", "import os\nos.environ['WANDB_MODE'] = 'offline'\n", ""),
    ],
)
def test_where_a_fork_would_differ_python_starts(
    launcher: Launcher, script: Callable[[str], str], name: str, text: str, reason: str
) -> None:
    path = script("")
    file = launcher.folder / name
    file.write_text(text)
    with (launcher.folder / path).open("a") as end:
        end.write("import queue; print('ran')")
    ended = launcher.run(path, ranks=2)
    if file.name != "script.py":
        file.unlink()
    assert (ended.code, ended.out) == (0, "ran\nran\n")
    noted = [line for line in ended.err.splitlines() if "without the warm process" in line]
    assert [reason in line for line in noted] == [True] * bool(reason)


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS"),
        ('os.environ.setdefault("TORCH_LOGS", "")', "TORCH_LOGS"),
        ("os.environ.update({\n    'A': '1',\n    'MKL_DYNAMIC': '1',\n})", "MKL_DYNAMIC"),
        ("os.environ.update(KMP_AFFINITY='compact')", "KMP_AFFINITY"),
        ("os.environ |= {'PYTORCH_CUDA_ALLOC_CONF': ''}", "PYTORCH_CUDA_ALLOC_CONF"),
        ("os.putenv('LD_PRELOAD', '')", "LD_PRELOAD"),
        ("os.environ['TORCHINDUCTOR_CACHE_DIR'] = 'here'", "TORCHINDUCTOR_CACHE_DIR"),
        ("os.environ.update(A=str(1), OMP_NUM_THREADS='1')", "OMP_NUM_THREADS"),
        ("env = os.environ\nenv['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS"),
        ("print(os.environ['OMP_NUM_THREADS'])", ""),
        ("def (", ""),
        ("print(os.environ.get('OMP_NUM_THREADS'), os.getenv('LD_PRELOAD'))", ""),
        ("os.environ['WANDB_MODE'] = 'offline'  # and OMP_NUM_THREADS", ""),
    ],
)
def test_a_script_that_sets_what_torch_reads_early_starts_by_itself(
    text: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(f"import os\n{text}\nimport torch\n")
    imported = Imported(modules=frozenset(sys.modules), environ={}, added={}, printed=b"")
    found = why_not((sys.executable, "-u", "script.py"), {}, imported)
    assert found == (f"script.py sets {variable}, which is read while torch is loaded" if variable else "")


@pytest.mark.parametrize(
    ("argv", "environ", "reason"),
    [
        (("-u", "script.py"), {"RANK": "1", "ORCH_GENERATION": "2", "TORCHELASTIC_RUN_ID": "x"}, ""),
        (("-u", "script.py"), {"LD_PRELOAD": "a.so"}, "LD_PRELOAD changed after the start of the agent"),
        (("-u", "script.py"), {"GIVEN": None}, "GIVEN changed after the start of the agent"),
        (("-u", "missing.py"), {}, "missing.py is not a readable .py file"),
        (("-u", "-c", "pass"), {}, "-c is not a readable .py file"),
        (("-u", "-m"), {}, "the command is"),
        (("script.py",), {}, "the command is"),
    ],
)
def test_the_conditions_of_a_fork(
    argv: tuple[str, ...],
    environ: dict[str, str | None],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").touch()
    given = {"GIVEN": "1"}
    changed = {name: value for name, value in {**given, **environ}.items() if value is not None}
    imported = Imported(modules=frozenset(sys.modules), environ=given, added={}, printed=b"")
    found = why_not((sys.executable, *argv), changed, imported)
    assert bool(found) == bool(reason)
    assert found.startswith(reason)


def test_a_killed_warm_process_is_started_again_and_one_without_torch_is_not(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    warm = WarmStart({**os.environ, "PYTHONPATH": str(tmp_path)}, notes.append)
    warm.prepare()
    os.kill(first := warm.pid, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    warm.prepare()
    assert warm.pid not in (0, first)
    while not warm.is_settled():
        time.sleep(processes.POLL_S)
    warm.prepare()
    assert warm.pid == 0
    assert ["no torch here" in note for note in notes] == [True]


def test_what_was_forked_for_a_request_without_an_answer_is_killed(launcher: Launcher) -> None:
    """Its ranks would otherwise meet those of the torchrun that starts in its place."""
    forks = "import os, socket, sys, time; socket.socket(fileno=int(sys.argv[1])).recv(1); os.fork() or time.sleep(600)"
    notes: list[str] = []
    warm = WarmStart(launcher.environ, notes.append)
    here, there = socket.socketpair()
    warm._control, warm._process = here, subprocess.Popen(
        [sys.executable, "-c", forks, str(there.fileno())],
        pass_fds=[there.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    there.close()
    before = {one.pid for one in processes.descendants(os.getpid())}
    assert warm.torchrun(["torchrun"], [], {}, 1, []) is None
    assert {one.pid for one in processes.descendants(os.getpid())} < before
    assert notes == ["torchrun starts without the warm process: it was killed"]


def test_whatever_is_killed_the_run_continues_and_no_process_is_left() -> None:
    assert [kill_within_a_run(name, 1) for name in KILLED] == [0, 0, 0]
    assert kill_agents(1) == 0


@pytest.mark.parametrize("options", [(), ("--no-warm-start",)])
def test_an_agent_has_a_warm_process_unless_it_is_not_wanted(options: tuple[str, ...]) -> None:
    with loopback_nodes(1, *options) as run:
        run.find("STEP 1 0 2$")
        found = [command for command in run.commands() if "warm_process.py" in command]
        (torchrun,) = [command for command in run.commands() if "trainer.agent.torchrun" in command]
        assert run.end() == [0]
    assert len(found) == (0 if options else 1)
    assert torchrun.endswith("script.py\0")
