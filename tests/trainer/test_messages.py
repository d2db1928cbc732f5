"""What does not fit is no message, whichever agent sends it: one table of both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainer.agent.coordinator import Again, Go, Over
from trainer.agent.handshake import SHORTEST, Greeting, read_asked, read_greeting, read_welcome
from trainer.agent.messages import MOST_EPOCHS, Ended, MisfitError, Ping, Ready, as_message, read_order, read_report
from trainer.agent.rank_exit import LONGEST, Ending
from trainer.agent.wire import Line

NAMES = ("alpha", "beta")
TOKEN = b"5" * SHORTEST
ENDING = Ending(kind="user", node="beta", rank=1, exit_code=-9, reason="ValueError: ñ 🙂", frame="a.py:3 in f")
LONG = Ending(kind="user", node="beta", reason="\x1b" * LONGEST, frame="🙂" * LONGEST)


def line(values: Any) -> bytes:
    return json.dumps(values).encode()


def ending(**values: Any) -> dict[str, Any]:
    return {"kind": "user", "node": "beta", **values}


@pytest.mark.parametrize("report", [Ready(epoch=3), Ended(ending=ENDING), Ended(ending=LONG), Ping()])
def test_a_report_arrives_as_it_was(report: Ready | Ended | Ping) -> None:
    sent = line(as_message(report))
    assert read_report(sent, NAMES) == report
    assert len(sent) < Line.LONGEST


@pytest.mark.parametrize(
    "order",
    [Go(epoch=1), Over(ending=ENDING), Ping(), Again(epoch=2, cause=ENDING, restarts_left=-1, pause_s=0.5)],
)
def test_an_order_arrives_as_it_was(order: Go | Again | Over | Ping) -> None:
    assert read_order(line(as_message(order)), NAMES) == order


ANY = (
    b"", b"[1]", b"7", b'"go"', b"null", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a": ' * 20_000, b"{}",
    b'{"ready": NaN}', b'{"go": []}', b'{"go": {}, "over": {}}', b'{"order": []}', b'{"shell": {"run": "ls"}}',
    b"[" + b"9" * 5000 + b"]",
)  # fmt: skip
ENDINGS: tuple[Any, ...] = (
    7, None, [], {}, {"kind": "user"}, ending(kind="fine"), ending(kind=[]), ending(kind=None), ending(node="mallory"),
    ending(node=["beta"]), ending(rank="0"), ending(rank=2**40), ending(rank=True), ending(exit_code=1.5),
    ending(reason=7), ending(reason="x" * (LONGEST + 1)), ending(frame=None), ending(because_of_others=1),
)  # fmt: skip
EPOCHS = ("Infinity", "-Infinity", "NaN", "1e300", "-1", "1.0", "true", '"1"', "null", "[1]", "9" * 400, "9" * 5000)


@pytest.mark.parametrize("text", ANY)
def test_what_is_no_message_is_none(text: bytes) -> None:
    for read in (read_report, read_order):
        with pytest.raises(MisfitError):
            read(text, NAMES)
    for hear in (lambda: read_asked(text), lambda: read_greeting(text, "0" * 32, 2, TOKEN)):
        with pytest.raises(MisfitError):
            hear()


@pytest.mark.parametrize("values", ENDINGS)
def test_what_is_no_ending_ends_nothing(values: Any) -> None:
    with pytest.raises(MisfitError):
        read_report(line({"ended": {"ending": values}}), NAMES)
    with pytest.raises(MisfitError):
        read_order(line({"over": {"ending": values}}), NAMES)
    with pytest.raises(MisfitError):
        read_order(line({"again": {"epoch": 1, "cause": values, "restarts_left": 1, "pause_s": 0}}), NAMES)


@pytest.mark.parametrize("epoch", [*EPOCHS, str(MOST_EPOCHS + 1)])
def test_an_epoch_is_a_small_whole_number(epoch: str) -> None:
    for text in ('{"ready": {"epoch": %s}}', '{"go": {"epoch": %s}}'):
        with pytest.raises(MisfitError):
            (read_report if "ready" in text else read_order)((text % epoch).encode(), NAMES)


@pytest.mark.parametrize("pause", ["Infinity", "1e300", "-1", '"x"', "null", "true"])
def test_a_pause_is_a_time(pause: str) -> None:
    again = json.dumps({"again": {"epoch": 1, "cause": ending(), "restarts_left": 1, "pause_s": "P"}})
    with pytest.raises(MisfitError):
        read_order(again.replace('"P"', pause).encode(), NAMES)


@pytest.mark.parametrize("rank", ["Infinity", "NaN", "1e300", "0", "2", "-1", "true", '"1"', "null", "9" * 400])
def test_a_greeting_is_of_another_node_of_the_run(rank: str) -> None:
    """Signed as it has to be: a node of the run is held to the same bounds."""
    asked, drawn = "0" * 32, "1" * 32
    number = json.loads(rank)
    told = Greeting(run="r.0", node_rank=number, asked=asked, drawn=drawn).as_message(TOKEN)
    with pytest.raises(MisfitError, match=r"node_rank|not JSON"):
        read_greeting(json.dumps(told).replace("1e+300", rank).encode(), asked, 2, TOKEN)


def test_a_proof_holds_for_what_it_was_asked_for_alone() -> None:
    greeting = Greeting(run="r.0", node_rank=1, asked="0" * 32, drawn="1" * 32)
    told = greeting.as_message(TOKEN)
    assert TOKEN.decode() not in json.dumps(told)
    assert read_greeting(line(told), "0" * 32, 2, TOKEN) == greeting
    for asked, changed, token in (
        ("2" * 32, {}, TOKEN),  # said before, on another connection
        ("0" * 32, {"run": "r.1"}, TOKEN),
        ("0" * 32, {"drawn": "2" * 32}, TOKEN),
        ("0" * 32, {"proof": "0" * 64}, TOKEN),
        ("0" * 32, {}, b"6" * SHORTEST),
    ):
        with pytest.raises(MisfitError, match="does not have the token"):
            read_greeting(line({**told, **changed}), asked, 2, token)
    assert read_greeting(line({**told}), "0" * 32, 3, TOKEN).node_rank == 1
    with pytest.raises(MisfitError, match="does not have the token"):
        read_greeting(line({**told, "node_rank": 2}), "0" * 32, 3, TOKEN)
    with pytest.raises(MisfitError, match="does not have the token"):  # a node's own proof, sent back to it
        read_welcome(line({"proof": greeting.signed(TOKEN, "node")}), greeting, TOKEN)
    read_welcome(line({"proof": greeting.signed(TOKEN, "coordinator")}), greeting, TOKEN)
