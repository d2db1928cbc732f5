"""Which rank failed first, and which only lost it: when one dies, the others fail too, a moment later."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What gloo, NCCL and the store say when the peer, not they, is at fault.
_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket closed|recvValue failed"
    r"|DistNetworkError|DistStoreError|Timed out waiting|NCCL WARN|remote process exited|ncclRemoteError"
)
# Not "Failures:", which comes before it and names the ranks that failed later.
_ROOT = re.compile(
    r"^Root Cause .*\n(?:.*\n)*?\s+rank\s+: (?P<rank>\d+).*\n\s+exitcode\s+: (?P<code>-?\d+)", re.MULTILINE
)
_AGENT_STOPPED = re.compile(r"SignalException: Process \d+ got signal: 15")
_SUMMARY = re.compile(r"^={8,}$")
"""Begins and ends what torchrun sums up: rank and exit code are in the message already."""
_NOISE = re.compile(r"^\s*$|^[WEIF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
"""Empty lines, and those of torchrun's own log."""
_OWN_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before the lines of an uncaught exception."""


@dataclass(frozen=True, kw_only=True)
class EndedBadly:
    """A node whose container failed, as it was seen; the order in which they arrive counts."""

    node: str
    node_rank: int
    first_rank: int
    exit_code: int | None
    oom_killed: bool
    lines: tuple[tuple[int | None, str], ...]
    """The last it wrote, oldest first, each with its rank (None: torchrun's agent)."""
    reported: str = ""
    """What the rank itself said of its failure (its `failed` event), or why the node is lost; else empty."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The one to look at."""

    node: str
    rank: int
    exit_code: int | None
    """The rank's own exit code (negative: ended by that signal), else its container's."""
    reason: str
    lines: tuple[str, ...]


def root_cause(ended: Sequence[EndedBadly], *, keep_lines: int = 8) -> Failure | None:
    """The failure that the others follow from; `ended` is in order of arrival. None where nothing failed."""
    if not ended:
        return None
    first = min(enumerate(ended), key=lambda item: (_is_consequence(item[1]), item[0]))[1]
    rank, code = _rank_and_code(first)
    lines = _telling(first.lines, rank)
    return Failure(node=first.node, rank=rank, exit_code=code, reason=_reason(first, code), lines=lines[-keep_lines:])


def _is_consequence(ended: EndedBadly) -> bool:
    """Whether this node failed because of another: it speaks of a lost peer, or was told to stop."""
    rank, code = _rank_and_code(ended)
    if ended.oom_killed or code is None:  # a node that is lost depends on nobody, whatever its connection says
        return False
    if code < 0:
        return code == -signal.SIGTERM
    if _AGENT_STOPPED.search(_text(ended)):
        return True
    return bool(_PEER_LOST.search(ended.reported or "\n".join(_telling(ended.lines, rank))))


def _rank_and_code(ended: EndedBadly) -> tuple[int, int | None]:
    """From torchrun's summary: the rank that failed first on this node, and how it ended."""
    found = _ROOT.search(_text(ended))
    if not found:
        return ended.first_rank, ended.exit_code
    return int(found["rank"]), int(found["code"])


def _text(ended: EndedBadly) -> str:
    return "\n".join(text for _, text in ended.lines)


def _telling(lines: Sequence[tuple[int | None, str]], rank: int) -> tuple[str, ...]:
    """What the failed rank wrote itself; where it wrote nothing, what torchrun did, without its summary."""
    own = tuple(_OWN_PREFIX.sub("", text) for writer, text in lines if writer == rank)
    return tuple(text for text in own or _without_summary(lines) if not _NOISE.match(text))


def _without_summary(lines: Sequence[tuple[int | None, str]]) -> Iterator[str]:
    inside = False
    for _, text in lines:
        if _SUMMARY.match(text):
            inside = not inside
        elif not inside:
            yield text


def _reason(ended: EndedBadly, code: int | None) -> str:
    if ended.oom_killed:
        return "out of memory: the container reached its limit"
    if code is not None and code < 0:
        return f"ended by {_signal_name(-code)}"
    if ended.reported:
        return ended.reported
    return f"exit code {code}" if code is not None else "its node does not answer"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
