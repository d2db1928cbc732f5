"""Supervisors of three nodes, as processes on loopback: what they start dies, freezes and fails for real.

In torchrun's place stands a script that needs no torch; with the real one they are tried in tests/lab/test_survival.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contract.failures.owners import EXIT_CODES
from contract.run_folder import AGENTS_TOKEN
from tests.strangers import Attack, attack
from trainer.agent.node_agent import ONE_WISH_S

pytestmark = pytest.mark.slow

NAMES = ("alpha", "beta", "gamma")
PACKAGES = str(Path(__file__).parents[2])
RANK = """
import os, signal, sys, time
from pathlib import Path
from trainer.agent import heartbeat
rank, generation, folder = sys.argv[1], os.environ["ORCH_GENERATION"], Path(sys.argv[2])
def leave(*_):
    if (folder / f"saving-{rank}").exists():
        os._exit(1)
    (folder / f"saving-{rank}").touch()
    time.sleep(0.5)
    (folder / f"saved-{rank}").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
heartbeat.begin(os.environ)
(folder / f"pid-{rank}-{generation}").write_text(str(os.getpid()))
print(f"rank {rank} in generation {generation}", flush=True)
def load():
    while (folder / "hold").exists():
        time.sleep(0.05)
heartbeat.step(7)
while not (folder / "enough").exists():
    if (folder / "hold").exists():
        heartbeat.part("data")
        if rank == "1":
            load()
        with heartbeat.exchange("all_reduce"):
            load()
    heartbeat.part("forward")
    if (folder / f"fail-{rank}").exists():
        raise ValueError("no such label")
    time.sleep(0.05)
"""


LAUNCHER = """
import signal, subprocess, sys
rank = subprocess.Popen([sys.executable, *sys.argv[1:]])
def leave(*_):
    rank.terminate()
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
sys.exit(rank.wait())
"""
"""Program in torchrun's place: it passes a signal on, and leaves before its rank."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass
class Node:
    """One agent, and what it wrote so far."""

    rank: int
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        data = [json.loads(line[6:]) for line in list(self.lines) if line.startswith("@orch ")]
        return [event for event in data if event["event"] == kind]

    def stands_in(self, function: str) -> bool:
        """Return whether its rank does, as its agent told last."""
        reported = self.events("stacks")[-1:]
        return any(frame.endswith(f" in {function}") for event in reported for frame in event["ranks"][0]["frames"][:1])


def wait_until(true: Callable[[], object], nodes: Iterable[Node], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, {node.rank: node.lines[-12:] for node in nodes}
        time.sleep(0.02)


@dataclass
class Lan:
    folder: Path
    port: int = field(default_factory=free_port)
    nodes: dict[int, Node] = field(default_factory=dict)
    started: list[Node] = field(default_factory=list)
    """All of them, ended ones too."""
    paths: str = PACKAGES
    launcher: str = ""
    options: tuple[str, ...] = ("--silence", "60", "--frozen", "60", "--absence", "30")

    def start(self, *ranks: int, attempt: int = 0) -> None:
        for rank in ranks or range(3):
            words = ("--nodes", ",".join(NAMES), "--node-rank", str(rank), "--first-rank", str(rank))
            where = ("--address", "127.0.0.1", "--port", str(self.port), *self.options)
            launcher = ("-c", self.launcher) if self.launcher else ()
            command = (sys.executable, *launcher, "-u", str(self.folder / "rank.py"), str(rank), str(self.folder))
            process = subprocess.Popen(
                (sys.executable, "-m", "trainer.agent", *words, *where, "--", *command),
                env={
                    **os.environ, "PYTHONPATH": self.paths, "ORCH_RUN_ID": "toy", "ORCH_ATTEMPT": str(attempt),
                    "ORCH_RUN_DIR": str(self.folder), "LOCAL_RANK": "0",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )  # fmt: skip
            self.nodes[rank] = Node(rank, process)
            self.started.append(self.nodes[rank])

    def until(self, true: Callable[[], object], timeout_s: float = 30.0) -> None:
        wait_until(true, self.nodes.values(), timeout_s)

    def until_generation(self, generation: int) -> None:
        self.until(lambda: all((self.folder / f"pid-{rank}-{generation}").exists() for rank in range(3)))

    def pid(self, rank: int, generation: int) -> int:
        self.until(lambda: (self.folder / f"pid-{rank}-{generation}").read_text())
        return int((self.folder / f"pid-{rank}-{generation}").read_text())

    def codes(self) -> list[int]:
        """Exit codes, by rank; all that the nodes have written is in `lines` then."""
        codes = [self.nodes[rank].process.wait(30) for rank in sorted(self.nodes)]
        for node in self.nodes.values():
            node.reader.join(10)  # at once, unless a process that it has left behind keeps the pipe open
        return codes

    def listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def finish(self) -> None:
        (self.folder / "enough").touch()
        assert self.codes() == [0, 0, 0], {node.rank: node.lines[-12:] for node in self.nodes.values()}


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / AGENTS_TOKEN).write_text("ab" * 32)
    lan = Lan(tmp_path)
    try:
        yield lan
    finally:
        for node in lan.started:
            node.process.kill()
            node.process.wait()
            assert node.process.stdin
            node.process.stdin.close()
        for file in tmp_path.glob("pid-*"):
            kill(int(file.read_text() or 0))
        for node in lan.started:
            node.reader.join()


def kill(process: int) -> None:
    if process:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is read
        return True


def test_all_end_well_together(lan: Lan) -> None:
    lan.start()
    lan.until_generation(1)
    lan.finish()
    assert [node.events("finished")[0]["outcome"] for node in lan.nodes.values()] == ["done"] * 3
    assert "rank 2 in generation 1" in lan.nodes[2].lines


def test_each_node_samples_its_resources(lan: Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_SAMPLE_S", "0.1")
    lan.start()
    lan.until(lambda: all(node.events("resources") for node in lan.nodes.values()))
    lan.finish()
    for rank, node in lan.nodes.items():
        reported = node.events("resources")[0]
        assert (reported["node"], reported["node_rank"]) == (NAMES[rank], rank)
        assert 0 < reported["ram_used_mib"] <= reported["ram_limit_mib"]
        saved = (lan.folder / f"resources-{rank}.jsonl").read_text().splitlines()
        assert len(saved) >= 5 * len(node.events("resources"))


def test_a_killed_rank_is_named_and_all_start_again(lan: Lan) -> None:
    lan.start()
    lan.until_generation(1)
    first = [lan.pid(rank, 1) for rank in range(3)]
    kill(first[2])
    lan.until_generation(2)
    lan.until(lambda: all(map(gone, first)))
    for node in lan.nodes.values():
        (again,) = node.events("restarting")
        assert (again["node"], again["exit_code"], again["outcome"]) == ("gamma", -9, "infrastructure")
        assert (again["reason"], again["generation"], again["restarts_left"]) == ("ended by SIGKILL", 1, 2)
    lan.finish()


def test_an_error_of_the_users_ends_all_within_seconds_and_is_not_tried_again(lan: Lan) -> None:
    lan.start()
    lan.until_generation(1)
    (lan.folder / "fail-1").touch()
    assert lan.codes() == [1, 1, 1]  # rank 0's too: no other agent is left to report to
    for node in lan.nodes.values():
        (over,) = node.events("finished")
        assert (over["node"], over["outcome"], over["reason"]) == ("beta", "user", "ValueError: no such label")
        assert over["frame"].endswith("in <module>")
    assert all(gone(lan.pid(rank, 1)) for rank in range(3))


def test_a_container_that_is_started_after_the_end_ends_at_once_alike(lan: Lan) -> None:
    lan.start()
    lan.until_generation(1)
    (lan.folder / "fail-1").touch()
    lan.codes()
    lan.start(2)
    assert lan.nodes[2].process.wait(10) == 1
    lan.until(lambda: lan.nodes[2].events("finished"))
    assert lan.nodes[2].events("finished")[0]["node"] == "beta"
    (lan.folder / "fail-1").unlink()
    lan.start(attempt=1)  # a resumed run is another attempt
    lan.until(lambda: all("rank" in " ".join(node.lines) for node in lan.nodes.values()))
    lan.finish()


@pytest.mark.parametrize("mark", ["stopped", "attempts/1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_container_of_a_run_that_was_stopped_or_continued_without_it_trains_no_more(
    lan: Lan, rank: int, mark: str
) -> None:
    """Docker starts it again with its machine, which was off at that time: rank 0's too, which decides for all."""
    if mark == "stopped":
        (lan.folder / mark).write_text("stopped by ana@desk at 2026-01-02T15:04:05+00:00\n")
    else:
        (lan.folder / mark).mkdir(parents=True)
    lan.start(rank)
    assert lan.codes() == [EXIT_CODES["stopped"]]
    (over,) = lan.nodes[rank].events("finished")
    assert over["outcome"] == "stopped"
    assert ("stopped by ana@desk" if mark == "stopped" else "attempt 1 of the run has begun") in over["reason"]
    assert not list(lan.folder.glob("pid-*"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_container_that_finds_none_of_the_others_never_trains(lan: Lan, rank: int) -> None:
    """Its run was stopped while it was away, and nothing could be written on its node."""
    lan.options = (*lan.options[:-1], "2")
    (lan.folder / "attempts/0").mkdir(parents=True)  # its own
    lan.start(rank)
    assert lan.codes() == [1]
    (over,) = lan.nodes[rank].events("finished")
    assert over["outcome"] == "infrastructure"
    assert ("did not come" if rank == 0 else "could not be reached") in over["reason"]
    assert not list(lan.folder.glob("pid-*"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_container_comes_back(lan: Lan, rank: int) -> None:
    """Rank 0's too, with the coordinator: the others wait for it, and tell it where they are."""
    lan.start()
    lan.until_generation(1)
    lan.nodes[rank].process.kill()
    kill(lan.pid(rank, 1))  # as its container would
    other = lan.nodes[2]
    lan.until(lambda: other.events("restarting"))
    assert other.events("restarting")[0]["node"] == NAMES[rank]
    lan.start(rank)
    lan.until_generation(2)
    lan.finish()


def test_a_frozen_rank_is_ended_and_all_start_again(lan: Lan) -> None:
    lan.options = (*lan.options, "--frozen", "2")
    lan.start()
    lan.until_generation(1)
    os.kill(lan.pid(1, 1), signal.SIGSTOP)
    lan.until_generation(2)
    (again,) = lan.nodes[0].events("restarting")
    assert again["node"] == "beta"
    assert again["reason"].startswith("frozen: local rank 0 sent no heartbeat for ")
    assert again["reason"].endswith(" s, nor did it answer (it is stopped)")
    assert lan.nodes[1].events("stacks")[-1]["ranks"][0]["state"] == "T"
    lan.finish()


def test_the_position_of_each_rank_is_reported_before_any_is_killed(lan: Lan) -> None:
    lan.options = (*lan.options, "--frozen", "60", "--stuck", "2")
    (lan.folder / "hold").touch()
    lan.start()
    lan.until_generation(1)
    lan.until(lambda: all(node.stands_in("load") for node in lan.nodes.values()))
    places = [node.events("stacks")[-1]["ranks"][0] for node in lan.nodes.values()]
    assert [place["rank"] for place in places] == [0, 1, 2]
    assert [place["step"] for place in places] == [7, 7, 7]
    assert [(place["part"], place.get("exchange")) for place in places] == [
        ("data", "all_reduce"), ("data", None), ("data", "all_reduce"),
    ]  # fmt: skip
    decided = lan.nodes[0].events("liveness")[-1]
    assert (decided["ranks"], decided["nodes"]) == ([1], ["beta"])
    assert decided["text"].endswith("; ranks 0, 2 are waiting for it")
    assert " at rank.py:" in decided["text"]
    assert places[1]["frames"][-1].endswith(" in <module>")
    (lan.folder / "hold").unlink()
    lan.until(lambda: lan.nodes[0].events("liveness")[-1]["rule"] == "")
    lan.finish()
    assert not lan.nodes[0].events("restarting")
    assert not any(node.events("liveness") for node in list(lan.nodes.values())[1:])


def test_a_script_that_says_nothing_of_itself_is_asked_too(lan: Lan) -> None:
    """The script does not import this package; a `sitecustomize` of its system's is still run."""
    other = lan.folder / "site"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; sys.system_was_here = True")
    (lan.folder / "rank.py").write_text(
        "import sys, time, pathlib, subprocess\n"
        "assert sys.system_was_here\n"
        "subprocess.run([sys.executable, '-c', ''], check=True)  # a child that finds the same environment\n"
        "def wait_for_a_share():\n"
        "    while not (pathlib.Path(sys.argv[2]) / 'enough').exists(): time.sleep(0.05)\n"
        "wait_for_a_share()\n"
    )
    lan.paths = f"{PACKAGES}:{other}"
    lan.options = (*lan.options, "--frozen", "60", "--stuck", "1")
    lan.start()
    lan.until(lambda: all(node.stands_in("wait_for_a_share") for node in lan.nodes.values()))
    (place,) = lan.nodes[2].events("stacks")[-1]["ranks"]
    assert (place["rank"], "step" in place) == (2, False)
    assert [frame.rpartition(" in ")[2] for frame in place["frames"]] == ["wait_for_a_share", "<module>"]
    lan.finish()


def script(lan: Lan, *lines: str) -> None:
    """A rank that knows nothing of this package; `over()` is true once the test is."""
    (lan.folder / "rank.py").write_text(
        "import os, sys, time, pathlib\n"
        "folder, rank = pathlib.Path(sys.argv[2]), sys.argv[1]\n"
        "(folder / f'pid-{rank}-{os.environ[\"ORCH_GENERATION\"]}').write_text(str(os.getpid()))\n"
        "over = lambda: (folder / 'enough').exists()\n" + "\n".join(lines)
    )


def test_a_hang_of_a_script_restarts_all_once_no_node_makes_progress(lan: Lan) -> None:
    script(
        lan,
        "while not over():",
        "    time.sleep(0.1)",
        "    if rank == '0' and not (folder / 'hold').exists(): print('a line', flush=True)",
    )
    lan.options = (*lan.options, "--frozen", "60", "--stuck", "1", "--hang", "1")
    lan.start()
    lan.until_generation(1)
    time.sleep(6)
    assert not lan.nodes[0].events("restarting")  # one rank prints
    (lan.folder / "hold").touch()
    lan.until_generation(2)
    (lan.folder / "hold").unlink()
    (again,) = lan.nodes[2].events("restarting")
    assert again["reason"].startswith("hung: no rank made progress for ")
    assert "all ranks have been sleeping for " in again["reason"]
    assert again["outcome"] == "infrastructure"
    lan.finish()


def test_a_script_that_computes_and_prints_nothing_is_neither_killed_nor_restarted(lan: Lan) -> None:
    """Rank 1 holds the interpreter in native code for seconds, as `json.loads` of a large file does."""
    script(
        lan,
        "from trainer.agent import heartbeat",
        "heartbeat.begin(os.environ)",
        "while not over():",
        "    time.sleep(0.05)",
        "    sum(range(5 * 10**7 if rank == '1' else 10**5))",
        "    (folder / f'turn-{rank}').touch()",
    )
    lan.options = (*lan.options, "--frozen", "1", "--stuck", "1", "--hang", "1")
    lan.start()
    lan.until(lambda: (lan.folder / "turn-1").exists(), 300)
    lan.finish()
    for node in lan.nodes.values():
        assert not node.events("restarting")
        assert not any(event.get("fault") for event in node.events("liveness"))


def test_a_node_that_is_silent_for_long_is_waited_for(lan: Lan) -> None:
    """Pause all processes of a node, as in a paused container or a sleeping laptop, and continue them."""
    lan.options = (*lan.options, "--silence", "3")
    lan.start()
    lan.until_generation(1)
    os.kill(lan.nodes[2].process.pid, signal.SIGSTOP)
    lan.until(lambda: lan.nodes[0].events("restarting"))
    assert lan.nodes[0].events("restarting")[0]["reason"].startswith("no word from it for ")
    assert not (lan.folder / "pid-0-2").exists()
    os.kill(lan.nodes[2].process.pid, signal.SIGCONT)
    lan.until_generation(2)
    lan.finish()


def test_all_are_asked_to_stop(lan: Lan) -> None:
    lan.start()
    lan.until_generation(1)
    for node in lan.nodes.values():
        node.process.terminate()
    assert lan.codes() == [143, 143, 143]
    assert all((lan.folder / f"saved-{rank}").exists() for rank in range(3))
    assert not list(lan.folder.glob("over-*"))  # it may continue


def test_one_is_asked_to_stop_and_the_others_wait_for_it(lan: Lan) -> None:
    """Its machine is shut down, say, and comes back."""
    lan.start()
    lan.until_generation(1)
    lan.nodes[1].process.terminate()
    assert lan.nodes[1].process.wait(10) == 143
    lan.until(lambda: lan.nodes[0].events("restarting"))
    assert lan.nodes[0].events("restarting")[0]["restarts_left"] == 3
    lan.start(1)
    lan.until_generation(2)
    lan.finish()


def test_asked_to_stop_while_it_waits(lan: Lan) -> None:
    lan.start(0)
    lan.until(lan.listens)
    lan.nodes[0].process.terminate()
    assert lan.codes() == [143]


def test_who_never_comes_is_named(lan: Lan) -> None:
    lan.options = ("--absence", "6")  # longer than a loaded computer needs to start the second of them
    lan.start(0, 1)
    assert lan.codes() == [1, 1]
    assert lan.nodes[0].events("finished")[0]["node"] == "gamma"


def test_a_run_under_attack_continues_and_takes_its_nodes_back(lan: Lan) -> None:
    """The same as `python -m benchmarks.strangers` in a lab, for seconds."""
    lan.start()
    lan.until_generation(1)
    attacks, over = list[Attack](), threading.Event()
    words = {"rate": 100, "seconds": 5, "also_while": lambda: not over.is_set()}
    attacker = threading.Thread(target=lambda: attacks.append(attack("127.0.0.1", lan.port, **words)), daemon=True)
    attacker.start()
    lan.until(lambda: any("is not a node of this run" in line for line in list(lan.nodes[0].lines)))
    assert not lan.nodes[0].events("restarting")
    lan.nodes[2].process.kill()
    kill(lan.pid(2, 1))
    lan.until(lambda: lan.nodes[0].events("restarting"))
    lan.start(2)
    lan.until_generation(2)
    assert attacker.is_alive()
    over.set()
    attacker.join()
    lan.finish()
    (became,) = attacks
    assert sum(became.begun.values()) > 300
    assert became.answers == {b'{"asked": '}
    assert len([line for line in lan.nodes[0].lines if "is not a node of this run" in line]) < 5
    assert len(lan.nodes[0].events("restarting")) == 1


def test_nodes_without_the_token_do_not_begin(lan: Lan) -> None:
    (lan.folder / AGENTS_TOKEN).unlink()
    lan.start(0, 1)
    assert lan.codes() == [3, 3]
    for node in lan.nodes.values():
        assert (
            "error: the token of this attempt, with which its nodes authenticate each other, cannot be read"
            in node.lines[-1]
        )


@pytest.mark.parametrize("launcher", ["", LAUNCHER])
def test_a_signal_to_the_whole_process_group_is_one_however_often_it_comes(lan: Lan, launcher: str) -> None:
    """A shell or a scheduler sends `kill -TERM -PGID`; also where torchrun does not wait for its ranks any more."""
    lan.launcher = launcher
    lan.start()
    lan.until_generation(1)
    for _ in range(3):
        for node in lan.nodes.values():
            os.killpg(node.process.pid, signal.SIGTERM)
        lan.until(lambda: all((lan.folder / f"saving-{rank}").exists() for rank in range(3)))
    assert lan.codes() == [143, 143, 143]
    assert sorted(path.name for path in lan.folder.glob("saved-*")) == ["saved-0", "saved-1", "saved-2"]


def test_the_end_of_stdin_is_a_request_to_stop_where_it_means_something(lan: Lan) -> None:
    """Its carrier, a docker CLI or srun, was killed, and passes on no signal."""
    lan.start(0)
    lan.options = (*lan.options, "--end-with-stdin")
    lan.start(1, 2)
    lan.until_generation(1)
    for node in lan.nodes.values():
        assert node.process.stdin
        node.process.stdin.write("what is written to it means nothing\n")
        node.process.stdin.close()
    assert [lan.nodes[rank].process.wait(30) for rank in (1, 2)] == [143, 143]
    assert sorted(path.name for path in lan.folder.glob("saved-*")) == ["saved-1", "saved-2"]
    assert all(gone(lan.pid(rank, 1)) for rank in (1, 2))
    assert lan.nodes[0].process.poll() is None
    lan.options = lan.options[:-1]
    lan.start(1, 2)
    lan.until_generation(2)
    lan.finish()


def test_the_end_of_stdin_after_a_signal_is_the_same_request_and_later_ends_at_once(lan: Lan) -> None:
    """Slurm kills the carrier 30 s after it has asked: no rank is left then, saved or not."""
    (lan.folder / "rank.py").write_text(RANK.replace("time.sleep(0.5)", "time.sleep(60)"))
    lan.options = (*lan.options, "--end-with-stdin")
    lan.start()
    lan.until_generation(1)
    for node in lan.nodes.values():
        node.process.terminate()
    lan.until(lambda: all((lan.folder / f"saving-{rank}").exists() for rank in range(3)))
    asked = time.monotonic()
    while time.monotonic() - asked < ONE_WISH_S:
        time.sleep(0.2)
        assert all(node.process.poll() is None for node in lan.nodes.values())
    for node in lan.nodes.values():
        assert node.process.stdin
        node.process.stdin.close()
    assert lan.codes() == [143, 143, 143]
    assert not any((lan.folder / f"saved-{rank}").exists() for rank in range(3))
    assert all(gone(lan.pid(rank, 1)) for rank in range(3))


def test_a_rank_that_takes_longer_to_save_is_not_ended_with_the_others(lan: Lan) -> None:
    """Rank 0 writes the checkpoint, and the others leave at once."""
    slow = 'time.sleep(4 if rank == "0" else 0.1)'
    (lan.folder / "rank.py").write_text(RANK.replace("time.sleep(0.5)", slow))
    lan.start()
    lan.until_generation(1)
    for node in lan.nodes.values():
        node.process.terminate()
    assert lan.codes() == [143, 143, 143]
    assert sorted(path.name for path in lan.folder.glob("saved-*")) == ["saved-0", "saved-1", "saved-2"]
