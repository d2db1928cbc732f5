"""Follow a run: every line and every end, of all its nodes, as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from orchestrator.fleet.collect import as_json, said_of
from orchestrator.fleet.launch import Seated
from orchestrator.fleet.records import RunRecord
from orchestrator.specs.errors import OrchError
from orchestrator.specs.happening import Ended, Happening, Lost, Said, Tick
from orchestrator.specs.run import State


def follow(seated: Sequence[Seated], record: RunRecord, *, since: str = "", tick_s: float = 0.5) -> Iterator[Happening]:
    """Merge the nodes as they speak, until each has ended or is lost. Lines are kept in the record.

    A container that Docker starts again goes on being followed.
    """
    queue: SimpleQueue[Said | Ended | Lost] = SimpleQueue()
    for seat in seated:
        Thread(target=_listen, args=(seat, record, queue, since), daemon=True).start()
    open_ends = len(seated)
    while open_ends:
        try:
            happening = queue.get(timeout=tick_s)
        except Empty:
            yield Tick()
            continue
        if not isinstance(happening, Said):
            open_ends -= 1
        yield happening


def _listen(seat: Seated, record: RunRecord, queue: SimpleQueue[Said | Ended | Lost], since: str) -> None:
    name = seat.node.name
    try:
        with record.open_log(name) as kept:
            last = record.last_time(name)
            while True:
                for line in seat.node.engine.logs(seat.container, follow=True, since=max(since, last)):
                    said = said_of(seat, line)
                    kept.write(as_json(said))
                    kept.flush()
                    last = line.time
                    queue.put(said)
                facts = seat.node.engine.wait(seat.container)
                if facts.state is not State.RUNNING:
                    queue.put(Ended(node=name, node_rank=seat.node_rank, container=facts))
                    return
    except OrchError as error:
        queue.put(Lost(node=name, node_rank=seat.node_rank, error=error))
