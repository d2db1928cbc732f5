"""Messages between the controller and `relay_program` on a node, and the decoder of what a node reports.

The controller sends a `RelayTask`, then any number of `PullFrom`. A report is a line of JSON: an object by its kind.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from contract.json_reader import from_json

MOST_BYTES = 64 * 1024
"""Length of a report."""
TIMES = 3
"""Times of the whole that may come to a node: files that turn out to be wrong come again."""


@dataclass(frozen=True)
class FileToSend:
    """A file by its path in the folder."""

    name: str
    size: int
    sha256: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class RelayTask:
    """Everything that a node is to have, and the address on which it answers to other nodes."""

    token: str
    address: str
    folder: str
    files: Sequence[tuple[str, int, str, int]]
    skipped: int
    links: Mapping[str, str]
    folders: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PullFrom:
    """Receive what is missing from this node, in place of any other; without a port, from the controller."""

    source: str = ""
    address: str = ""
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class RelayReady:
    """The node has opened its port (0: it cannot), and waits for a source."""

    port: int
    held: int
    free: int
    folder: str


@dataclass(frozen=True, kw_only=True)
class RelayMoved:
    """Bytes that are there, that have come in this copy, and that the disk has given back; once a second."""

    held: int
    received: int
    verified: int


@dataclass(frozen=True, kw_only=True)
class RelayWants:
    """The controller is to send: from the offset in the first file to the beginning of the file `end`."""

    file: int
    offset: int
    end: int


@dataclass(frozen=True, kw_only=True)
class RelayBroken:
    """Nothing comes from this source (empty: the controller) any more, or a `wrong` file did, which is removed."""

    source: str
    why: str
    wrong: int | None


@dataclass(frozen=True, kw_only=True)
class RelayFinished:
    """The disk has given back all files, and they have their place. The node sends to others until its input ends."""

    received: int


@dataclass(frozen=True, kw_only=True)
class RelayFailed:
    """End of a copy for a reason that another source does not change; `unfit`: no Python 3.8 or newer."""

    kind: Literal["unfit", "full", "busy", "disk"]
    why: str


RelayReport = RelayReady | RelayMoved | RelayWants | RelayBroken | RelayFinished | RelayFailed
_KINDS: Mapping[str, type[RelayReport]] = {
    "ready": RelayReady, "moved": RelayMoved, "wants": RelayWants, "broken": RelayBroken, "finished": RelayFinished,
    "failed": RelayFailed,
}  # fmt: skip


def encode(message: RelayTask | PullFrom) -> bytes:
    text = json.dumps(asdict(message)).encode()
    return struct.pack(">I", len(text)) + text


def read_relay_report(line: bytes, files: Sequence[FileToSend], total: int) -> RelayReport:
    """Decode a line of a node that is to have these files of `total` bytes. ValueError: no such node reports that."""
    if len(line) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    try:
        ((kind, values),) = json.loads(line).items()
        report = from_json(_KINDS[kind], values)
    except (RecursionError, AttributeError, KeyError) as error:
        raise ValueError(f"not a report: {error}") from None
    bounds = {"port": 65535, "held": total, "verified": total, "received": TIMES * total, "file": len(files) - 1,
              "wrong": len(files) - 1, "end": len(files)}  # fmt: skip
    for name, value in asdict(report).items():
        if isinstance(value, int) and not 0 <= value <= bounds.get(name, value):
            raise ValueError(f"{name} is out of bounds")
    if isinstance(report, RelayWants) and not (report.file < report.end and report.offset < files[report.file].size):
        raise ValueError("not a range of the files")
    return report
