"""Result files of the nodes before a start: what is copied between them, and what is reported. Pure.

Rank 0's node is the source: a script saves on rank 0, as a rule, and each rank loads the file if it exists. Files of
other ranks are copied by it, too, if that was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from contract.event_lines import encode_event
from contract.events import OutputsDiffer, OutputsEvent, OutputsMissing
from contract.result_files import FileDifferences, ResultFile, ResultFiles, compare, within_limit
from contract.result_paths import shown

OFF, RESULTS, ALL = "off", "results", "all"
"""Modes of a copy: nothing, files of rank 0's node, or those of other ranks, too."""
BYTES_PER_S = 100e6
"""Assumed speed of a copy, for a line about its time: a link of 1 Gbit/s."""
COPY_TRIES = 3
"""Copies to or from a node that are begun before one start: a link that a copy breaks would delay it for ever."""
_FIRST, _GATHERED, _COPIED, _MATCHED = range(4)
"""Stages: not compared yet; files of other ranks are at rank 0's node; nodes have its files; nothing is left to do."""
STATE_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".npz", ".json", ".tar", ".zip"})
"""Endings of files with the state of a training; a log differs on every node without consequence."""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Result of one look at the lists."""

    events: tuple[OutputsEvent, ...] = ()
    copies: Mapping[int, tuple[ResultFile, ...]] = field(default_factory=dict)
    """Files to be copied to the node of this node_rank, or with `upload` from it."""
    upload: bool = False


@dataclass
class FileLists:
    """Decides on the files of the nodes `names`, in order of node_rank."""

    names: Sequence[str]
    mode: str = RESULTS
    unequal: str = ""
    """A file with which the newest start began on some nodes alone; empty: there is none."""
    _stage: int = _FIRST
    _reported: set[str] = field(default_factory=set)
    _tries: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Copies that were begun since the last start, by the name of the node; True: from it."""

    def reset(self) -> None:
        """Compare before another start."""
        self._tries.clear()
        self.compare_again()

    def compare_again(self) -> None:
        """Compare again before the same start: a node has returned."""
        self._stage = _FIRST

    def match(self, lists: Sequence[ResultFiles | None]) -> Matched:
        """Compare the lists. After each copy it is called again with the new lists, until nothing is to be copied."""
        source, others = lists[0], {name: one for name, one in zip(self.names[1:], lists[1:], strict=True) if one}
        if self._stage == _MATCHED:
            return Matched()
        if source is None or not others:
            self._stage, self.unequal = _MATCHED, ""
            return Matched()
        found, events = compare(source, others), list[OutputsEvent]()
        if self._stage == _FIRST:
            self._stage = _GATHERED
            events += self._of_others(found)
            if uploads := self._uploads(found):
                self._tries.update((name, True) for name in uploads)
                return self._copies(events, uploads, upload=True)
        if self._stage == _GATHERED:
            self._stage = _COPIED
            events += self._of_source(found)
            copies = {name: files for name, files in found.missing.items() if self._why_not(found, name) is None}
            if copies:
                self._tries.update((name, False) for name in copies)
                return self._copies(events, copies)
        self._stage, self.unequal = _MATCHED, _state_of(found)
        return Matched(events=self._new(events))

    def _copies(
        self, events: Sequence[OutputsEvent], files: Mapping[str, tuple[ResultFile, ...]], *, upload: bool = False
    ) -> Matched:
        copies = {self.names.index(name): each for name, each in files.items()}
        return Matched(events=self._new(events), copies=copies, upload=upload)

    def _uploads(self, found: FileDifferences) -> dict[str, tuple[ResultFile, ...]]:
        """Files of other ranks, each from the first node that has it."""
        taken, uploads = set[str](), dict[str, tuple[ResultFile, ...]]()
        for name, files in found.elsewhere.items():
            own = tuple(file for file in files if file.path not in taken)
            if own and self._why_not_of_others(name, own) is None:
                uploads[name] = own
                taken |= {file.path for file in own}
        return uploads

    def _why_not(self, found: FileDifferences, name: str) -> str | None:
        if self.mode == OFF:
            return "off"
        if not all(map(within_limit, found.missing.values())):
            return "limit"
        return "connection" if self._tries[name, False] >= COPY_TRIES else None

    def _why_not_of_others(self, name: str, files: Sequence[ResultFile]) -> str | None:
        if self.mode != ALL:
            return "other_ranks"
        if not within_limit(files):
            return "limit"
        return "connection" if self._tries[name, True] >= COPY_TRIES else None

    def _of_source(self, found: FileDifferences) -> list[OutputsEvent]:
        events = list[OutputsEvent]()
        reasons = {name: self._why_not(found, name) for name in found.missing}
        for why_not in dict.fromkeys(reasons.values()):
            lists = {name: files for name, files in found.missing.items() if reasons[name] == why_not}
            files = {file.path: file for each in lists.values() for file in each}
            event = _missing(tuple(files.values()), self.names[0], tuple(lists))
            sent = sum(file.size for each in lists.values() for file in each)
            outdated, seconds = set(files) <= found.outdated, max(1, round(sent / BYTES_PER_S))
            events.append(replace(event, outdated=outdated, other_ranks=False, seconds=seconds, why_not=why_not))
        if found.differing:
            path, node = next(iter(found.differing.items()))
            more = len(found.differing) - 1
            events.append(OutputsDiffer(path=shown(path), more=more, nodes=(self.names[0], node)))
        return events

    def _of_others(self, found: FileDifferences) -> list[OutputsEvent]:
        events = list[OutputsEvent]()
        for name, files in found.elsewhere.items():
            event = _missing(files, name, (self.names[0],))
            events.append(replace(event, other_ranks=True, why_not=self._why_not_of_others(name, files)))
        return events

    def _new(self, events: Sequence[OutputsEvent]) -> tuple[OutputsEvent, ...]:
        """Events that were not reported before: a log that each rank writes differs at every restart."""
        new = [event for event in events if encode_event(event) not in self._reported]
        again = [event for event in events if isinstance(event, OutputsMissing) and not event.other_ranks]
        self._reported |= {encode_event(event) for event in events if event not in again}
        return tuple(new)


def _missing(files: Sequence[ResultFile], source: str, nodes: Sequence[str]) -> OutputsMissing:
    largest = max(files, key=lambda file: file.size)
    return OutputsMissing(
        source=source,
        nodes=tuple(nodes),
        path=shown(largest.path),
        size=largest.size,
        more=len(files) - 1,
        total=sum(file.size for file in files),
    )


def _state_of(found: FileDifferences) -> str:
    """A file that ranks may have started with on some nodes alone."""
    missing = [file.path for files in found.missing.values() for file in files]
    differing = [path for path in found.differing if PurePosixPath(path).suffix.lower() in STATE_SUFFIXES]
    return shown(next(iter([*missing, *differing]), ""))
