"""The log lines of a run on this controller: files of a bounded size for each container, read in both directions.

The newest lines of a container are a plain file. As soon as they fill a block, they are appended to a compressed file
(`log_blocks`), and the next plain file begins. When a compressed file is full, the next one begins; the first and the
newest stay. Records of earlier versions, whose files are all plain, are read and continued. ADR 43 says why.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, flock
from glob import escape
from pathlib import Path

from contract.events import Event
from orchestrator.fleet.runs.event_index import EventIndex
from orchestrator.fleet.runs.log_blocks import BLOCK_BYTES, Block, WordGroups, Words, pack, packed_blocks, pieces
from orchestrator.fleet.runs.log_files import LogFile, log_files, parse_line, stem_of
from orchestrator.nodes.state_files import private_folder
from orchestrator.specs.run_events import RunLine

MIB = 1024 * 1024
FILE_BYTES = 64 * MIB
FILES = 4
"""Files per container: the beginning and the end of a log are what explains a failure."""
_PACKER = ThreadPoolExecutor(max_workers=1)
"""Compresses for all containers: glibc keeps some MiB for each thread that has done it, 40 MiB for 50 nodes."""

Order = tuple[str, int, int, int]
"""Time, node_rank, block, line in it."""
_Picking = tuple[Words, "Callable[[RunLine], bool] | None", "Callable[[str], object] | None"]
"""`words`, `passes` and `at_block` of the methods of `KeptLines`."""


class KeptLog:
    """Appends the log lines of one container. Never raises: after a failed write, `problem` gives the reason and
    nothing more is written, so that the next read of the log resumes after the last line kept."""

    def __init__(self, folder: Path, node: str, container: str = "") -> None:
        self.problem = ""
        self._folder, self._stem = folder, stem_of(node, container)
        self._descriptor, self._number = -1, 1
        try:
            private_folder(folder)
            self._open(max((file.number for file in self._files()), default=1))
        except OSError as error:
            self._give_up(error)

    def keep(self, line: RunLine) -> None:
        self.write(as_json(line))

    def write(self, lines: str) -> None:
        """Whole lines, each with its newline."""
        if self._descriptor < 0:
            return
        content = lines.encode("utf-8", "backslashreplace")  # which is JSON too
        try:
            self._append(content)
            state = os.fstat(self._descriptor)
            while not state.st_nlink:  # another follower has just packed this file, maybe without these lines
                self._open(self._number)
                self._append(content)
                state = os.fstat(self._descriptor)
            if state.st_size >= min(BLOCK_BYTES, FILE_BYTES // 4):
                self._pack_in_turn()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> KeptLog:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()

    def _append(self, content: bytes) -> None:
        written = os.write(self._descriptor, content)
        while written < len(content):
            written += os.write(self._descriptor, content[written:])  # says why the rest does not fit

    def _open(self, number: int) -> None:
        self.close()
        self._number = number
        self._descriptor = os.open(self._file(), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a crash cut the last line short

    def _pack_in_turn(self) -> None:
        try:
            packing = _PACKER.submit(self._pack)
        except RuntimeError:  # the interpreter is ending
            self._pack()
        else:
            packing.result()

    def _pack(self) -> None:
        """Append the lines to the compressed file, and begin the next plain one."""
        file = self._file().with_suffix(".jsonl.gz")
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            flock(descriptor, LOCK_EX)
            if os.fstat(self._descriptor).st_nlink:
                content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
                size = _add_blocks(file, descriptor, content)
                self._file().unlink()
                rest = os.pread(self._descriptor, BLOCK_BYTES, len(content))  # another follower's, written meanwhile
                self._open(self._number + (size >= FILE_BYTES))
                if rest:
                    self._append(rest)
            else:
                self._open(self._number)
        finally:
            os.close(descriptor)
        self._remove_the_middle()
        EventIndex(self._folder).add_new()

    def _remove_the_middle(self) -> None:
        files = self._files()
        dropped = sorted({file.number for file in files})[1 : 1 - FILES]
        for file in files:
            if file.number in dropped:
                file.path.unlink(missing_ok=True)
        if dropped:
            self.problem = (
                f"{self._stem.partition('@')[0]} has written more than {FILES * FILE_BYTES // MIB} MiB of lines: of "
                "those kept here the beginning and the end stay, the middle is removed"
            )

    def _file(self) -> Path:
        number = "" if self._number == 1 else f".{self._number}"
        return self._folder / f"{self._stem}.log{number}.jsonl"

    def _files(self) -> list[LogFile]:
        return _files_of(self._folder, self._stem)

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.problem = f"lines cannot be kept on this computer any more ({error.strerror or error}): {self._folder}"


def _files_of(folder: Path, stem: str) -> list[LogFile]:
    """Files of one container, in the order written. The folder, which has those of all others too, is listed only
    where there can be several: the first file stays, and the next one begins when it has been full and compressed."""
    first = LogFile(path=folder / f"{stem}.log.jsonl", stem=stem, number=1, packed=False)
    size = first.size  # before the next look: its lines may move to that file
    if not (folder / f"{stem}.log.jsonl.gz").exists() and size < BLOCK_BYTES:
        return [first] if size else []
    return [file for file in log_files(folder, f"{escape(stem)}.log*.jsonl*") if file.stem == stem]


def _add_blocks(file: Path, descriptor: int, content: bytes) -> int:
    """Append the lines as blocks; the bytes of all lines that the file then holds."""
    blocks, size = packed_blocks(file), os.fstat(descriptor).st_size
    if blocks and blocks[-1].start + blocks[-1].size > size:  # a crash, or a full disk, cut it short
        lines = bytes(blocks[-1].load())
        lines = lines[: lines.rfind(b"\n") + 1]
        content = content if content.startswith(lines) else lines + content
        os.ftruncate(descriptor, blocks.pop().start)
    done = blocks and blocks[-1].held == len(content) and blocks[-1].load() == content  # a crash came after it
    for piece in () if done else pieces(content):
        packed = memoryview(pack(piece))
        while packed:
            packed = packed[os.write(descriptor, packed) :]
    os.fsync(descriptor)
    return sum(block.held for block in blocks) + (0 if done else len(content))


def as_json(line: RunLine) -> str:
    """The log line as one line of JSON."""
    return json.dumps(line.values(), ensure_ascii=False) + "\n"


class KeptLines:
    """Recorded log lines: the files of one folder. Invalid lines, such as truncated ones, are left out.

    Arguments of its methods: `since` is exclusive and `until` inclusive, both in the format of the lines' times;
    `words` are `log_blocks.words_in` a text that each wanted line has, or groups of words, of which each wanted line
    has one or continues a line that has it, in the same block or in the one before. Other blocks are not decompressed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_log(self, node: str, container: str = "") -> KeptLog:
        """Open the log of this container of a node for appending."""
        return KeptLog(self.folder, node, container)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes with recorded lines."""
        return tuple(sorted({file.node for file in log_files(self.folder) if file.size}))

    def lines(
        self,
        node: str | Collection[str] | None = None,
        *,
        since: str = "",
        until: str = "",
        words: Words = (),
        passes: Callable[[RunLine], bool] | None = None,
    ) -> Iterator[RunLine]:
        """Lines in order of time, each once: two followers of a run record the same lines. Only the blocks around the
        current time are in memory. `passes`: which lines are wanted."""
        return self._merged(node, since, until, (words, passes, None), newest_first=False)

    def newest_lines(
        self,
        node: str | Collection[str] | None = None,
        *,
        since: str = "",
        until: str = "",
        words: Words = (),
        passes: Callable[[RunLine], bool] | None = None,
        at_block: Callable[[str], object] | None = None,
    ) -> Iterator[RunLine]:
        """The same, the newest first. `at_block` gets the latest time of each block before it is read; when it raises,
        all lines after that time have been given."""
        return self._merged(node, since, until, (words, passes, at_block), newest_first=True)

    def _merged(
        self, node: str | Collection[str] | None, since: str, until: str, picking: _Picking, *, newest_first: bool
    ) -> Iterator[RunLine]:
        words, passes, at_block = picking
        blocks = [
            (block, number)
            for number, block in enumerate(_holding(self._blocks(node), words))
            if block.last > since and (not until or block.first <= until)
        ]

        def wanted(line: RunLine) -> bool:
            return line.time > since and (not until or line.time <= until) and (passes is None or passes(line))

        return _merged(blocks, wanted, words, at_block, newest_first=newest_first)

    def in_files(self, node: str | None = None) -> Iterator[RunLine]:
        """Lines file by file, in the order written."""
        for block in self._blocks(node, with_times=False):
            yield from filter(None, map(parse_line, block.raw_lines()))

    def newest(self, node: str, *, since: str = "", until: str = "", words: Words = ()) -> Iterator[RunLine]:
        """Lines of one node, the newest first; where times are given, those outside may be among them."""
        for block in reversed(_holding(self._blocks(node, with_times=False), words)):
            if block.last > since and (not until or block.first <= until):
                yield from filter(None, map(parse_line, block.raw_lines_backwards()))

    def last_time(self, node: str, container: str = "") -> str:
        """Time of the last recorded line of this container; empty if there is none."""
        for file in reversed(_files_of(self.folder, stem_of(node, container))):
            for block in reversed(file.blocks(with_times=False)):
                for line in filter(None, map(parse_line, block.raw_lines_backwards())):
                    return line.time
        return ""

    def events(
        self,
        *kinds: type[Event] | str,
        nodes: Collection[str] | None = None,
        since: str = "",
        until: str = "",
        newest_first: bool = False,
    ) -> Iterator[RunLine]:
        """Lines with an event of one of these kinds, subclasses included, in order of time, each once; `event` of each
        is not None. They are found by an index: their number counts, not that of all lines."""
        return EventIndex(self.folder).events(kinds, nodes=nodes, since=since, until=until, newest_first=newest_first)

    def _blocks(self, node: str | Collection[str] | None, *, with_times: bool = True) -> list[Block]:
        """Blocks of a node, of several or of all, container by container, each in the order written."""
        nodes = (node,) if isinstance(node, str) else node

        def files(*, packed: bool) -> list[LogFile]:
            wanted = [file for file in log_files(self.folder) if nodes is None or file.node in nodes]
            return [file for file in wanted if file.packed is packed]

        # plain files first: what is compressed meanwhile is then in both, and not in none
        blocks = {file: file.blocks(with_times=with_times) for packed in (False, True) for file in files(packed=packed)}
        begun: dict[str, str] = {}
        ordered = sorted(blocks, key=lambda file: file.order)
        for file in ordered:
            if file.stem not in begun:
                begun[file.stem] = file.begins_at()
        ordered.sort(key=lambda file: begun[file.stem])
        return [block for file in ordered for block in blocks[file]]


def _holding(blocks: Sequence[Block], words: Words) -> list[Block]:
    """Blocks whose lines may be wanted, by the words in them."""
    if not isinstance(words, WordGroups):
        every = WordGroups([words])
        return [block for block in blocks if block.may_hold(every)]
    found = [block.may_hold(words) for block in blocks]
    return [block for block, *near in zip(blocks, found, [False, *found], strict=False) if any(near)]


def _merged(
    blocks: list[tuple[Block, int]],
    wanted: Callable[[RunLine], bool],
    words: Words,
    at_block: Callable[[str], object] | None,
    *,
    newest_first: bool,
) -> Iterator[RunLine]:
    """The wanted lines of all blocks in order of time: a block is read when its earliest time has come."""
    blocks.sort(key=(lambda one: one[0].last) if newest_first else lambda one: one[0].first, reverse=not newest_first)
    read: list[tuple[Order, RunLine]] = []
    while blocks or read:
        # Sorting all that is read after each of very many short blocks would take a time that is quadratic in them.
        enough = len(read) + len(read) // 8
        while blocks and len(read) <= enough:
            block, number = blocks.pop()
            try:
                if at_block:
                    at_block(block.last)
            except Exception:  # blocks before this one were read without giving their lines yet
                read.sort(key=lambda one: one[0])
                yield from _each_once(read[bisect_right(read, block.last, key=_time) :][::-1])
                raise
            read += [
                ((line.time, line.node_rank, number, place), line)
                for place, raw in enumerate(_with_words(block, words))
                if (line := parse_line(raw)) and wanted(line)
            ]
        read.sort(key=lambda one: one[0])
        if newest_first:
            first = bisect_right(read, blocks[-1][0].last, key=_time) if blocks else 0
            ready, read = read[first:][::-1], read[:first]
        else:
            first = bisect_left(read, blocks[-1][0].first, key=_time) if blocks else len(read)
            ready, read = read[:first], read[first:]
        yield from _each_once(ready)


def _time(one: tuple[Order, RunLine]) -> str:
    return one[0][0]


def _each_once(lines: Sequence[tuple[Order, RunLine]]) -> Iterator[RunLine]:
    """Lines of ascending or descending time; equal ones have equal times."""
    time, seen = "", set[RunLine]()
    for _, line in lines:
        if line.time != time:
            time = line.time
            seen.clear()
        if line not in seen:
            seen.add(line)
            yield line


def _with_words(block: Block, words: Words) -> Iterator[bytes]:
    every = () if isinstance(words, WordGroups) else words
    for raw in block.raw_lines():
        if not every or all(word in lowered for lowered in [raw.lower()] for word in every):
            yield raw
