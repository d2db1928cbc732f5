"""Classification of an end: recorded output of torchrun and of ranks, and the class that follows."""

from __future__ import annotations

import errno
from dataclasses import asdict
from pathlib import Path

import pytest

from trainer.agent.rank_exit import RankExit, classify_exception, from_values, read_rank_exit, root_cause
from trainer.errors import ConfigurationError, OptionError, TrainerError

RECORDED = Path(__file__).parents[1] / "fixtures" / "torchrun"


def summary(rank: int, code: int) -> list[str]:
    return [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-01-02_15:04:05",
        "  host      : alpha",
        f"  rank      : {rank} (local_rank: 0)",
        f"  exitcode  : {code} (pid: 77)",
    ]


def end(*lines: str, code: int = 1, frozen: str = "") -> RankExit:
    return read_rank_exit("beta", code, lines, first_rank=2, frozen=frozen)


@pytest.mark.parametrize(
    ("name", "kind", "code", "because"),
    [
        ("sigkill__node1", "infrastructure", -9, False),
        ("sigkill__node0", "infrastructure", 1, True),
        ("sigterm__node0", "infrastructure", 1, True),
        ("exit3__node0", "infrastructure", 1, True),
    ],
)
def test_recorded_by_torchrun(name: str, kind: str, code: int, because: bool) -> None:
    found = end(*(RECORDED / f"{name}.log").read_text("utf-8").splitlines())
    assert (found.outcome, found.exit_code, found.because_of_others) == (kind, code, because), found


COMPLAINT = (
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/workspace/code/board.py", line 7, in flush',
    "[rank3]: OSError: [Errno 28] No space left on device",
    "[rank3]: [W socket.cpp:200] the exporter's port: Address already in use",
)


def test_what_a_rank_once_complained_of_is_not_what_ended_it() -> None:
    last = ("[rank3]: Traceback (most recent call last):", "[rank3]: KeyError: 'label'")
    found = end(*COMPLAINT, *last, *summary(3, 1))
    assert (found.outcome, found.reason) == ("user", "KeyError: 'label'")
    lost = ("[rank3]: Traceback (most recent call last):", "[rank3]: RuntimeError: Connection closed by peer")
    found = end(*COMPLAINT, *lost, *summary(3, 1))
    assert (found.outcome, found.because_of_others) == ("infrastructure", True)


def test_what_a_traceback_followed_from_counts() -> None:
    begun = ("[rank3]: Traceback (most recent call last):", "[rank3]: OSError: [Errno 98] Address already in use")
    chain = ("[rank3]: ", "[rank3]: During handling of the above exception, another exception occurred:", "[rank3]: ")
    last = ("[rank3]: Traceback (most recent call last):", "[rank3]: RuntimeError: no store")
    assert end(*begun, *chain, *last, *summary(3, 1)).cause == "network.socket_taken"
    assert end(*begun, *last, *summary(3, 1)).cause == "code.exception"
    lost = (last[0], "[rank3]: RuntimeError: Connection closed by peer")
    found = end(*COMPLAINT[:3], *chain, *lost, *summary(3, 1))
    assert (found.outcome, found.because_of_others) == ("configuration", False)


def test_what_threads_and_destructors_say_afterwards_is_not_what_ended_it() -> None:
    begun = "[rank3]: Traceback (most recent call last):"
    full = (
        begun,
        '[rank3]:   File "train.py", line 3, in save',
        "[rank3]: OSError: [Errno 28] No space left on device",
    )
    thread = (
        "[rank3]: Exception in thread Thread-3 (_pin_memory_loop):",
        begun,
        "[rank3]: ConnectionResetError: [104]",
    )
    found = end(*full, *thread, *summary(3, 1))
    assert (found.outcome, found.because_of_others, found.frame) == ("configuration", False, "train.py:3 in save")
    assert found.reason.endswith("No space left on device")
    taken = (f"[rank3]:  10%|█ | 1/10 [..]{begun[9:]}", "[rank3]: DistNetworkError: port: 29500, name: EADDRINUSE")
    bar = ("[rank3]: Exception ignored in: <function tqdm.__del__ at 0x7f>", begun, "[rank3]: TypeError: no")
    assert end(*taken, *bar, *summary(3, 1)).outcome == "infrastructure"


def test_of_two_failures_on_a_node_the_first_is_its_own() -> None:
    line = '@orch {{"event": "failed", "t": {t}, "rank": {rank}, "class": "{kind}", "error": "E", "message": "{said}"}}'
    lost = line.format(t=12.5, rank=2, kind="infrastructure", said="Connection closed by peer")
    cause = line.format(t=12.0, rank=3, kind="user", said="no such label")
    assert end(f"[rank2]: {lost}", f"[rank3]: {cause}").reason == "E: no such label"


def test_a_good_end() -> None:
    assert end(code=0).outcome == "done"


def test_a_trainers_own_word_counts_most() -> None:
    event = '@orch {"event": "failed", "rank": 3, "owner": "configuration", "error": "ConfigurationError"'
    found = end(f'[rank3]: {event}, "message": "no data", "frame": "feed.py:7 in take"}}', *summary(3, 3))
    assert (found.outcome, found.rank, found.reason) == ("configuration", 3, "ConfigurationError: no data")
    assert found.frame == "feed.py:7 in take"


@pytest.mark.parametrize("at", ["9" * 400, "-1", "Infinity", "NaN", '"now"', "[" * 100_000])
def test_an_event_that_a_script_made_up_ends_no_agent(at: str) -> None:
    events = [f'[rank2]: @orch {{"event": "failed", "t": {at}, "class": "user", "message": "no"}}'] * 2
    assert read_rank_exit("beta", 1, events, first_rank=2).outcome in ("user", "infrastructure")


def test_a_trainer_that_lost_its_peers_is_no_cause() -> None:
    message = "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.13]:4711"
    event = f'@orch {{"event": "failed", "rank": 2, "class": "infrastructure", "error": "E", "message": "{message}"}}'
    found = end(f"[rank2]: {event}", *summary(2, 1))
    assert (found.outcome, found.because_of_others) == ("infrastructure", True)


def test_a_script_of_the_users_is_read_by_its_traceback() -> None:
    found = end(
        "[rank2]: [rank2]: Traceback (most recent call last):",
        '[rank2]: [rank2]:   File "/workspace/runs/x/code/train.py", line 12, in main',
        "[rank2]: [rank2]:     raise ValueError('no such label')",
        "[rank2]: [rank2]: ValueError: no such label",
        *summary(2, 1),
    )
    assert (found.outcome, found.rank, found.reason) == ("user", 2, "ValueError: no such label")
    assert found.frame == "/workspace/runs/x/code/train.py:12 in main"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("OSError: [Errno 28] No space left on device", "configuration"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE", "infrastructure"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "user"),
        ("RuntimeError: Application timeout caused pair closure", "infrastructure"),
    ],
)
def test_other_last_lines(message: str, kind: str) -> None:
    assert end(f"[rank2]: {message}", *summary(2, 1)).outcome == kind


def test_words_that_argparse_refuses() -> None:
    found = end(
        "[rank2]: usage: train.py [-h]", "[rank2]: train.py: error: unrecognized arguments: --lrr", *summary(2, 2)
    )
    assert (found.outcome, found.reason) == ("configuration", "train.py: error: unrecognized arguments: --lrr")


def test_a_frozen_rank_is_named_by_who_killed_it() -> None:
    found = end(*summary(2, -9), frozen="frozen: local rank 0 sent no heartbeat for 61 s")
    assert (found.outcome, found.reason.split(":")[0], found.because_of_others) == ("infrastructure", "frozen", False)


def test_no_rank_was_started() -> None:
    found = end("torch.distributed.DistNetworkError: Timed out waiting for clients. 1/2 clients joined.")
    assert (found.outcome, found.because_of_others, found.rank) == ("infrastructure", True, 2)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OptionError("x"), "configuration"),
        (ConfigurationError("x"), "configuration"),
        (TrainerError("loss is not a number"), "user"),
        (OSError(errno.ENOSPC, "No space left on device"), "configuration"),
        (OSError(errno.EIO, "Input/output error"), "infrastructure"),
        (RuntimeError("Connection reset by peer"), "infrastructure"),
        (RuntimeError("CUDA out of memory"), "user"),
        (KeyError("label"), "user"),
    ],
)
def test_class_of_an_exception(error: Exception, kind: str) -> None:
    assert classify_exception(error).owner == kind


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, "configuration"), (errno.EDQUOT, "configuration"), (errno.EIO, "infrastructure")],
)
def test_a_disk_that_fails_is_the_class_of_what_could_not_be_written(number: int, kind: str) -> None:
    """torch's writer, and our own words, put errors of theirs before the disk's."""
    error, torchs = TrainerError("the checkpoint of step 4 cannot be written"), RuntimeError("unexpected pos 704")
    torchs.__context__ = OSError(number, "of the disk")
    error.__cause__ = torchs
    assert classify_exception(error).owner == kind
    lost = RuntimeError("Connection reset by peer")
    lost.__cause__ = error
    assert classify_exception(lost).owner == kind


def test_the_cause_is_what_a_person_must_fix_then_what_broke_by_itself() -> None:
    lost = RankExit(outcome="infrastructure", node="alpha", because_of_others=True)
    killed = RankExit(outcome="infrastructure", node="beta")
    own = RankExit(outcome="user", node="gamma")
    assert root_cause([lost, killed]) == killed
    assert root_cause([lost, killed, own]) == own
    assert root_cause([RankExit(outcome="stopped", node="alpha"), lost]) == lost


def test_it_travels() -> None:
    rank_exit = RankExit(outcome="user", node="beta", rank=1, exit_code=1, reason="x", frame="y")
    assert from_values({**asdict(rank_exit), "newer": 1}) == rank_exit


@pytest.mark.parametrize("values", [{}, {"outcome": "odd", "node": "a"}, {"outcome": "user", "node": 3}])
def test_what_is_no_ending_is_refused(values: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        from_values(values)
