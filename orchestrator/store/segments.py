"""Files with the log lines of a run: for each container a series of segments, of which all but the newest are gzip.

A segment that is written is `NODE@CONTAINER.NUMBER.jsonl`; a full one is `NODE@CONTAINER.NUMBER.FIRST.LAST.jsonl.gz`,
with the earliest and the latest time of its lines, so that a reader opens only those that it needs.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any

from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.run import short_id
from orchestrator.specs.run_events import RunLine

FOLDER = "lines"
"""Folder within that of a run."""
SEGMENT_BYTES = 1024 * 1024
"""Bytes of lines from which a segment is full: a reader has one of each container in memory."""
LONGEST = 8 * 1024 * 1024
"""Bytes of a line in a file: a line of the log has at most 1 MiB, each character of it at most six bytes here."""
MOST_BYTES = 4 * LONGEST
"""Bytes that are read of a segment: a foreign file may have any size."""
LATEST = "\U0010ffff"
"""Later than every time: of a segment whose times are not known."""
_STAMP = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}(?:\.[0-9]{1,9})?Z"
_NAME = re.compile(
    r"(?P<node>[^@/]+)@(?P<container>[\w-]{0,12})\.(?P<number>[0-9]{4,8})"
    rf"(?:\.(?P<first>{_STAMP})\.(?P<last>{_STAMP}))?\.jsonl(?P<packed>\.gz)?",
    re.ASCII,
)
_TIME = re.compile(rb'^\{"time": "([^"\\]{1,40})"', re.MULTILINE)
_PLAIN_TIME = re.compile(_STAMP.replace("T[0-9]{6}", "T[0-9]{2}:[0-9]{2}:[0-9]{2}"), re.ASCII)
_KINDS = {"time": str, "node": str, "node_rank": int, "text": str}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Some lines of one container, next to each other."""

    path: Path
    stem: str
    """Node and container."""
    number: int
    packed: bool
    first: str = ""
    """Earliest time of its lines, and `last` the latest; of a full segment."""
    last: str = LATEST
    end: int | None = None
    """Bytes of its lines that are read; None: all."""

    @property
    def node(self) -> str:
        return self.stem.partition("@")[0]

    @property
    def size(self) -> int:
        """Bytes of the file; 0 if it is gone."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def text_size(self) -> int:
        """Bytes of its lines; 0 if it is gone."""
        if not self.packed:
            return self.size
        with suppress(OSError, struct.error), self.path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            return int(struct.unpack("<I", file.read(4))[0])
        return 0

    def content(self) -> bytes:
        """Its whole lines, as far as they are sound; empty if it is gone."""
        return self._whole()[: self.end]

    def times(self) -> tuple[str, str]:
        """Earliest and latest time; the widest range where they are not known."""
        return (self.first, self.last) if self.packed else times_in(self.content())

    def begins_at(self) -> str:
        """Time of its first line."""
        if self.packed:
            return self.first
        with suppress(OSError), self.path.open("rb") as file:
            match = _TIME.match(file.readline(4096))
            return match[1].decode("utf-8", "replace") if match else ""
        return ""

    def _whole(self) -> bytes:
        with suppress(OSError):
            return self._read()
        for file in self.path.parent.glob(f"{escape(self.path.name.removesuffix('.jsonl'))}.*.jsonl.gz"):
            with suppress(OSError):  # it has just been compressed
                return _inflated(file)
        return b""

    def _read(self) -> bytes:
        if self.packed:
            return _inflated(self.path)
        content = read_some(self.path)
        return content[: content.rfind(b"\n") + 1]


Ends = Mapping[str, tuple[int, int]]
"""End of the lines of each container: number of the segment, and bytes of it."""


def ends_of(segments: Iterable[Segment]) -> Ends:
    """The ends of these segments, each container's in the order written, at this moment."""
    newest = {one.stem: one for one in segments}
    return {stem: (one.number, len(one.content())) for stem, one in newest.items()}


def within(segments: Iterable[Segment], ends: Ends) -> list[Segment]:
    """The segments as they were when the containers' lines ended there."""
    known = [(one, *ends[one.stem]) for one in segments if one.stem in ends]
    return [
        replace(one, end=end if one.number == number else None) for one, number, end in known if one.number <= number
    ]


def stem_of(node: str, container: str) -> str:
    """Beginning of the names of a container's segments."""
    return f"{node}@{short_id(container)}"


def segments_in(folder: Path, stem: str = "") -> list[Segment]:
    """Segments of one container or of all, each container's in the order written. Of one that is there twice, since
    a crash came after its compression, the compressed one."""
    found = _listed(folder, stem)
    newest = {one.stem: one.number for one in sorted(found.values(), key=lambda one: one.number)}
    if len(found) < sum(newest.values()):  # one that is compressed meanwhile may be missing under both names
        again = _listed(folder, stem)
        found |= {key: one for key, one in again.items() if key not in found or one.packed}
    return [found[key] for key in sorted(found) if not stem or key[0] == stem]


def _listed(folder: Path, stem: str) -> dict[tuple[str, int], Segment]:
    found: dict[tuple[str, int], Segment] = {}
    for file in folder.glob(f"{escape(stem)}.*.jsonl*" if stem else "*.jsonl*"):
        if name := _NAME.fullmatch(file.name):
            key = f"{name['node']}@{name['container']}", int(name["number"])
            if key not in found or name["packed"]:
                found[key] = Segment(
                    path=file,
                    stem=key[0],
                    number=key[1],
                    packed=bool(name["packed"]),
                    first=_time(name["first"] or ""),
                    last=_time(name["last"]) if name["last"] else LATEST,
                )
    return found


def pack(segment: Segment) -> Segment | None:
    """Compress a full segment; None if another process has done so. OSError: the disk is full; nothing is lost."""
    try:
        content = segment.path.read_bytes()
    except FileNotFoundError:
        return None
    first, last = times_in(content)
    known = first and last is not LATEST
    span = f".{first.replace(':', '')}.{last.replace(':', '')}" if known else ""
    path = segment.path.with_name(f"{segment.path.name.removesuffix('.jsonl')}{span}.jsonl.gz")
    replace_file(path, gzip.compress(content, 6, mtime=0))
    segment.path.unlink(missing_ok=True)
    return Segment(path=path, stem=segment.stem, number=segment.number, packed=True, first=first, last=last)


def times_in(content: bytes) -> tuple[str, str]:
    """The earliest and the latest time of lines; the widest range where one has none, or one of another format."""
    times = line_times(content)
    if not times:
        return "", LATEST
    span = min(times).decode("ascii", "replace"), max(times).decode("ascii", "replace")
    return span if all(map(_PLAIN_TIME.fullmatch, span)) else ("", LATEST)


def line_times(content: bytes) -> list[bytes]:
    """The time of each line; empty if one has none."""
    times = times_of(content)
    return times if len(times) == content.count(b"\n") else []


def times_of(content: bytes) -> list[bytes]:
    """The times of all lines that have one."""
    return _TIME.findall(content)


def as_json(line: RunLine) -> bytes:
    """The log line as one line of JSON."""
    text = json.dumps(line.values(), ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # which is JSON too


def parse_line(raw: bytes, stem: str = "") -> RunLine | None:
    """The line of a file, whose name begins with this stem; None if it is not valid."""
    try:
        values: dict[str, Any] = json.loads(raw.decode("utf-8", "surrogatepass"))  # bytes it would look at first
        sound = len(values) == len(_KINDS) + 1 and all(type(values[name]) is kind for name, kind in _KINDS.items())
        container = stem.partition("@")[2]
        return RunLine(**values, container=container) if sound and isinstance(values["rank"], int | None) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def read_some(path: Path, offset: int = 0) -> bytes:
    """Bytes of a file from this position on, at most `MOST_BYTES`."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), max(0, min(size - offset, MOST_BYTES)), offset)


def raw_lines_backwards(content: bytes) -> Iterator[bytes]:
    """The lines, the last first."""
    end = len(content) - content.endswith(b"\n")
    while end > 0:
        at = content.rfind(b"\n", 0, end)
        if end - at - 1 <= LONGEST:
            yield content[at + 1 : end]
        end = at


def _time(stamp: str) -> str:
    """A time in a file's name as it is on the lines."""
    return f"{stamp[:13]}:{stamp[13:15]}:{stamp[15:]}" if stamp else ""


def _inflated(file: Path) -> bytes:
    """The whole lines of a gzip file before its first damage."""
    raw = read_some(file)
    try:
        content = zlib.decompressobj(wbits=31).decompress(raw, MOST_BYTES)
    except zlib.error:
        content, engine = b"", zlib.decompressobj(wbits=31)
        with suppress(zlib.error):
            for at in range(0, len(raw), 512):
                content += engine.decompress(raw[at : at + 512], MOST_BYTES)
    return content[: content.rfind(b"\n") + 1]
