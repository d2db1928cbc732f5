"""TensorBoard for the event files of runs: on a node that holds them, tunnelled over the connection to the node.

It runs in the run's image, in a container without a network, for as long as the command. One command on the node
carries all connections over its stdin and stdout. Files of other nodes are copied there through this computer, and
then what is added to them.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from inspect import getsource
from queue import Queue

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.find_runs import find_runs, known_anywhere
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes import board_program
from orchestrator.nodes.board_program import ALIVE, CHUNK, CLOSE, DATA, FAILED, FILE, HEAD, OPEN, READY
from orchestrator.nodes.interface import Node
from orchestrator.plan.lines import attached_words
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import (
    ConfigError,
    ConflictError,
    NodeUnreachableError,
    OrchError,
    PreflightError,
    RunFailedError,
)
from orchestrator.specs.labels import LABEL_PURPOSE, LABEL_RUN
from orchestrator.specs.run import RUN_ID
from orchestrator.store.run_names import resolve

WITHOUT_END_S = 14 * 24 * 3600.0
MOST_FILES = 2000
EVERY_S = 5.0
"""Seconds between two looks at the files of other nodes, and between two signs of life."""
INSIDE = "/logs"
PORT = 6006
"""Port in the container, which has a loopback of its own."""
# Constants. $1: the project's folder, which may begin with ~; $2: the run. The answer: user, group, folder, files.
_LOOK = r"""
case $1 in "~"*) cd -- "$HOME${1#"~"}/runs/$2";; *) cd -- "$1/runs/$2";; esac 2>/dev/null || exit 0
id -u; id -g; pwd -P
find . -name 'events.out.tfevents.*' -type f -printf '%s %P\n'
"""
_FILE = re.compile(r"([0-9]{1,15}) ((?:[^/\n]+/)*[^/\n]+)")


@dataclass(frozen=True, kw_only=True)
class EventFiles:
    """The event files of a run on one node."""

    run_id: str
    node: str
    folder: str
    """The run's folder there."""
    user: str
    """uid:gid of the node's user."""
    sizes: Mapping[str, int]
    """Bytes by path in the folder."""

    @property
    def folders(self) -> tuple[str, ...]:
        """First part of the paths; files in the run's folder itself have none."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name in self.sizes if "/" in name))


def run_ids(nodes: Sequence[Node], wanted: Sequence[str]) -> tuple[str, ...]:
    """The runs that these words mean; the active or newest one where there are none. Nodes and record are asked.

    PreflightError: no node answers.
    """
    seen = find_runs(nodes)
    if nodes and len(seen.unreachable) == len(nodes):
        raise PreflightError("none of the nodes answered", hint="orch doctor")
    if not wanted:
        first = resolve(None, known_anywhere(seen))
        return (first,) if first else ()
    found: dict[str, None] = {}
    for word in wanted:
        chosen = resolve(word, known_anywhere(seen))
        if chosen is None and not re.fullmatch(RUN_ID, word):
            raise ConfigError(f"{word!r} is no run id", hint="orch runs")
        found[chosen or word] = None
    return tuple(found)


def event_files(
    nodes: Sequence[Node], places: Mapping[str, str], runs: Sequence[str]
) -> tuple[tuple[EventFiles, ...], Mapping[str, OrchError]]:
    """Event files of the runs on all nodes, in the order of the runs; and the nodes that did not answer."""
    asked = [(run, node) for run in runs for node in nodes]
    outcomes = fan_out(asked, lambda pair: _look(pair[1], places[pair[1].name], pair[0]))
    found = tuple(outcome.result for outcome in outcomes if outcome.result and outcome.result.sizes)
    return found, {outcome.item[1].name: outcome.error for outcome in outcomes if outcome.error}


def _look(node: Node, place: str, run_id: str) -> EventFiles | None:
    answer = node.run(["sh", "-c", _LOOK, "sh", place, run_id]).check("looking for event files")
    lines = answer.split("\n")
    if len(lines) < 3 or not (re.fullmatch("[0-9]{1,10}", lines[0]) and re.fullmatch("[0-9]{1,10}", lines[1])):
        return None
    matches = [match for line in lines[3 : 3 + MOST_FILES] if (match := _FILE.fullmatch(line))]
    sizes = {match[2]: int(match[1]) for match in matches if not {"..", "."} & set(match[2].split("/"))}
    return EventFiles(run_id=run_id, node=node.name, folder=lines[2], user=f"{lines[0]}:{lines[1]}", sizes=sizes)


class Board:
    """TensorBoard on one node, and a port of this computer that leads to it."""

    def __init__(self, nodes: Sequence[Node], files: Sequence[EventFiles], images: Sequence[str], port: int) -> None:
        """`images`: candidates of which the node must hold one. ConflictError: the port of this computer is taken."""
        by_name = {node.name: node for node in nodes}
        self.node = by_name[files[0].node]
        self._own = [one for one in files if one.node == self.node.name]
        self._others = [(by_name[one.node], one) for one in files if one.node != self.node.name]
        self.copied_from = tuple(dict.fromkeys(one.node for _, one in self._others))
        self._images, self._container = images, f"orch-tensorboard-{secrets.token_hex(4)}"
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise ConflictError(
                f"port {port} of this computer cannot be listened on: {error.strerror or error}",
                hint="another port: --port, or none for a free one",
            ) from None
        self.port = int(self._listener.getsockname()[1])
        self._frames: Queue[bytes | None] = Queue(256)
        self._sockets: dict[int, socket.socket] = {}
        self._ended = threading.Event()

    def serve(self, ready: Callable[[], object]) -> None:
        """Serve until an interrupt. `ready` is called once when TensorBoard answers.

        RunFailedError: TensorBoard has ended. NodeUnreachableError: the connection is lost, which ends it there, too.
        """
        try:
            chunks = self.node.stream(self._words(), stdin=iter(self._frames.get, None), timeout_s=WITHOUT_END_S)
            for work in (self._accept, self._keep_alive, self._copy):
                threading.Thread(target=work, daemon=True).start()
            with closing(chunks):  # type: ignore[type-var]  # a generator on all nodes
                for kind, number, content in _parsed(chunks):
                    if kind == READY:
                        ready()
                    elif kind == FAILED:
                        last = content.decode(errors="replace").strip().rsplit("\n", 1)[-1]
                        raise RunFailedError(f"TensorBoard did not run: {last}", node=self.node.name)
                    else:
                        self._take(kind, number, content)
            raise NodeUnreachableError("TensorBoard ended, or the connection did", node=self.node.name)
        finally:
            self._end()

    def _end(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `_accept`, which would keep it open
        self._listener.close()
        self._frames.put(None)
        for one in list(self._sockets.values()):
            one.close()
        if not self._is_process:
            with suppress(OrchError):  # it ends by itself as well
                self.node.engine.remove(self._container)

    @property
    def _is_process(self) -> bool:
        return self.node.engine.facts().kind == "process"

    def _words(self) -> tuple[str, ...]:
        """Command on the node: the program in a container that sees the event files, read-only, and has no network."""
        source = getsource(board_program)
        places = {self._name(one, part): f"{one.folder}/{part}" for one in self._own for part in one.folders}
        if self._is_process:
            return (sys.executable, "-c", source, json.dumps({"links": places, "port": 0}))
        links = {name: f"{INSIDE}/{number}" for number, name in enumerate(places)}
        spec = ContainerSpec(
            name=self._container,
            image=self._image(),
            command=("python", "-P", "-c", source, json.dumps({"links": links, "port": PORT})),
            environment={"OMP_NUM_THREADS": "1"},
            labels={LABEL_PURPOSE: "tensorboard"},
            mounts=tuple(Mount(source=places[name], target=inside, read_only=True) for name, inside in links.items()),
            working_dir="/",
            user=self._own[0].user,
            network="none",
            cpus=1.0,
            memory_mib=2048,
            memory_reservation_mib=256,
            shm_mib=64,
            pids_limit=256,
            auto_remove=True,
            stop_timeout_s=2,
            log_max_size="1m",
            log_max_files=1,
        )
        return attached_words(spec)

    def _image(self) -> str:
        held = self.node.engine.containers({LABEL_RUN: ""})
        own = [one.image for one in held if one.labels.get(LABEL_RUN) in {files.run_id for files in self._own}]
        for reference in (*own, *self._images):
            if found := self.node.engine.image(reference):
                return found.id
        raise ConfigError(
            f"{self.node.name} has no image with TensorBoard any more",
            hint="orch build   # or: orch pull, and run tensorboard --logdir runs here",
        )

    def _name(self, one: EventFiles, part: str) -> str:
        """Name in TensorBoard: the run, with its node where several hold files of it."""
        several = len({other.node for other in (*self._own, *(files for _, files in self._others))
                       if other.run_id == one.run_id}) > 1  # fmt: skip
        run = f"{one.run_id}@{one.node}" if several else one.run_id
        return run if part == "tensorboard" else f"{run}/{part}"

    def _accept(self) -> None:
        number = 0
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            connection.settimeout(60)
            self._sockets[number] = connection
            self._send(OPEN, number)
            threading.Thread(target=self._pass_on, args=(number, connection), daemon=True).start()

    def _pass_on(self, number: int, connection: socket.socket) -> None:
        """Send what the browser sends."""
        with suppress(OSError):
            while content := connection.recv(CHUNK):
                self._send(DATA, number, content)
        self._send(CLOSE, number)
        self._sockets.pop(number, None)
        connection.close()

    def _take(self, kind: int, number: int, content: bytes) -> None:
        """Pass on what TensorBoard sends."""
        connection = self._sockets.get(number)
        if connection is None:
            return
        with suppress(OSError):
            if kind == DATA:
                connection.sendall(content)
            else:
                connection.shutdown(socket.SHUT_RDWR)  # `_pass_on` closes it

    def _keep_alive(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._send(ALIVE, 0)

    def _copy(self) -> None:
        """Copy files of other nodes, and then what is added to them. A node without an answer is asked again."""
        sent: dict[tuple[str, str, str], int] = {}
        while not self._ended.is_set():
            for node, files in (*self._others, *((self.node, one) for one in self._own)):
                with suppress(OrchError):
                    now = _look(node, files.folder.rsplit("/runs/", 1)[0], files.run_id) or files
                    for name, size in now.sizes.items():
                        key = files.run_id, files.node, name
                        mounted = node is self.node and "/" in name
                        if size > sent.get(key, 0) and not mounted:
                            sent[key] = self._send_file(node, files, name, sent.get(key, 0))
            self._ended.wait(EVERY_S)

    def _send_file(self, node: Node, files: EventFiles, name: str, begin: int) -> int:
        """Send a file from an offset on; return its size then."""
        part, _, rest = name.rpartition("/")
        shown = "/".join(filter(None, (self._name(files, part or "tensorboard"), rest)))
        head = json.dumps({"name": shown}).encode() + b"\n"
        for chunk in node.stream(["tail", "-c", f"+{begin + 1}", "--", f"{files.folder}/{name}"]):
            for at in range(0, len(chunk), CHUNK):
                self._send(FILE, 0, head + chunk[at : at + CHUNK])
            begin += len(chunk)
        return begin

    def _send(self, kind: int, number: int, content: bytes = b"") -> None:
        if not self._ended.is_set():
            self._frames.put(HEAD.pack(kind, number, len(content)) + content)


def _parsed(chunks: Iterator[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Frames of the program. RunFailedError: it sends something else."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        while len(rest) >= HEAD.size:
            kind, number, length = HEAD.unpack(rest[: HEAD.size])
            if kind > FAILED or length > 2 * CHUNK:
                raise RunFailedError(f"not a frame: {rest[:80]!r}")
            if len(rest) < HEAD.size + length:
                break
            yield kind, number, rest[HEAD.size : HEAD.size + length]
            rest = rest[HEAD.size + length :]


def image_candidates(runs: Sequence[str], node: str) -> list[str]:
    """Images of these runs on a node, by the record of this computer."""
    plans = [RunRecord(run).plan() for run in runs if re.fullmatch(RUN_ID, run)]
    parts = [part for plan in plans if plan for part in plan.nodes]
    return list(dict.fromkeys(part.container.image for part in parts if part.node == node))
