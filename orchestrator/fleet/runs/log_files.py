"""Files with log lines in the folder of a run: their names, and a line of them as data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.fleet.runs.log_blocks import Block, packed_blocks, plain_blocks
from orchestrator.specs.run_events import RunLine

_NAME = re.compile(
    r"(?P<node>[^@]+?)(?:@(?P<container>[\w-]{1,12}))?\.log(?:\.(?P<number>[0-9]{1,6}))?\.jsonl(?P<packed>\.gz)?",
    re.ASCII,
)
_KINDS = {"time": str, "node": str, "node_rank": int, "text": str}
_OF_KINDS = list(_KINDS.values())


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A file with lines of one container."""

    path: Path
    stem: str
    """Node and container."""
    number: int
    packed: bool

    @property
    def node(self) -> str:
        return self.stem.partition("@")[0]

    @property
    def order(self) -> tuple[str, int, bool]:
        """Key by which the files of a container are in the order written."""
        return self.stem, self.number, not self.packed

    @property
    def size(self) -> int:
        """Bytes; 0 if it is gone, as a file is whose lines have just been compressed."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def blocks(self, *, with_times: bool = True) -> list[Block]:
        return packed_blocks(self.path) if self.packed else plain_blocks(self.path, with_times=with_times)

    def begins_at(self) -> str:
        """Earliest time of its first lines; empty if it has none."""
        for block in self.blocks(with_times=False)[:1]:
            if self.packed:
                return block.first
            for raw in block.raw_lines():
                line = parse_line(raw)
                return line.time if line else ""
        return ""


def log_files(folder: Path, pattern: str = "*.jsonl*") -> list[LogFile]:
    """Files of each container, in the order written."""
    found = []
    for file in folder.glob(pattern):
        if name := _NAME.fullmatch(file.name):
            stem = f"{name['node']}@{name['container']}" if name["container"] else name["node"]
            found.append(LogFile(path=file, stem=stem, number=int(name["number"] or 1), packed=bool(name["packed"])))
    return sorted(found, key=lambda file: file.order)


def parse_line(raw: bytes) -> RunLine | None:
    """The line of a file; None if it is not valid."""
    try:
        values: dict[str, Any] = json.loads(raw.decode("utf-8", "surrogatepass"))  # bytes it would look at first
        sound = [type(values[name]) for name in _KINDS] == _OF_KINDS
        return RunLine(**values) if sound and isinstance(values["rank"], int | None) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def stem_of(node: str, container: str) -> str:
    """Beginning of the names of a container's files."""
    return f"{node}@{_short(container)}" if container else node


def _short(container: str) -> str:
    return re.sub(r"[^\w-]", "-", container[:12], flags=re.ASCII)
