"""Level of a log line, from its event or from the marks that programs write: Python's logging, warnings and
tracebacks, torch's and NCCL's logs. A line without such a mark is `info`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache

from contract.events import (
    Event,
    LivenessReported,
    NodesStalled,
    OutputsMissing,
    RankFailed,
    RankLeftOut,
    Restarting,
    WaitingForNodes,
)
from contract.failures.tracebacks import begins, is_torch_log
from contract.log_lines import readable
from orchestrator.specs.run_events import RunLine

MOST_INDENTED = 400
"""Indented lines that are held until the line before them is read."""
_ERROR_EVENTS = (RankFailed, LivenessReported, NodesStalled)
_WARNING_EVENTS = (Restarting, WaitingForNodes, RankLeftOut, OutputsMissing)
_LOOK_AT = 120
"""Characters in which the level of a logging line is looked for."""
_LEVEL_WORD = re.compile(r"(?<![\w'\"])(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)(?![\w'\"])")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt)(?:: |$)|(?:\S{1,80}: )?(?:fatal )?error: ")
_FRAME = re.compile(r'\s+File "[^"]+", line [0-9]+')
_WARNING = re.compile(r"(?:\S{1,300}: )?(?:[A-Za-z_]\w{0,60}Warning|[Ww]arning): ")
_ERROR_TEXTS = (b"error", b"traceback", b"exception", b"interrupt", b"critical", b"fatal")
_TORCH_LOG = rb'"text": "(?:\[rank[0-9]{1,9}\]:(?: |\\t)?)*\[?[%b][0-9]{3}'


class LineLevel(Enum):
    """Levels of log lines, in ascending order."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def reaches(self, other: LineLevel) -> bool:
        """Return whether it is at least the other one."""
        return _ORDER[self] >= _ORDER[other]


_ORDER = {level: number for number, level in enumerate(LineLevel)}


def level_of(line: RunLine) -> LineLevel:
    """LineLevel of the line by itself."""
    if event := line.event:
        if isinstance(event, LivenessReported) and not event.fault:
            return LineLevel.INFO
        found = LineLevel.WARNING if isinstance(event, _WARNING_EVENTS) else LineLevel.INFO
        return LineLevel.ERROR if isinstance(event, _ERROR_EVENTS) else found
    text = readable(line.text)
    if begins(text) or _FRAME.match(text) or _EXCEPTION.match(text):
        return LineLevel.ERROR
    if _WARNING.match(text):
        return LineLevel.WARNING
    if is_torch_log(text):
        letter = text.lstrip("[")[0]
        return LineLevel.ERROR if letter in "EF" else LineLevel.WARNING if letter == "W" else LineLevel.INFO
    match = _LEVEL_WORD.search(text[:_LOOK_AT])
    level = match[1] if match else ""
    if level in ("ERROR", "CRITICAL", "FATAL"):
        return LineLevel.ERROR
    return LineLevel.WARNING if level in ("WARN", "WARNING") else LineLevel.INFO


@cache
def near_level(level: LineLevel) -> Callable[[bytes], bool] | None:
    """Return a check whether lines of a record, in lower case, may have one of at least this level, apart from indented
    ones, which continue others. None: any line has this level."""
    if level is LineLevel.INFO:
        return None
    warns = level is LineLevel.WARNING
    events = (*_ERROR_EVENTS, *_WARNING_EVENTS) if warns else _ERROR_EVENTS
    kinds = [kind.encode() for kind, event in Event.kinds.items() if issubclass(event, events)]
    texts = (*((b"warn",) if warns else ()), *_ERROR_TEXTS, *kinds)
    torch_log = re.compile(_TORCH_LOG % (b"efw" if warns else b"ef"))

    def may_reach(lowered: bytes) -> bool:
        has = any(text in lowered for text in texts) or (b'file \\"' in lowered and b'\\", line ' in lowered)
        return has or torch_log.search(lowered) is not None

    return may_reach


class LevelReader:
    """LineLevel of the lines of a run as they come: an indented line continues the one before it of the same rank."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int | None], LineLevel] = {}

    def hear(self, line: RunLine) -> LineLevel:
        own, writer = level_of(line), (line.node, line.rank)
        if _continues(line, own):
            return self._before.get(writer, own)
        self._before[writer] = own
        return own


def levels_newest_first(lines: Iterable[RunLine]) -> Iterator[tuple[RunLine, LineLevel]]:
    """The same of lines that come in descending order: an indented line comes after the one that it continues."""
    held: dict[tuple[str, int | None], list[RunLine]] = {}
    for line in lines:
        own, writer = level_of(line), (line.node, line.rank)
        waiting = held.setdefault(writer, [])
        if _continues(line, own) and len(waiting) < MOST_INDENTED:
            waiting.append(line)
            continue
        yield from ((one, own) for one in waiting)
        yield line, own
        waiting.clear()
    for waiting in held.values():
        yield from ((one, LineLevel.INFO) for one in waiting)


def _continues(line: RunLine, own: LineLevel) -> bool:
    return own is LineLevel.INFO and line.text[:1] in (" ", "\t")
