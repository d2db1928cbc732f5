"""How a node's ranks ended, and whether another try could end better. Pure."""

from __future__ import annotations

import errno
import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from contract.log_lines import EVENT_MARK
from trainer.data.files import failed_with
from trainer.errors import TrainerError

Kind = Literal["done", "stopped", "configuration", "user", "infrastructure"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FINAL: tuple[Kind, ...] = ("configuration", "user")
"""A person has to change something: another try would end alike."""
EXIT_CODES: Mapping[Kind, int] = {"done": 0, "stopped": 143, "configuration": 3, "user": 1, "infrastructure": 1}

LONGEST = 2000
"""Letters of a reason: it goes to the other nodes in one message."""
_RANK = re.compile(r"^\[rank(\d+)\]:\s?")
PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket closed|recvValue failed"
    r"|DistNetworkError|DistStoreError|DistBackendError|Timed out waiting|NCCL WARN|remote process exited"
    r"|ncclRemoteError|Application timeout|could not join the others"
)
"""What gloo, NCCL and the store say where a peer, not they, is at fault."""
_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_ROOT = re.compile(
    r"^Root Cause .*\n(?:.*\n)*?\s+rank\s+: (?P<rank>\d+).*\n\s+exitcode\s+: (?P<code>-?\d+)", re.MULTILINE
)
"""torchrun's summary: the rank that failed first on this node."""
_ERROR = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning))(?:: (?P<message>.*))?$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_AGENT_STOPPED = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
_BEGINS = "Traceback (most recent call last):"
_ASIDE = re.compile(r"^Exception ignored in|^Exception in thread")
_FOLLOWS = re.compile(r"^During handling of the above exception|^The above exception was the direct cause")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_OWN_CODES = (2, 3)
"""Of a command line that is not understood, and of the trainer's for a configuration that cannot be."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one node's ranks, as one rank's."""

    kind: Kind
    node: str
    rank: int | None = None
    """Global rank that failed first there; None where it is the node's as a whole."""
    exit_code: int | None = None
    """The rank's; negative: ended by that signal."""
    reason: str = ""
    frame: str = ""
    """Where in the code: `file:line in function`."""
    because_of_others: bool = False
    """Whether it only lost another rank."""

    def as_values(self) -> dict[str, Any]:
        return asdict(self)


def from_values(values: Mapping[str, Any]) -> Ending:
    """What a peer sent. ValueError: it is no ending."""
    known = {field.name for field in fields(Ending)}
    ending = Ending(**{key: value for key, value in values.items() if key in known})
    if ending.kind not in KINDS or not isinstance(ending.node, str) or not isinstance(ending.reason, str):
        raise ValueError(f"no ending: {values}")
    return ending


def class_of(error: BaseException) -> Kind:
    """Of an exception that ended a rank."""
    if isinstance(error, TrainerError) and error.exit_code in _OWN_CODES:
        return "configuration"
    if failed_with(error, errno.ENOSPC, errno.EDQUOT):
        return "user"
    if failed_with(error, errno.EIO, errno.ESTALE):
        return "infrastructure"
    return "infrastructure" if PEER_LOST.search(f"{type(error).__name__}: {error}") else "user"


def root_cause(endings: Sequence[Ending]) -> Ending:
    """The one that the others follow from: what a person must mend, then what broke by itself, then who went in peace;
    of equals the first to be told."""
    return min(enumerate(endings), key=lambda item: (_weight(item[1]), item[0]))[1]


def _weight(ending: Ending) -> int:
    if ending.kind in FINAL:
        return 0
    if ending.kind == "infrastructure":
        return 2 if ending.because_of_others else 1
    return 3


def read_ending(node: str, code: int, lines: Sequence[str], *, first_rank: int, frozen: str = "") -> Ending:
    """From torchrun's exit code and the last lines of its output, `[rankN]: ` before a rank's own.

    `frozen`: why a rank was killed here, where one was.
    """
    if code == 0:
        return Ending(kind="done", node=node, exit_code=0)
    found = _ROOT.search("\n".join(lines))
    rank = int(found["rank"]) if found else None
    exit_code = int(found["code"]) if found else code
    ending = Ending(kind="infrastructure", node=node, rank=rank, exit_code=exit_code)
    if frozen:
        return replace(ending, reason=frozen)
    if told := _told(lines, rank):
        return _by_its_own_word(ending, told)
    if exit_code < 0:
        return replace(ending, reason=f"ended by {_signal(-exit_code)}", because_of_others=exit_code == -signal.SIGTERM)
    return _by_its_lines(replace(ending, rank=first_rank if rank is None else rank), lines, spoke=rank is not None)


def _told(lines: Sequence[str], rank: int | None) -> dict[str, Any]:
    """What the trainer said of a failure: that rank's event, else the first."""
    told = [values for values in map(_event, lines) if values.get("event") == "failed"]
    told.sort(key=_time)  # lines are in order for each rank alone
    return next((values for values in told if values.get("rank") == rank), told[0] if told else {})


def _time(values: Mapping[str, Any]) -> float:
    at = values.get("t")
    return float(at) if isinstance(at, (int, float)) else 0.0


def _event(line: str) -> dict[str, Any]:
    _, mark, text = line.partition(EVENT_MARK)
    try:
        values = json.loads(text) if mark else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _by_its_own_word(ending: Ending, told: Mapping[str, Any]) -> Ending:
    kind = told.get("class")
    message = f"{told.get('error', 'error')}: {told.get('message', '')}"
    lost = bool(PEER_LOST.search(message))
    return replace(
        ending,
        kind=kind if kind in KINDS else "user",
        rank=told["rank"] if isinstance(told.get("rank"), int) else ending.rank,
        reason=message[:LONGEST],
        frame=str(told.get("frame", ""))[:LONGEST],
        because_of_others=lost,
    )


def _by_its_lines(ending: Ending, lines: Sequence[str], *, spoke: bool) -> Ending:
    """A script of the user's: its last traceback, if it left one; else what torchrun's own agent wrote.

    What a script once complained of, and went on, is not what ended it.
    """
    own = list(_lines_of(lines, ending.rank) if spoke else lines)
    said = "\n".join(own or lines)
    block = _last_traceback(own)
    last = "\n".join(block) or said
    error = next((match for line in reversed(block or own) if (match := _ERROR.match(line))), None)
    reason = error[0] if error else f"exit code {ending.exit_code}"
    frames = (match for line in reversed(block or own) if (match := _FRAME.match(line)))
    frame = next((f"{found['file']}:{found['line']} in {found['function']}" for found in frames), "")
    ending = replace(ending, reason=reason[:LONGEST], frame=frame[:LONGEST])
    if stopped := _AGENT_STOPPED.search(said):
        return replace(ending, reason=f"torchrun was ended by {_signal(int(stopped[1]))}")
    if _NO_ROOM.search(last):
        return replace(ending, kind="user")
    if _PORT_TAKEN.search(last):
        return replace(ending, reason="the master port is taken: EADDRINUSE")
    if PEER_LOST.search(error[0] if error else said):
        return replace(ending, because_of_others=True)
    if ending.exit_code in _OWN_CODES:
        words = next((line for line in reversed(own or lines) if "error:" in line.lower()), reason)
        return replace(ending, kind="configuration", reason=words.strip())
    return replace(ending, kind="user")


def _last_traceback(lines: Sequence[str]) -> Sequence[str]:
    """With those that it followed from, and without what threads and destructors say after it; empty: there is none."""
    starts = [number for number, line in enumerate(lines) if _BEGINS in line]
    asides = [
        number for number in starts if any(_ASIDE.search(line) for line in lines[max(0, number - 1) : number + 1])
    ]
    of_the_end = [number for number in starts if number not in asides]
    if not of_the_end:
        return ()
    begin, end = of_the_end[-1], min((number for number in asides if number > of_the_end[-1]), default=len(lines))
    while len(of_the_end) > 1 and any(_FOLLOWS.match(line) for line in lines[of_the_end[-2] : begin]):
        of_the_end.pop()
        begin = of_the_end[-1]
    return lines[begin:end]


def _lines_of(lines: Sequence[str], rank: int | None) -> Iterator[str]:
    for line in lines:
        found = _RANK.match(line)
        if found and int(found[1]) == rank:
            text = line[found.end() :]
            yield text[match.end() :] if (match := _RANK.match(text)) else text  # torch prefixes tracebacks once more


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
