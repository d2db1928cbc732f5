"""A block of recorded log lines: a gzip member that says in its header how long it is, from when its lines are, and
which letters occur in them, so that a reader decompresses only the blocks that it needs.

`zcat` reads such a file too. A damaged block costs its own lines at most.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 512 * 1024
"""Bytes of lines in a block. Smaller ones compress worse, larger ones take longer to read for a few lines."""
LONGEST = 8 * 1024 * 1024
"""Bytes of a line in a file: a line of the log has at most 1 MiB, each character of it at most six bytes here."""
_INFLATED = 2 * LONGEST
"""Bytes that are read of a block: a damaged or foreign one may claim any size."""
_SMALL = 4 * 1024 * 1024
_MAGIC = b"\x1f\x8b\x08\x04"
"""gzip, deflate, with an extra field."""
_ID = b"OR"
_HEADER = struct.Struct("<4sIBBH2sH")
"""Magic, time, flags, system, length of the extra field; id and length of its only part."""
_FACTS = struct.Struct("<II40s40s")
"""Bytes of the member, bytes of its lines, earliest and latest time. Their sum and the letters follow."""
_SUM = struct.Struct("<I")
_HEAD_BYTES = _HEADER.size + _FACTS.size + _SUM.size
_TIME = re.compile(rb'^\{"time": "([^"\\]{1,40})"', re.MULTILINE)
_WORD = re.compile(rb"[a-z][a-z0-9]{2,}")
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_PLACES = {digit: number for number, digit in enumerate(_DIGITS)}
_LATEST = "\U0010ffff"
"""Later than every time: of a block whose times are not known."""

Content = bytes | mmap.mmap


@dataclass(frozen=True, kw_only=True)
class Block:
    """Lines that are next to each other in the files of one container."""

    load: Callable[[], Content]
    """Its lines; empty where they cannot be read any more."""
    start: int = 0
    """Position in the file."""
    size: int = 0
    """Bytes in the file; more than are there where it is cut short."""
    held: int = 0
    """Bytes of its lines."""
    first: str = ""
    """Earliest time of its lines, and `last` the latest."""
    last: str = _LATEST
    letters: bytes | None = None
    """Compressed bits: whether each sequence of three letters or digits occurs in its words. None: not known."""

    def may_hold(self, wanted: WordGroups) -> bool:
        """Whether its lines may have all words of one of these groups."""
        if not wanted or self.letters is None:
            return True
        try:
            return wanted.found_in(zlib.decompressobj().decompress(self.letters, len(_DIGITS) ** 3 // 8))
        except (zlib.error, IndexError):
            return True

    def raw_lines(self) -> Iterator[bytes]:
        """Lines in the order written, without those that are too long."""
        content, at = self.load(), 0
        while at < len(content):
            end = content.find(b"\n", at)
            end = len(content) if end < 0 else end
            if end - at <= LONGEST:
                yield content[at:end]
            at = end + 1

    def raw_lines_backwards(self) -> Iterator[bytes]:
        """The same lines, the last first."""
        content = self.load()
        end = len(content)
        if end and content[end - 1 : end] == b"\n":
            end -= 1
        while end > 0:
            at = content.rfind(b"\n", 0, end)
            if end - at - 1 <= LONGEST:
                yield content[at + 1 : end]
            end = at


class WordGroups:
    """Groups of `words_in` texts, of which a line has all of one group; no groups: any line will do."""

    def __init__(self, groups: Iterable[Sequence[bytes]]) -> None:
        self._tree: dict[int, list[list[int]]] = {}
        """The first sequence of letters of each group, which excludes most blocks, with the others."""
        groups = list(groups)
        for first, *others in map(_places, groups if all(groups) else ()):
            self._tree.setdefault(first, []).append(others)

    def __bool__(self) -> bool:
        return bool(self._tree)

    def found_in(self, bits: bytes) -> bool:
        """Whether the sequences of letters of all words of a group are among those of a block."""

        def has(at: int) -> int:
            return bits[at >> 3] >> (at & 7) & 1

        return any(has(first) and any(all(map(has, rest)) for rest in rests) for first, rests in self._tree.items())


Words = Sequence[bytes] | WordGroups
"""All of these, or those of one of the groups."""


def words_in(text: str) -> tuple[bytes, ...]:
    """Words of three letters or more in lower case: a line with this text has them as words or as parts of words."""
    return tuple(dict.fromkeys(_WORD.findall(text.lower().encode("utf-8", "replace"))))


def pack(content: bytes) -> bytes:
    """Whole lines as one block."""
    engine = zlib.compressobj(6, wbits=-15)
    body = engine.compress(content) + engine.flush()
    first, last = times_in(content)
    letters = _letters(content)
    size = _HEAD_BYTES + len(letters) + len(body) + 8
    facts = _FACTS.pack(size, len(content), first.encode(), last.encode())
    extra = facts + _SUM.pack(zlib.crc32(facts)) + letters
    header = _HEADER.pack(_MAGIC, 0, 0, 255, len(extra) + 4, _ID, len(extra))
    return header + extra + body + struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def packed_blocks(file: Path) -> list[Block]:
    """Blocks of a compressed file, found by their headers. None in a foreign file."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return []
    try:
        found, at, end = [], 0, os.fstat(descriptor).st_size
        while at < end:
            if block := _read_header(file, os.pread(descriptor, 8192, at), at):
                found.append(block)
                at += block.size
            else:
                at = _next_block(descriptor, at + 1, end)
        return found
    except OSError:
        return []
    finally:
        os.close(descriptor)


def plain_blocks(file: Path, *, with_times: bool) -> list[Block]:
    """Lines of a file that is not compressed, as it is now: it may be replaced while they are read. `with_times`: the
    times of the lines are looked up, for which all of the file is read."""
    try:
        with file.open("rb") as reading:
            size = os.fstat(reading.fileno()).st_size
            small = size <= _SMALL
            content: Content = reading.read() if small else mmap.mmap(reading.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return []
    if not with_times:
        return [Block(load=lambda: content, size=len(content), held=len(content))]
    found = []
    for start, end in _pieces(content):
        piece = content[start:end]
        first, last = times_in(piece)
        load = _slice(content, start, end)
        found.append(Block(load=load, start=start, size=end - start, held=end - start, first=first, last=last))
    return found


def pieces(content: bytes) -> Iterator[bytes]:
    """Whole lines of the content, in parts of about the size of a block."""
    for start, end in _pieces(content):
        yield content[start:end]


def times_in(content: bytes) -> tuple[str, str]:
    """The earliest and the latest time of lines; the widest range where a line has none."""
    times = _TIME.findall(content)
    if not times or len(times) < content.count(b"\n"):
        return "", _LATEST
    return min(times).decode("utf-8", "replace"), max(times).decode("utf-8", "replace")


def _slice(content: Content, start: int, end: int) -> Callable[[], Content]:
    return lambda: content[start:end]


def _pieces(content: Content) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(content):
        end = content.find(b"\n", min(at + BLOCK_BYTES, len(content)) - 1) + 1
        end = end or len(content)
        yield at, end
        at = end


def _read_header(file: Path, head: bytes, at: int) -> Block | None:
    if len(head) < _HEAD_BYTES:
        return None
    magic, _, _, _, extra, name, length = _HEADER.unpack_from(head)
    facts = head[_HEADER.size : _HEADER.size + _FACTS.size]
    (total,) = _SUM.unpack_from(head, _HEADER.size + _FACTS.size)
    if (magic, name, extra, total) != (_MAGIC, _ID, length + 4, zlib.crc32(facts)):
        return None
    size, held, first, last = _FACTS.unpack(facts)
    begin = _HEADER.size + length
    if size <= begin:
        return None
    whole = len(head) >= begin
    return Block(
        load=lambda: _inflate(file, at, size, begin),
        start=at,
        size=size,
        held=held,
        first=first.rstrip(b"\0").decode("utf-8", "replace"),
        last=last.rstrip(b"\0").decode("utf-8", "replace"),
        letters=head[_HEAD_BYTES:begin] if whole else None,
    )


def _next_block(descriptor: int, at: int, end: int) -> int:
    """Position of the next header, from `at` on; the end where there is none."""
    while at < end:
        content = os.pread(descriptor, BLOCK_BYTES, at)
        found = content.find(_MAGIC)
        if found >= 0:
            return at + found
        if len(content) <= len(_MAGIC):
            return end
        at += len(content) - len(_MAGIC) + 1
    return end


def _inflate(file: Path, at: int, size: int, begin: int) -> bytes:
    """Lines of a block, as far as it is sound."""
    try:
        with file.open("rb", buffering=0) as reading:
            raw = os.pread(reading.fileno(), min(size, _INFLATED), at)[begin:]
    except OSError:  # it was removed to keep the log within its size
        return b""
    return _sound(raw, len(raw)) or _sound(raw, 512)


def _sound(raw: bytes, step: int) -> bytes:
    """The lines before the first damage; read in steps, they are more of them."""
    engine, content = zlib.decompressobj(wbits=-15), bytearray()
    with suppress(zlib.error):
        for start in range(0, len(raw), max(1, step)):
            content += engine.decompress(raw[start : start + step], _INFLATED)
            if len(content) >= _INFLATED:
                break
    return bytes(content)


def _letters(content: bytes) -> bytes:
    bits = bytearray(len(_DIGITS) ** 3 // 8)
    for at in _places(set(_WORD.findall(content.lower()))):
        bits[at >> 3] |= 1 << (at & 7)
    return zlib.compress(bytes(bits), 1)


def _places(words: Iterable[bytes]) -> list[int]:
    """Numbers of the sequences of three letters or digits in the words, each once, in the order of the words."""
    return list(map(_place, dict.fromkeys(word[at : at + 3] for word in words for at in range(len(word) - 2))))


def _place(triple: bytes) -> int:
    first, second, third = triple
    return (_PLACES[first] * 36 + _PLACES[second]) * 36 + _PLACES[third]
