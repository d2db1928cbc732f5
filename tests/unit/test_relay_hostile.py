"""A copy to three nodes of which one is hostile or broken: the two others get their files, in bounded time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.fleet.fan_out import Outcome
from orchestrator.fleet.relay import Delivered, Destination, FolderToSend, RelayLimits, send_folder
from orchestrator.fleet.relay_messages import FileToSend
from orchestrator.nodes.interface import Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError, OrchError

SIZE = 3_000_000
LIMITS = RelayLimits(starting_s=30, gather_s=15, quiet_s=4, least_bytes=200_000)
BOUND_S = 50.0
"""Far below what the deadlines of an unbounded wait would be; the machine may be busy."""

READY = '{"ready": {"port": 0, "held": 0, "free": 1000000000000, "folder": "/x"}}'
MOVED = '{"moved": {"held": %s, "received": 0, "verified": 0}}'
LINES = {
    "no port": ['{"ready": {"held": 0, "free": 1000000000000, "folder": "/x"}}'],
    "no free": ['{"ready": {"port": 5, "held": 0, "folder": "/x"}}'],
    "no verified": [READY, '{"moved": {"held": 0, "received": 0}}'],
    "400 digits": [READY, MOVED % ("1" + "0" * 400)],
    "a list": [READY, MOVED % "[1]"],
    "no field": [READY, "{}"],
    "out of order": [MOVED % 0],
    "a long line": [READY, "x" * 10_000_000],
    "wants too much": [READY, *['{"wants": {"file": 0, "offset": 0, "end": 1}}'] * 20_000],
}
"""Lines of a node in place of a relay's."""
SCRIPTS = {
    "moved before ready": f"while sleep 0.5; do echo '{MOVED % 0}'; done",
    "silent after ready": f"echo '{READY}'; cat >/dev/null",
    "moved without end": f"echo '{READY}'; while sleep 0.5; do echo '{MOVED % 0}'; done",
    "reads nothing": f"echo '{READY}'; while sleep 0.5; do echo '{MOVED % SIZE}'; done",
    "no newline": f"echo '{READY}'; yes | tr -d '\\n'",
    "ends at once": "exit 0",
}
SENT = "                connection.sendall(chunk)\n"
ZEROS = "                connection.sendall(bytes(len(chunk)))\n"
FIRST = ("held=sum(self.at), free", f"held={SIZE}, free")
"""Line that claims to have everything, so that the node is to send first."""
PROGRAMS = {
    "wrong bytes": [FIRST, (SENT, ZEROS)],
    "wrong bytes, and wrong itself": [
        FIRST,
        (SENT, ZEROS),
        ("        self.finish()\n", '        time.sleep(3); say("broken", source="", why="x", wrong=0)\n'),
    ],
    "sends nothing": [FIRST, (SENT, "                time.sleep(999)\n")],
    "a byte a second": [FIRST, (SENT, "                time.sleep(1); chunk = chunk[:1]\n" + SENT)],
    "an unknown file": [("RANGE.pack(*missing)", "RANGE.pack(2**60, 2**60, 2**63)")],
    "no greeting": [FIRST, ("connection.sendall(nonce)", "time.sleep(999)")],
    "an endless greeting": [FIRST, ("connection.sendall(nonce)", "[connection.sendall(nonce) for _ in range(10**7)]")],
    "a closed port": [FIRST, ("port=port", "port=1")],
    "done with wrong bytes": [FIRST, ("        self.receive()\n", ""), ("connection.sendall(chunk)", ZEROS.strip())],
    "ends in the middle": [("self.received += len(chunk)", "self.received += len(chunk); os._exit(3)")],
    "a bad disk": [("out.write(chunk)", "out.write(bytes(len(chunk)))")],
}  # fmt: skip
"""Changes of the relay program."""
SLOW = {
    "sends slowly": [FIRST, (SENT, "                time.sleep(0.5); chunk = chunk[:60_000]\n" + SENT)],
    "takes slowly": [FIRST, ("out.write(chunk)", "out.write(chunk); time.sleep(len(chunk) / 120_000)")],
}
"""The same at 120 kB/s, where 50 kB/s are the least: all would have to wait for 25 s."""


class Hostile(LocalNode):
    behaviour = ""

    def stream(self, argv: Sequence[str], **how: object) -> Iterator[bytes]:
        words, name = list(argv), self.behaviour
        if name in LINES:
            yield from (f"{line}\n".encode() for line in LINES[name])
            time.sleep(1)
            return
        if name in SCRIPTS:
            words = ["sh", "-c", SCRIPTS[name]]
        for before, after in (PROGRAMS | SLOW).get(name, ()):
            assert before in words[-1], before
            words[-1] = words[-1].replace(before, after)
        yield from super().stream(words, **how)  # type: ignore[arg-type]  # as it was called


class Copied:
    """Outcomes by node, what was shown, and whose disk has the file."""

    def __init__(self, folder: Path, behaviour: str, hostile: str = "alpha", until: Collection[str] = ()) -> None:
        data = os.urandom(SIZE)
        files = [FileToSend(name="large.bin", size=SIZE, sha256=hashlib.sha256(data).hexdigest())]
        content = FolderToSend(what="data", files=files, read=lambda _file, offset: iter([data[offset:]]))
        nodes = []
        for number, name in enumerate(("alpha", "beta", "gamma")):
            nodes.append((Hostile if name == hostile else LocalNode)(name, f"127.0.0.{31 + number}"))
            nodes[-1].behaviour = behaviour  # type: ignore[union-attr]  # of the hostile one
        self.shown: list[tuple[str, str]] = []
        self.began, self.reached_s, self.until = time.monotonic(), 0.0, set(until)
        sent: Sequence[Outcome[Destination, Delivered]] = send_folder(
            content,
            [Destination(node=node, folder=f"{folder}/{node.name}/data") for node in nodes],
            lambda node, progress: self.show(node, progress),
            otherwise=lambda target: Delivered(folder=target.folder, came=0, fed=0),
            limits=LIMITS,
        )
        self.took_s = time.monotonic() - self.began
        self.by_name = {one.item.node.name: one for one in sent}
        self.served = [
            node.name for node in nodes
            if (file := folder / node.name / "data/large.bin").is_file() and file.read_bytes() == data
        ]  # fmt: skip

    def show(self, node: str, progress: Progress) -> None:
        self.shown.append((node, progress.text))
        if progress.text == "received" and node in self.until:
            self.until.remove(node)
            self.reached_s = time.monotonic() - self.began


@pytest.mark.parametrize("behaviour", [*LINES, *SCRIPTS, *PROGRAMS])
def test_the_others_are_served_in_bounded_time(behaviour: str, tmp_path: Path) -> None:
    copied = Copied(tmp_path, behaviour)
    assert {"beta", "gamma"} <= set(copied.served), copied.by_name
    assert all(copied.by_name[name].result for name in ("beta", "gamma"))
    assert copied.took_s < BOUND_S
    error = copied.by_name["alpha"].error
    if behaviour in LINES or behaviour in SCRIPTS:
        assert isinstance(error, CommandFailedError | NodeUnreachableError)
    if error is not None:
        assert isinstance(error, OrchError)
        assert error.node == "alpha"
        assert "bug" not in str(error)


def test_the_sender_of_wrong_bytes_is_named(tmp_path: Path) -> None:
    copied = Copied(tmp_path, "wrong bytes")
    doubt = copied.by_name["alpha"].value().doubt
    assert "sent wrong bytes of large.bin to beta" in doubt or "sent wrong bytes of large.bin to gamma" in doubt
    assert [copied.by_name[name].value().doubt for name in ("beta", "gamma")] == ["", ""]
    assert ("alpha", doubt) in copied.shown


def test_a_disk_that_gives_back_other_bytes_is_named(tmp_path: Path) -> None:
    error = copied = Copied(tmp_path, "a bad disk").by_name["alpha"].error
    assert isinstance(error, CommandFailedError), copied
    assert "the disk gives back other bytes of large.bin than were written" in str(error)


@pytest.mark.parametrize("behaviour", SLOW)
def test_a_slow_node_does_not_slow_those_behind_it(behaviour: str, tmp_path: Path) -> None:
    copied = Copied(tmp_path, behaviour, until={"beta", "gamma"})
    assert copied.served == ["alpha", "beta", "gamma"]
    assert copied.reached_s < 15, copied.shown
    assert any("far less comes from it" in text for _, text in copied.shown)


def test_a_hostile_node_in_the_middle_of_a_chain(tmp_path: Path) -> None:
    assert {"alpha", "gamma"} <= set(Copied(tmp_path, "wrong bytes", hostile="beta").served)
