"""Which rank failed first, and which only lost it: when one dies, the others fail too, a moment later."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.checks.causes.diagnose import diagnose
from orchestrator.checks.causes.last_words import last_words
from orchestrator.checks.causes.rule import Cause, Remains
from orchestrator.checks.verdict import Verdict

# What gloo, NCCL and the store say when the peer, not they, is at fault.
_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket closed|recvValue failed"
    r"|DistNetworkError|DistStoreError|Timed out waiting|NCCL WARN|remote process exited|ncclRemoteError"
    r"|collective operation timeout|connectFullMesh failed|Application timeout|could not join the others"
)
# Though it could not connect, this one knows why: the other told it an address of no use.
_OWN_FINDING = re.compile(r"connectFullMesh failed.*remote=\[127\.")
# Not "Failures:", which comes before it and names the ranks that failed later.
_ROOT = re.compile(
    r"^Root Cause .*\n(?:.*\n)*?\s+rank\s+: (?P<rank>\d+).*\n\s+exitcode\s+: (?P<code>-?\d+)", re.MULTILINE
)
_BY_SIGNAL = "ended by "
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
    frame: str = ""
    """Where it says that it happened."""
    kernel: tuple[str, ...] = ()
    """What the node's kernel says of its hardware, where it was asked."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The one to look at."""

    node: str
    rank: int
    exit_code: int | None
    """The rank's own exit code (negative: ended by that signal), else its container's."""
    reason: str
    lines: tuple[str, ...]
    cause: Cause | None = None
    """What it means and what to do, where a rule knows it."""


def root_cause(
    ended: Sequence[EndedBadly], *, verdict: Verdict | None = None, run: str = "RUN", keep_lines: int = 8
) -> Failure | None:
    """The failure that the others follow from; `ended` is in order of arrival. None where nothing failed.

    Where the supervisors in the containers agreed on a verdict, that decides who it was, and whose matter it is.
    """
    if verdict:
        named = next((one for one in ended if one.node == verdict.node), None)
        first = named or EndedBadly(
            node=verdict.node, node_rank=0, first_rank=0, exit_code=verdict.exit_code, oom_killed=False, lines=()
        )
        first = replace(first, reported=first.reported or verdict.reason, frame=first.frame or verdict.frame)
    elif ended:
        first = min(enumerate(ended), key=_how_far_from_the_cause)[1]
    else:
        return None
    rank, code = rank_and_code(first)
    if verdict:
        rank, code = rank if verdict.rank is None else verdict.rank, verdict.exit_code
    lines = _telling(first.lines, rank)
    cause = diagnose(_remains(first, rank, code, verdict), {"node": first.node, "rank": str(rank), "run": run})
    return Failure(
        node=first.node,
        rank=rank,
        exit_code=code,
        reason=_reason(first, code),
        lines=lines[-keep_lines:],
        cause=_as_judged(cause, verdict) if cause and verdict else cause,
    )


def _as_judged(cause: Cause, verdict: Verdict) -> Cause:
    """What the supervisors tried again, or did not, is their word; whose matter it is among people is the rule's."""
    of_machines = "infrastructure" in (verdict.kind, cause.kind)
    return replace(cause, kind=verdict.kind) if verdict.kind and of_machines else cause


def _how_far_from_the_cause(arrived: tuple[int, EndedBadly]) -> tuple[bool, bool, int]:
    """For sorting, nearest first."""
    number, ended = arrived
    # Whatever ends by a signal after another's failure was stopped because of it, if it said nothing of its own.
    was_stopped = number > 0 and not ended.oom_killed and rank_and_code(ended)[1] in (137, 143)
    return is_consequence(ended) or was_stopped, not ended.oom_killed, number


def is_consequence(ended: EndedBadly) -> bool:
    """Whether this node failed because of another: it speaks of a lost peer, or was told to stop."""
    rank, code = rank_and_code(ended)
    if ended.oom_killed or code is None:  # a node that is lost depends on nobody, whatever its connection says
        return False
    if code < 0:
        return code == -signal.SIGTERM
    if _AGENT_STOPPED.search(_text(ended)):
        return True
    said = ended.reported or "\n".join(_telling(ended.lines, rank))
    return bool(_PEER_LOST.search(said) and not _OWN_FINDING.search(said))


def rank_and_code(ended: EndedBadly) -> tuple[int, int | None]:
    """From torchrun's summary: the rank that failed first on this node, and how it ended."""
    found = _ROOT.search(_text(ended))
    if not found:
        return ended.first_rank, ended.exit_code
    return int(found["rank"]), int(found["code"])


def _remains(ended: EndedBadly, rank: int, code: int | None, verdict: Verdict | None) -> Remains:
    # Of a lost node, what is reported is the controller's or a supervisor's word, not the rank's.
    lost = code is None and (verdict is None or verdict.kind == "infrastructure")
    return Remains(
        own=tuple(_OWN_PREFIX.sub("", text) for writer, text in ended.lines if writer == rank),
        agent=tuple(_without_summary([line for line in ended.lines if line[0] is None])),
        exit_code=code,
        oom_killed=ended.oom_killed,
        reported="" if lost or ended.reported.startswith(_BY_SIGNAL) else ended.reported,
        reported_frame=ended.frame,
        kernel=ended.kernel,
    )


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
    if ended.reported and not ended.reported.startswith(_BY_SIGNAL):
        return ended.reported
    if code is not None and code < 0:
        return f"{_BY_SIGNAL}{_signal_name(-code)}"
    rank, _ = rank_and_code(ended)
    own = [_OWN_PREFIX.sub("", text) for writer, text in ended.lines if writer == rank]
    if words := last_words(own):
        return words.message[0] if words.message else "an exception without words"
    return f"exit code {code}" if code is not None else "its node does not answer"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
