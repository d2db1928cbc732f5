"""Which rank failed first, and which only lost it: when one dies, the others fail too, a moment later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from contract.failures.classify import Classified, FailedRank, classify, distance_from_cause, how_it_ended, reason_of
from contract.failures.torchrun import first_failure, without_summary
from contract.failures.tracebacks import is_torch_log
from contract.log_lines import readable
from orchestrator.checks.causes import Cause
from orchestrator.checks.generation_failure import GenerationFailure


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
    """Reason that the rank itself gave (its `failed` event), or why the node is lost; otherwise empty."""
    cause: str = ""
    """The signature that it found for it."""
    frame: str = ""
    """Where it says that it happened."""
    kernel: tuple[str, ...] = ()
    """Lines of the node's kernel log about its hardware, where it was asked."""


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
    """Meaning of the failure and what to do, where a rule knows it."""


def root_cause(
    ended: Sequence[EndedBadly], *, agreed: GenerationFailure | None = None, run: str = "RUN", keep_lines: int = 8
) -> Failure | None:
    """The failure that the others follow from; `ended` is in order of arrival. None where nothing failed.

    Where the agents in the containers agreed on the first failure, that one counts.
    """
    if agreed:
        named = next((one for one in ended if one.node == agreed.node), None)
        first = named or EndedBadly(
            node=agreed.node, node_rank=0, first_rank=0, exit_code=agreed.exit_code, oom_killed=False, lines=()
        )
        first = replace(
            first,
            reported=first.reported or agreed.reason,
            cause=first.cause or agreed.cause,
            frame=first.frame or agreed.frame,
        )
    elif ended:
        first = min(enumerate(ended), key=_how_far_from_the_cause)[1]
    else:
        return None
    rank, code = rank_and_code(first)
    if agreed:
        rank, code = rank if agreed.rank is None else agreed.rank, agreed.exit_code
    failed = _failed_rank(first, rank, code, agreed)
    found = classify(failed)
    return Failure(
        node=first.node,
        rank=rank,
        exit_code=code,
        reason=_reason(first, failed, found),
        lines=_telling(first.lines, rank)[-keep_lines:],
        cause=Cause.of(found, node=first.node, rank=str(rank), run=run) if found else None,
    )


def _how_far_from_the_cause(arrived: tuple[int, EndedBadly]) -> tuple[bool, bool, int, int]:
    """For sorting, nearest first."""
    number, ended = arrived
    # Whatever ends by a signal after another's failure was stopped because of it, if it said nothing of its own.
    was_stopped = number > 0 and not ended.oom_killed and rank_and_code(ended)[1] in (137, 143)
    found = _classified(ended)
    distance = distance_from_cause(found.owner, lost_peer=found.lost_peer, cause=found.id) if found else 0
    return is_consequence(ended) or was_stopped, not ended.oom_killed, distance, number


def is_consequence(ended: EndedBadly) -> bool:
    """Whether this node failed because of another: it lost a peer, or received a request to stop."""
    if ended.oom_killed or ended.exit_code is None:  # a node that is lost is not a consequence of another
        return False
    found = _classified(ended)
    return found is not None and found.lost_peer


def _classified(ended: EndedBadly) -> Classified | None:
    return classify(_failed_rank(ended, *rank_and_code(ended), None))


def rank_and_code(ended: EndedBadly) -> tuple[int, int | None]:
    """From torchrun's summary: the rank that failed first on this node, and how it ended."""
    found = first_failure([text for _, text in ended.lines])
    return (found.rank, found.exit_code) if found else (ended.first_rank, ended.exit_code)


def _failed_rank(ended: EndedBadly, rank: int, code: int | None, agreed: GenerationFailure | None) -> FailedRank:
    # Of a lost node, what is reported is the controller's or a supervisor's word, not the rank's.
    lost = code is None and (agreed is None or agreed.owner == "infrastructure")
    return FailedRank(
        own=tuple(text for writer, text in ended.lines if writer == rank),
        agent=tuple(text for writer, text in ended.lines if writer is None),
        exit_code=code,
        oom_killed=ended.oom_killed,
        reported="" if lost or ended.reported == how_it_ended(code) else ended.reported,
        reported_frame=ended.frame,
        reported_id=ended.cause,
        kernel=ended.kernel,
    )


def _telling(lines: Sequence[tuple[int | None, str]], rank: int) -> tuple[str, ...]:
    """Lines that the failed rank wrote itself; where it wrote none, those of torchrun, without its summary."""
    return tuple(text for text in _own_or_agents(lines, rank) if text.strip() and not is_torch_log(text))


def _own_or_agents(lines: Sequence[tuple[int | None, str]], rank: int) -> Iterator[str]:
    own = [readable(text) for writer, text in lines if writer == rank]
    yield from own or without_summary([readable(text) for _, text in lines])


def _reason(ended: EndedBadly, failed: FailedRank, found: Classified | None) -> str:
    """Reason of a failure. For a lost node the report of the one who lost it says more than the node's own lines."""
    if failed.exit_code is None and ended.reported and not ended.oom_killed:
        return ended.reported
    return reason_of(failed, found)
