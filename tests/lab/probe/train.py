"""A rank without torch, as a user's script: `python train.py LAST_STEP [STEPS_BETWEEN_CHECKPOINTS]`.

It behaves as a trainer's rank does, by the trainer's own code where that needs no torch: lines through the agent's
pipes, heartbeats, events, verified checkpoints, steps that need all ranks, a checkpoint and an end at a stop. Its state
is a chain of hashes to which every rank adds at each step: a loss is right only after all the steps before it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from contract import environment
from contract.checkpoint import CheckpointManifest
from contract.events import (
    CheckpointWritten,
    GroupJoined,
    RankStarted,
    StepDone,
    TrainingDone,
    TrainingResumed,
    TrainingStopped,
)
from trainer import checkpoint_folder
from trainer.agent import heartbeat, rank_status
from trainer.agent.log_pipes import ERR, OUT, pipe
from trainer.checkpoint_folder import Keep
from trainer.config import RankInfo
from trainer.engine.reporting.events import Events

STEP_S = 0.05
FAIL = Path("fail")
"""A rank that finds this file in its working folder fails as a user's code does."""
COPIES = 2048
"""Copies of the state in a checkpoint of 64 KiB."""
_START = hashlib.sha256(b"start").digest()
_NUMBER = 8


def losses(world_sizes: Iterable[int]) -> dict[int, float]:
    """Loss by step of a run without a fault, in which so many ranks take each step."""
    state, found = _START, {}
    for step, world_size in enumerate(world_sizes, 1):
        state = _after(state, (_part(step, rank) for rank in range(world_size)))
        found[step] = _loss(state)
    return found


def _part(step: int, rank: int) -> bytes:
    return hashlib.sha256(f"{step} {rank}".encode()).digest()


def _after(state: bytes, parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(state + b"".join(sorted(parts))).digest()


def _loss(state: bytes) -> float:
    return int.from_bytes(state[:4], "big") / 2**32


class Group:
    """Connections between rank 0 and the others. The loss of one is an error, as with gloo."""

    def __init__(self, place: RankInfo) -> None:
        self._is_first = place.rank == 0
        self._peers: list[socket.socket] = []
        address, _, port = place.master.rpartition(":")
        if self._is_first:
            with socket.create_server(("", int(port))) as server:
                self._peers = [server.accept()[0] for _ in range(place.world_size - 1)]
        while not self._is_first and not self._peers:
            try:
                self._peers.append(socket.create_connection((address, int(port))))
            except ConnectionRefusedError:  # rank 0 does not listen yet
                threading.Event().wait(0.1)

    def broadcast(self, message: bytes) -> bytes:
        """Return rank 0's message, of the length of this rank's."""
        if not self._is_first:
            return _received(self._peers[0], len(message))
        for peer in self._peers:
            peer.sendall(message)
        return message

    def gather(self, message: bytes) -> list[bytes]:
        """Return on rank 0 the messages of all ranks, each of this length; on others nothing."""
        if self._is_first:
            return [message, *(_received(peer, len(message)) for peer in self._peers)]
        self._peers[0].sendall(message)
        return []


def _received(peer: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        if not (piece := peer.recv(size - len(content))):
            raise ConnectionError("Connection closed by peer")
        content += piece
    return content


def train(place: RankInfo, last: int, every: int = 20) -> None:
    asked, events, root = threading.Event(), Events(place), Path(place.run_dir) / "checkpoints"
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    events.emit(RankStarted(device="cpu", attempt=place.attempt))
    group = Group(place)
    events.emit(GroupJoined(world_size=place.world_size, backend="gloo"))
    state, step, stop = _START, 0, False
    if place.rank == 0 and (entry := os.environ[environment.RESUME]):
        folder = Path(entry).parent
        state, step = Path(entry).read_bytes()[: len(state)], checkpoint_folder.examine(folder).step
        events.emit(TrainingResumed(step=step, checkpoint=str(folder)))
        events.say(f"resumed at step {step} from {folder}")
    step = int.from_bytes(group.broadcast(step.to_bytes(_NUMBER, "big")), "big")
    while step < last and not stop:
        asked.wait(STEP_S)
        if FAIL.exists():
            raise KeyError("label")
        step += 1
        heartbeat.step(step)
        with heartbeat.exchange("all_reduce"):
            parts = group.gather(_part(step, place.rank) + bytes([asked.is_set()]))
            stop = bool(group.broadcast(bytes([any(part[-1] for part in parts)]))[0])
        if place.rank == 0:
            state = _after(state, (part[:-1] for part in parts))
            events.emit(StepDone(step=step, loss=_loss(state), per_s=1 / STEP_S, unit="steps", final_step=last))
            events.say(f"step {step}/{last}  loss {_loss(state):.4f}")
            if stop or step % every == 0 or step == last:
                _save(root, place, events, state, step)
    events.emit(TrainingStopped(step=step) if stop else TrainingDone(step=step))
    events.say(f"{'stopped' if stop else 'done'}: step {step}")


def _save(root: Path, place: RankInfo, events: Events, state: bytes, step: int) -> None:
    manifest = CheckpointManifest(step=step, run_id=place.run_id, attempt=place.attempt)
    saved = checkpoint_folder.publish(
        checkpoint_folder.write(root, manifest, lambda file: file.write(state * COPIES), {})
    )
    events.emit(CheckpointWritten(step=step, path=str(saved.path), verified=not saved.problem, sha256=saved.sha256))
    checkpoint_folder.prune(root, step, Keep())


def main() -> None:
    for descriptor, name in ((1, OUT), (2, ERR)):
        os.dup2(os.open(pipe(Path(os.environ[rank_status.FOLDER]), 0, name), os.O_WRONLY), descriptor)
    os.environ["RANK"] = os.environ[environment.NODE_RANK]
    heartbeat.begin(os.environ)
    train(RankInfo.from_environ(os.environ), *map(int, sys.argv[1:]))


if __name__ == "__main__":
    main()
