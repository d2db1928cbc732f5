"""Signs of life of a node's ranks: the status that each writes, and its process, put together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from contract.rank_signs import RankSigns
from trainer.agent import processes
from trainer.agent.processes import Process
from trainer.agent.rank_processes import RankProcesses, local_rank_of
from trainer.agent.status_files import read_statuses


class RankSignsReader:
    """Reads the signs of the ranks below this process."""

    def __init__(self, folder: Path, node: str, first_rank: int, every_s: float) -> None:
        """`folder`: where the ranks write. `every_s`: time between two looks."""
        self._folder, self._node, self._first_rank = folder, node, first_rank
        self._processes = RankProcesses(every_s)
        self._ranks: frozenset[int] = frozenset()
        """Processes of the ranks at the newest look."""
        self._sent: dict[int, int | None] = {}
        """Bytes that each rank had sent at the newest look."""

    def read(self, lines: int) -> tuple[RankSigns, ...]:
        """Signs of the ranks that live, by rank. `lines`: that they have written so far."""
        now = time.monotonic()
        live = {one.pid: one for one in processes.descendants(os.getpid())}
        statuses = read_statuses(self._folder, self._first_rank, now, live)
        found = {one.rank: one for one in statuses if one.process in live}
        # Ranks below other ranks are their workers, which inherit the variables.
        for rank, process in self._without_status(live, {one.process for one in found.values()}):
            found.setdefault(rank, RankSigns(rank=rank, process=process))
        signs = self._processes.look(found.values(), live, now)
        self._sent |= {one.rank: one.sent_bytes for one in signs}
        self._ranks = frozenset(one.process for one in signs) or self._ranks
        return tuple(sorted((replace(one, lines=lines, node=self._node) for one in signs), key=lambda one: one.rank))

    def final(self, lines: int) -> tuple[RankSigns, ...]:
        """The last status of each rank, whether or not its process is still there."""
        statuses = read_statuses(self._folder, self._first_rank, time.monotonic(), self._ranks)
        found = sorted(statuses, key=lambda one: one.rank)
        return tuple(replace(one, lines=lines, node=self._node, sent_bytes=self._sent.get(one.rank)) for one in found)

    def _without_status(self, live: dict[int, Process], known: set[int]) -> Iterable[tuple[int, int]]:
        """Ranks whose Python has started without torch so far, or is one that reads no `sitecustomize`."""
        for process in live.values():
            if process.parent in live and local_rank_of(process.parent):
                continue
            if process.pid not in known and (local_rank := local_rank_of(process.pid)):
                yield self._first_rank + int(local_rank), process.pid
