"""Which rank failed first, and which only lost it: when one dies, the others fail too, a moment later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# What gloo, NCCL and the store say when the peer, not they, is at fault.
_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket closed|recvValue failed"
    r"|DistNetworkError|DistStoreError|Timed out waiting|NCCL WARN|remote process exited|ncclRemoteError"
)
_ROOT = re.compile(r"^\s+rank\s+: (?P<rank>\d+).*\n\s+exitcode\s+: (?P<code>-?\d+)", re.MULTILINE)
_SIGNALS = {-4: "SIGILL", -6: "SIGABRT", -7: "SIGBUS", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}
_NOISE = re.compile(r"^\s*$|^[=\-]{8,}$|^\s*(<NO_OTHER_FAILURES>|Failures:)\s*$")


@dataclass(frozen=True, kw_only=True)
class EndedBadly:
    """A node whose container failed, as it was seen; the order in which they arrive counts."""

    node: str
    node_rank: int
    first_rank: int
    exit_code: int | None
    oom_killed: bool
    lines: tuple[str, ...]
    """The last it wrote, oldest first."""
    reported: str = ""
    """What the rank itself said of its failure (its `failed` event), empty where it said nothing."""


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
    lines = tuple(line for line in first.lines if not _NOISE.match(line))
    return Failure(node=first.node, rank=rank, exit_code=code, reason=_reason(first, code), lines=lines[-keep_lines:])


def _is_consequence(ended: EndedBadly) -> bool:
    """Whether this node failed because of another: it died of no signal and speaks of a lost peer."""
    _, code = _rank_and_code(ended)
    if ended.oom_killed or (code is not None and code < 0 and code != -15):
        return False
    return bool(_PEER_LOST.search(ended.reported or "\n".join(ended.lines)))


def _rank_and_code(ended: EndedBadly) -> tuple[int, int | None]:
    """From torchrun's summary: the rank that failed first on this node, and how it ended."""
    found = _ROOT.search("\n".join(ended.lines))
    if not found:
        return ended.first_rank, ended.exit_code
    return int(found["rank"]), int(found["code"])


def _reason(ended: EndedBadly, code: int | None) -> str:
    if ended.oom_killed:
        return "out of memory: the container reached its limit"
    if code is not None and code < 0:
        return f"ended by {_SIGNALS.get(code, f'signal {-code}')}"
    if ended.reported:
        return ended.reported
    return f"exit code {code}" if code is not None else "its node does not answer"
