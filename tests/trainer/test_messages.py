"""Rejection of what does not fit a message, whichever agent sends it: one table of both directions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contract.rank_signs import RankSigns
from contract.result_files import COPY_LIMIT_BYTES, MAX_FILES, ResultFile, ResultFiles, bounded
from tests.each_case import failures_of
from trainer.agent.coordinator import CopyFiles, EndRun, ReportStacks, RestartRanks, StartRanks
from trainer.agent.handshake import SHORTEST, Greeting, read_asked, read_greeting, read_welcome
from trainer.agent.messages import (
    MAX_GENERATIONS,
    MisfitError,
    Ping,
    RanksEnded,
    Ready,
    SignsReport,
    as_message,
    read_order,
    read_paths,
    read_report,
)
from trainer.agent.rank_exit import LONGEST, RankExit
from trainer.agent.wire import AgentConnection

NAMES = ("alpha", "beta")
TOKEN = b"5" * SHORTEST
RANK_EXIT = RankExit(outcome="user", node="beta", rank=1, exit_code=-9, reason="ValueError: ñ 🙂", frame="a.py:3 in f")
SIGNS = RankSigns(
    rank=3, node="beta", process=77, world=4, age_s=0.4, optimizer_steps=1204, groups={"0": (156, 155)}, in_group=True,
    line="train.py:88 in evaluate", cpu=0.98, io_bytes_s=1e6, state="R", lines=10,
)  # fmt: skip
RESULTS = ResultFiles(files=(ResultFile(path="code/ñ.pt", size=2**30, modified_us=1, copied=True),), complete=False)
MANY = bounded([ResultFile(path=f"{number}{'é' * 390}", size=1, modified_us=1) for number in range(MAX_FILES)])
LONG = RankExit(outcome="user", node="beta", reason="\x1b" * LONGEST, frame="🙂" * LONGEST)


def line(values: Any) -> bytes:
    return json.dumps(values).encode()


def rank_exit(**values: Any) -> dict[str, Any]:
    return {"outcome": "user", "node": "beta", **values}


@pytest.mark.parametrize(
    "report",
    [
        Ready(generation=3),
        Ready(generation=3, results=RESULTS),
        Ready(generation=3, results=MANY),
        RanksEnded(rank_exit=RANK_EXIT),
        RanksEnded(rank_exit=LONG),
        SignsReport(generation=2, signs=(SIGNS, replace(SIGNS, rank=1))),
        SignsReport(generation=2, signs=()),
        Ping(),
    ],
)
def test_a_report_arrives_as_it_was(report: Ready | RanksEnded | SignsReport | Ping) -> None:
    sent = line(as_message(report))
    assert read_report(sent, NAMES) == report
    assert len(sent) < AgentConnection.LONGEST


@pytest.mark.parametrize(
    "order",
    [
        StartRanks(generation=1, port=12360),
        ReportStacks(),
        EndRun(rank_exit=RANK_EXIT),
        Ping(),
        CopyFiles(node_rank=1, files=RESULTS.files),
        CopyFiles(node_rank=1, files=RESULTS.files, upload=True),
        RestartRanks(generation=2, cause=RANK_EXIT, restarts_left=-1, pause_s=0.5),
    ],
)
def test_an_order_arrives_as_it_was(
    order: StartRanks | RestartRanks | CopyFiles | EndRun | ReportStacks | Ping,
) -> None:
    assert read_order(line(as_message(order)), NAMES) == order


ANY = (
    b"", b"[1]", b"7", b'"start"', b"null", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a": ' * 20_000, b"{}",
    b'{"ready": NaN}', b'{"start": []}', b'{"start": {}, "end": {}}', b'{"order": []}', b'{"shell": {"run": "ls"}}',
    b"[" + b"9" * 5000 + b"]",
)  # fmt: skip
RANK_EXITS: tuple[Any, ...] = (
    7, None, [], {}, {"outcome": "user"}, rank_exit(outcome="fine"), rank_exit(outcome=[]), rank_exit(outcome=None),
    rank_exit(node="mallory"), rank_exit(node=["beta"]), rank_exit(rank="0"), rank_exit(rank=2**40),
    rank_exit(rank=True), rank_exit(exit_code=1.5), rank_exit(reason=7), rank_exit(reason="x" * (LONGEST + 1)),
    rank_exit(frame=None), rank_exit(because_of_others=1),
)  # fmt: skip
WRONG_GENERATIONS = (
    "Infinity",
    "-Infinity",
    "NaN",
    "1e300",
    "-1",
    "1.0",
    "true",
    '"1"',
    "null",
    "[1]",
    "9" * 400,
    "9" * 5000,
)


@pytest.mark.parametrize("text", ANY)
def test_what_is_no_message_is_none(text: bytes) -> None:
    for read in (read_report, read_order):
        with pytest.raises(MisfitError):
            read(text, NAMES)
    for hear in (lambda: read_asked(text), lambda: read_greeting(text, "0" * 32, 2, TOKEN)):
        with pytest.raises(MisfitError):
            hear()


@pytest.mark.parametrize("values", RANK_EXITS)
def test_what_is_not_a_rank_exit_ends_nothing(values: Any) -> None:
    with pytest.raises(MisfitError):
        read_report(line({"ended": {"rank_exit": values}}), NAMES)
    with pytest.raises(MisfitError):
        read_order(line({"end": {"rank_exit": values}}), NAMES)
    with pytest.raises(MisfitError):
        read_order(line({"restart": {"generation": 1, "cause": values, "restarts_left": 1, "pause_s": 0}}), NAMES)


@pytest.mark.parametrize("generation", [*WRONG_GENERATIONS, str(MAX_GENERATIONS + 1)])
def test_a_generation_is_a_small_whole_number(generation: str) -> None:
    for text in ('{"ready": {"generation": %s}}', '{"start": {"generation": %s}}'):
        with pytest.raises(MisfitError):
            (read_report if "ready" in text else read_order)((text % generation).encode(), NAMES)


@pytest.mark.parametrize("pause", ["Infinity", "1e300", "-1", '"x"', "null", "true"])
def test_a_pause_is_a_time(pause: str) -> None:
    again = json.dumps({"restart": {"generation": 1, "cause": rank_exit(), "restarts_left": 1, "pause_s": "P"}})
    with pytest.raises(MisfitError):
        read_order(again.replace('"P"', pause).encode(), NAMES)


@pytest.mark.parametrize("rank", ["Infinity", "NaN", "1e300", "0", "2", "-1", "true", '"1"', "null", "9" * 400])
def test_a_greeting_is_of_another_node_of_the_run(rank: str) -> None:
    """Signed as it has to be: a node of the run is held to the same bounds."""
    asked, drawn = "0" * 32, "1" * 32
    number = json.loads(rank)
    reported = Greeting(run="r.0", node_rank=number, asked=asked, drawn=drawn).as_message(TOKEN)
    with pytest.raises(MisfitError, match=r"node_rank|not JSON"):
        read_greeting(json.dumps(reported).replace("1e+300", rank).encode(), asked, 2, TOKEN)


def test_a_proof_holds_for_what_it_was_asked_for_alone() -> None:
    greeting = Greeting(run="r.0", node_rank=1, asked="0" * 32, drawn="1" * 32)
    reported = greeting.as_message(TOKEN)
    assert TOKEN.decode() not in json.dumps(reported)
    assert read_greeting(line(reported), "0" * 32, 2, TOKEN) == greeting
    for asked, changed, token in (
        ("2" * 32, {}, TOKEN),  # said before, on another connection
        ("0" * 32, {"run": "r.1"}, TOKEN),
        ("0" * 32, {"drawn": "2" * 32}, TOKEN),
        ("0" * 32, {"proof": "0" * 64}, TOKEN),
        ("0" * 32, {}, b"6" * SHORTEST),
    ):
        with pytest.raises(MisfitError, match="does not have the token"):
            read_greeting(line({**reported, **changed}), asked, 2, token)
    assert read_greeting(line({**reported}), "0" * 32, 3, TOKEN).node_rank == 1
    with pytest.raises(MisfitError, match="does not have the token"):
        read_greeting(line({**reported, "node_rank": 2}), "0" * 32, 3, TOKEN)
    with pytest.raises(MisfitError, match="does not have the token"):  # a node's own proof, sent back to it
        read_welcome(line({"proof": greeting.signed(TOKEN, "node")}), greeting, TOKEN)
    read_welcome(line({"proof": greeting.signed(TOKEN, "coordinator")}), greeting, TOKEN)


def test_a_file_that_is_never_copied_is_in_no_message() -> None:
    """Names by a hostile node in its list, by a hostile coordinator in its order, by either on the stream of files."""

    def refused(values: Any) -> None:
        files = {"files": values}
        for hear in (
            lambda: read_report(line({"ready": {"generation": 1, "results": files}}), NAMES),
            lambda: read_order(line({"copy": {"node_rank": 1, **files}}), NAMES),
        ):
            with pytest.raises(MisfitError):
                hear()

    good = {"path": "code/last.pt", "size": 1, "modified_us": 1}
    names = ("../x", "code/train2.py", "code/json.py", "/etc/passwd", "agents.token", "code/x.so", "over-1.json", 7)
    cases = [7, "code/a", [7], [{}], [good] * (MAX_FILES + 1), *([{**good, "path": name}] for name in names)]
    assert failures_of(refused, [(case,) for case in cases]) == []
    for paths in (7, [7], ["code/json.py"], ["code/a"] * (MAX_FILES + 1)):
        with pytest.raises(MisfitError):
            read_paths({"wanted": paths}, "wanted")
    for order in (
        {"node_rank": 1, "files": [{**good, "size": COPY_LIMIT_BYTES + 1}]},
        {"node_rank": 0, "files": [good]},
        {"node_rank": 2, "files": [good]},
    ):
        with pytest.raises(MisfitError):
            read_order(line({"copy": order}), NAMES)


def test_a_proof_for_messages_is_none_for_files() -> None:
    greeting = Greeting(run="r.0", node_rank=1, asked="0" * 32, drawn="1" * 32)
    for purpose in ("messages", "files"):
        signed = dict(replace(greeting, purpose=purpose).as_message(TOKEN))
        assert read_greeting(line(signed), "0" * 32, 2, TOKEN).purpose == purpose
        signed["purpose"] = "files" if purpose == "messages" else "messages"
        with pytest.raises(MisfitError):
            read_greeting(line(signed), "0" * 32, 2, TOKEN)
