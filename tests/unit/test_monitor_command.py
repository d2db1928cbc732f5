"""`orch monitor` and `orch status --watch`: plain lines, JSON, exit codes, and a terminal that is sane afterwards."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.cli import build_app, monitor
from orchestrator.specs.errors import NodeUnreachableError
from tests import lan
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(orch: Orch) -> lan.Lan:
    three = lan.lan(*THREE, ends_with=None, says=(event("step", step=7, loss=2.5, final_step=70),))
    detached(orch, three)
    return three


HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \([A-Z]+\)"
"""Time of a view, in the form of the other times."""


def silence(here: lan.Lan, *names: str) -> None:
    for name in names:
        error = NodeUnreachableError("no answer in 5 s", node=name)
        here.nodes[name].answers = {("*",): error}
        here.nodes[name].engine.failures["containers"] = error


def test_once(orch: Orch, here: lan.Lan) -> None:
    ran = orch("monitor", "--once", on=here)
    lines = ran.out.splitlines()
    assert ran.code == 0, ran.err
    assert re.fullmatch(HEAD, lines[0])
    assert re.fullmatch(r"run first-\w+  running", lines[1])
    assert "7/70" in lines[2]
    assert [line.split()[:4] for line in lines if "running" in line][1:] == [
        [str(rank), name, "running", "25"] for rank, name in enumerate(THREE)
    ]
    assert "\x1b" not in ran.out
    assert max(map(len, lines)) < monitor.PIPE_COLUMNS


def test_once_without_a_run(orch: Orch) -> None:
    ran = orch("monitor", "--once", on=lan.lan(*THREE))
    assert ran.code == 0
    assert ran.out.splitlines()[1] == "no run  3 of 3 nodes answer"


def test_once_some_do_not_answer(orch: Orch, here: lan.Lan) -> None:
    silence(here, "gamma")
    ran = orch("monitor", "--once", on=here)
    assert ran.code == 5
    assert "note: gamma does not answer: no answer in 5 s" in ran.err
    assert re.search(r"gamma +no answer", ran.out)


@pytest.mark.parametrize("form", ["--json", "-o json"])
def test_json_is_one_object_on_a_line(orch: Orch, here: lan.Lan, form: str) -> None:
    ran = orch("monitor", "--once", *form.split(), on=here)
    (line,) = ran.out.splitlines()
    data = json.loads(line)
    assert data["run"]["step"] == 7
    assert [node["name"] for node in data["nodes"]] == list(THREE)
    assert data["nodes"][1]["usage"]["ram_limit_mib"] == 16000


def test_chosen_nodes(orch: Orch, here: lan.Lan) -> None:
    data = json.loads(orch("monitor", "--once", "--json", "-n", "!beta", on=here).out)
    assert [node["name"] for node in data["nodes"]] == ["alpha", "gamma"]
    assert data["run"]["state"] == "running"  # beta's rank is not lost


def test_no_such_run(orch: Orch, here: lan.Lan) -> None:
    ran = orch("monitor", "nowhere", "--once", on=here)
    assert (ran.code, ran.out) == (3, "")
    assert "no run nowhere" in ran.err


def test_plain_lines_are_repeated_until_it_is_interrupted(
    orch: Orch, here: lan.Lan, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def rest(seconds: float) -> None:
        waits.append(seconds)
        if waits.count(7.0) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.time, "sleep", rest)
    monkeypatch.setitem(monitor._lines.__kwdefaults__, "rest", rest)
    ran = orch("monitor", "--interval", "7", on=here)
    assert ran.code == 130
    assert ran.out.count("running\n") >= 3


@pytest.mark.parametrize(
    ("words", "value"),
    [(("--watch",), 2.0), (("--watch", "5"), 5.0), (("--watch", "gpt2-a3f9"), 2.0), (("--watch", "--json"), 2.0)],
)
def test_the_seconds_of_watch_may_be_left_out(words: tuple[str, ...], value: float) -> None:
    from orchestrator.cli import _current_names

    command = build_app("status").commands["status"]
    with command.make_context("status", _current_names(["status", *words])[1:]) as context:
        assert context.params["watch"] == value
        assert context.params["run"] == ("gpt2-a3f9" if "gpt2-a3f9" in words else None)


def test_status_is_watched_until_the_run_ends(orch: Orch, here: lan.Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def end(seconds: float) -> None:
        looks.append(seconds)
        for node in here.nodes.values():
            for container in list(node.engine.made):
                node.engine.finish(container, 0)

    monkeypatch.setattr("orchestrator.cli.status.time.sleep", end)
    ran = orch("status", "--watch", "3", on=here)
    assert (ran.code, looks) == (0, [3.0])
    assert re.findall(r"run first-\w+  (\w+)", ran.out) == ["running", "succeeded"]
    assert len(re.findall(f"^{HEAD}$", ran.out, re.M)) == 2


def test_status_watch_outlives_a_look_that_fails(orch: Orch, here: lan.Lan, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [node.engine for node in here.nodes.values()]
    acts: Iterator[object] = iter(
        [
            lambda: [engine.failures.update(containers=NodeUnreachableError("cut", node="x")) for engine in engines],
            lambda: [engine.failures.clear() for engine in engines],
            lambda: [engine.finish(id, 1) for engine in engines for id in list(engine.made)],
        ]
    )
    monkeypatch.setattr("orchestrator.cli.status.time.sleep", lambda _seconds: next(acts)())  # type: ignore[operator]
    ran = orch("status", "--watch", on=here)
    assert ran.code == 1
    assert "cut" in ran.err


# ── A real terminal ───────────────────────────────────────────────────────────────────────────────────────────────────

INVENTORY = "nodes:\n  alpha: {address: 127.0.0.11, engine: process}\n  beta: {address: 127.0.0.12, engine: process}\n"


class Terminal:
    """A terminal with `orch monitor` on it."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process, self.ours, self.seen = process, ours, b""

    def until(self, *words: bytes, times: int = 1, timeout_s: float = 60) -> bytes:
        """All that was written, once it holds each of these words so many times."""
        deadline = time.monotonic() + timeout_s
        while not all(self.seen.count(word) >= times for word in words):
            assert time.monotonic() < deadline, self.seen[-3000:]
            if select.select([self.ours], [], [], 0.2)[0]:
                with suppress(OSError):
                    self.seen += os.read(self.ours, 65536)
        return self.seen

    def end(self) -> int:
        """The exit code; what is written meanwhile is read."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.ours], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.seen += os.read(self.ours, 65536)
        with suppress(OSError):
            while select.select([self.ours], [], [], 0.2)[0] and (chunk := os.read(self.ours, 65536)):
                self.seen += chunk
        return self.process.wait(1)


@contextmanager
def terminal(folder: Path, *words: str, columns: int = 100, **variables: str) -> Iterator[Terminal]:
    (folder / "inventory.yaml").write_text(INVENTORY)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns)) if hasattr(termios, "tcsetwinsize") else None
    saved = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        (sys.executable, "-m", "orchestrator", "monitor", "-i", "inventory.yaml", *words),
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**saved, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables},
    )  # fmt: skip
    try:
        yield Terminal(process, ours)
        # The mode of the terminal is the one that it had.
        assert termios.tcgetattr(theirs)[3] & (termios.ECHO | termios.ICANON) == termios.ECHO | termios.ICANON
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


ALTERNATE, NORMAL, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def sane(seen: bytes) -> bool:
    """Return whether the screen before is back, with its cursor, and the mouse is no longer reported."""
    ended = seen[seen.rindex(NORMAL) :] if NORMAL in seen else b""
    return bool(ended) and CURSOR in seen[seen.rindex(ALTERNATE) :] and b"\x1b[?1000h" not in ended


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_keys_end_it_and_leave_a_sane_terminal(tmp_path: Path, key: bytes) -> None:
    with terminal(tmp_path) as shown:
        shown.until(ALTERNATE, b"alpha", b"beta", b"idle")
        os.write(shown.ours, key)
        assert shown.end() == (0 if key == b"q" else 130)
        assert sane(shown.seen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_a_sane_terminal(tmp_path: Path, number: signal.Signals) -> None:
    with terminal(tmp_path) as shown:
        shown.until(ALTERNATE, b"alpha", b"idle")
        shown.process.send_signal(number)
        assert shown.end() == 130
        assert sane(shown.seen)


def test_a_shell_takes_the_terminal_and_gives_it_back(tmp_path: Path) -> None:
    with terminal(tmp_path, SHELL="/bin/sh", PS1="") as shown:
        shown.until(ALTERNATE, b"alpha", b"idle")
        os.write(shown.ours, b"s")
        shown.until(NORMAL)
        time.sleep(0.5)
        os.write(shown.ours, b"echo from-$((40 + 2)); exit\n")
        shown.until(b"from-42")
        shown.until(ALTERNATE, times=2)
        os.write(shown.ours, b"q")
        assert shown.end() == 0
        assert sane(shown.seen)


def test_without_colour(tmp_path: Path) -> None:
    with terminal(tmp_path, NO_COLOR="1") as shown:
        shown.until(ALTERNATE, b"alpha", b"idle")
        os.write(shown.ours, b"q")
        assert shown.end() == 0
    colours = set(re.findall(rb"\x1b\[[0-9;]*m", shown.seen))
    assert {one for one in colours if re.search(rb"[\[;](3[1-6]|9[1-6]|4[1-6])[;m]", one)} == set()


@pytest.mark.parametrize(
    "variables", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_terminals_that_take_no_screen_have_plain_lines(tmp_path: Path, variables: dict[str, str]) -> None:
    with terminal(tmp_path, "--interval", "0.2", columns=40, **variables) as shown:
        seen = shown.until(b"no run", b"2 of 2 nodes answer", b"idle")
        assert ALTERNATE not in seen
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 130
