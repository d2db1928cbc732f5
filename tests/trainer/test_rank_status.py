"""The status that a rank writes of itself, without a line of its program, and what its agent reads of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.each_case import failures_of
from trainer.agent.rank_signs import RankSignsReader
from trainer.agent.rank_status import FOLDER
from trainer.agent.status_files import LONGEST, read_statuses

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time, resource
from pathlib import Path
from trainer.agent import heartbeat, rank_status
rank_status.EVERY_S = 0.05
heartbeat.begin(os.environ)
place = Path(os.environ["ORCH_BEATS"]) / f"{os.getpid()}.status"
while not (place.exists() and place.stat().st_size):
    time.sleep(0.01)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a disk that is full
while place.exists():
    time.sleep(0.01)
print("continued", flush=True)
"""


def test_a_rank_that_cannot_write_its_status_removes_it(tmp_path: Path) -> None:
    environment = {**os.environ, FOLDER: str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "LOCAL_RANK": "0"}
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert "continued" in done.stdout, done.stderr
    assert "this rank reports no status any more: OSError: " in done.stderr
    assert RankSignsReader(tmp_path, "alpha", 0, 5.0).final(0) == ()


AT_START = ROOT / "trainer" / "agent" / "at_start"
ONE_RANK = """
import json, os, sys, threading, time
def status():
    with open(f"{os.environ['ORCH_BEATS']}/{os.getpid()}.status") as file:
        return json.loads(file.readline())
assert not [name for name in sys.modules if name.partition(".")[0] in ("trainer", "contract")]
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.Linear(10, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train():
    for _ in range(40):
        dist.all_reduce(model.weight.detach().clone())
        optimizer.step()
    while (now := status())["looked_at"] != 30 or now["optimizer_steps"] != 40 or now["groups"].get("0") != [40, 40]:
        time.sleep(0.05)
train()
print(json.dumps(status()))
"""


def started(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A Python that starts as a rank's does."""
    paths = os.pathsep.join((str(AT_START), str(ROOT)))
    environment = {**os.environ, FOLDER: str(tmp_path), "PYTHONPATH": paths, "LOCAL_RANK": "1", "RANK": "5", **more}
    return subprocess.run(
        (sys.executable, *words), env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_rank_that_knows_nothing_of_this_package_writes_its_work(tmp_path: Path) -> None:
    program = tmp_path / "one_rank.py"
    program.write_text(ONE_RANK)
    done = started(tmp_path, str(program), str(tmp_path / "store"), WORLD_SIZE="6")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["rank"], status["world"], status["optimizer_steps"]) == (5, 6, 40)
    assert (status["groups"], status["in_group"], status["gpu"]) == ({"0": [40, 40]}, True, False)
    assert (status["parameter"], status["largest"], status["looked_at"]) == (40, 40, 30)
    assert status["line"].startswith("one_rank.py:")
    (last,) = RankSignsReader(tmp_path, "beta", 4, 5.0).final(3)  # written at the end of the program
    assert (last.rank, last.node, last.optimizer_steps, last.completed, last.lines) == (5, "beta", 40, 40, 3)


def test_a_group_that_a_script_destroys_at_its_end_was_there(tmp_path: Path) -> None:
    program = tmp_path / "one_rank.py"
    program.write_text(f"{ONE_RANK}dist.destroy_process_group()\n")
    done = started(tmp_path, str(program), str(tmp_path / "store"), WORLD_SIZE="6")
    assert done.returncode == 0, done.stderr
    (last,) = RankSignsReader(tmp_path, "beta", 4, 5.0).final(3)
    assert (last.joined, last.in_group, last.optimizer_steps) == (True, False, 40)


def test_a_program_without_torch_or_without_our_start_writes_nothing(tmp_path: Path) -> None:
    """No thread runs besides those that it starts."""
    program = "import threading; print(threading.active_count())"
    for words in (("-c", program), ("-I", "-c", program)):
        done = started(tmp_path, *words)
        assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
    assert list(tmp_path.glob("*.status")) == []


def test_a_process_that_outlives_its_agent_prints_nothing(tmp_path: Path) -> None:
    for program in (
        "import torch.distributed",
        "import os; from trainer.agent import heartbeat; heartbeat.begin(os.environ)",
    ):
        done = started(tmp_path / "gone", "-c", program)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def written(tmp_path: Path, process: int, **more: object) -> None:
    usual = {"process": process, "parent": 1, "at": 0.0, "rank": 1, "world": 2, "in_group": True, "line": "a.py:1 in f"}
    (tmp_path / f"{process}.status").write_text(json.dumps({**usual, **more}))


def test_a_worker_that_inherits_the_variables_is_not_taken_for_its_rank(tmp_path: Path) -> None:
    written(tmp_path, 10, optimizer_steps=7)
    written(tmp_path, 11, in_group=False, parent=10)
    written(tmp_path, 12, rank=None, local_rank="")  # torchrun itself
    (found,) = RankSignsReader(tmp_path, "beta", 0, 5.0).final(0)
    assert (found.process, found.optimizer_steps) == (10, 7)


def test_a_status_is_bounded_whatever_its_program_writes(tmp_path: Path) -> None:
    """A rank is the user's program, which may write any file there."""

    def check(values: object) -> None:
        text = values if isinstance(values, str) else json.dumps(values)
        (tmp_path / "9.status").write_text(text)
        for found in RankSignsReader(tmp_path, "beta", 0, 5.0).final(0):
            assert len(found.line) <= LONGEST
            assert found.node == "beta"
            assert isinstance(found.optimizer_steps, int)

    usual = {"process": 9, "at": 0.0, "rank": 1}
    cases: list[object] = [
        "", "{", "[" * 50_000, "null", "7", '{"rank": 1e999}', "x" * 10**6, [1], usual,
        {**usual, "line": "x" * 10_000, "node": "alpha"}, {**usual, "rank": -1}, {**usual, "rank": "1"},
        {**usual, "rank": True}, {**usual, "at": "now"}, {**usual, "groups": {"0": [1]}}, {**usual, "groups": [1]},
        {**usual, "groups": {"0": [1, "x"]}}, {**usual, "optimizer_steps": 1.5}, {**usual, "cpu": "x"},
        {**usual, "libraries": ["x" * 1000] * 100},
        {**usual, "store_port": "9" * 5000}, {**usual, "local_rank": "9" * 5000},
    ]  # fmt: skip
    assert failures_of(check, ((case,) for case in cases)) == []


def test_the_process_of_a_rank_is_read_from_the_kernel(tmp_path: Path) -> None:
    """One that computes, and one that sleeps; both have no status, as with `python -I`."""
    reader = RankSignsReader(tmp_path, "beta", 4, 0.1)
    programs = ("while True: pass", "import time; time.sleep(600)")
    ranks = [
        subprocess.Popen((sys.executable, "-I", "-c", program), env={**os.environ, "LOCAL_RANK": str(local_rank)})
        for local_rank, program in enumerate(programs)
    ]
    try:
        deadline = time.monotonic() + 120
        while True:
            found = {one.rank: one for one in reader.read(0)}
            if len(found) == 2 and (found[4].cpu or 0) > 0.05 and found[5].stood_s > 1:
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        assert found[4].age_s is None
        assert found[4].stood_s == 0
        assert found[5].sleeps or not Path(f"/proc/{os.getpid()}/wchan").read_text().strip("0")
        slept = found[5].sleeps
        ranks[1].send_signal(signal.SIGSTOP)  # as any signal, it interrupts the sleep
        os.waitpid(ranks[1].pid, os.WUNTRACED)
        assert {one.rank: one.sleeps for one in reader.read(0)}[5] is slept
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_statuses_of_ended_processes_displace_no_live_one(tmp_path: Path) -> None:
    for process in range(1000, 1300):
        written(tmp_path, process, in_group=True, optimizer_steps=500)
    written(tmp_path, 57, in_group=False, optimizer_steps=3)
    (found,) = read_statuses(tmp_path, 0, 2.0, live=[57])
    assert (found.process, found.optimizer_steps) == (57, 3)


def test_a_status_that_no_rank_would_write_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, 1, at=10**400)
    (tmp_path / "2.status").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "3.status")
    written(tmp_path, 4, groups={f"{number:03}" * 40: [1, 1] for number in range(100)})
    (found,) = read_statuses(tmp_path, 0, 2.0)
    assert (found.process, len(found.groups) <= 64, max(map(len, found.groups))) == (4, True, 64)
