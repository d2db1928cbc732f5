"""The rank that failed first. When one rank ends, the others lose it and fail a moment later.

The agents in the containers agree on it (`GenerationFailure`); without them, the evidence of each node decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contract.failures.classify import Classified, FailedRank, classify, distance_from_cause, how_it_ended, reason_of
from contract.failures.owners import Owner
from contract.failures.torchrun import first_failure, without_summary
from contract.failures.tracebacks import is_torch_log
from contract.log_lines import readable
from orchestrator.checks.causes import Cause
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.own_files import OwnFiles

SHOWN_LINES = 8
"""Last lines of the rank that are shown with its failure."""


@dataclass(frozen=True, kw_only=True)
class GenerationFailure:
    """A `finished` or `restarting` event about a failure."""

    node: str
    rank: int | None
    exit_code: int | None
    owner: Owner
    reason: str
    cause: str = ""
    """Id of the signature that the agents found."""
    frame: str = ""
    generation: int = 0
    """The generation that it ended; 0 where the attempt is over."""
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class EndedBadly:
    """Evidence of a node with a failed container."""

    node: str
    node_rank: int
    first_rank: int
    exit_code: int | None
    oom_killed: bool
    lines: tuple[tuple[int | None, str], ...]
    """Its last lines, oldest first, each with its rank (None: torchrun's agent)."""
    reported: str = ""
    """Reason in the rank's own `failed` event, or why the node is lost; otherwise empty."""
    cause: str = ""
    """Id of the signature that the rank found."""
    frame: str = ""
    kernel: tuple[str, ...] = ()
    """Lines of the node's kernel log about its hardware."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure that the others follow from."""

    node: str
    rank: int
    exit_code: int | None
    """The rank's own exit code (negative: ended by that signal), otherwise its container's."""
    reason: str
    lines: tuple[str, ...]
    cause: Cause | None = None
    """Meaning of the failure and what to do, if its signature is known."""


def root_cause(
    ended: Sequence[EndedBadly],
    *,
    agreed: GenerationFailure | None = None,
    run: str = "RUN",
    again: str = "",
    job: ClusterJob | None = None,
    here: OwnFiles | None = None,
) -> Failure | None:
    """The failure that the others follow from; `ended` is in order of arrival. None where nothing failed.

    Where the agents in the containers agreed on the first failure, that one counts. `job`: where the run is a job of a
    cluster; `again`: as of `Cause.of`; `here`: files of this computer that a rank may not have found.
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
    if here and found:
        found = here.looked_up(found)
    # The report about a lost node says more than the node's own lines.
    lost = code is None and first.reported and not first.oom_killed
    own = [readable(text) for writer, text in first.lines if writer == rank]
    lines = own or without_summary([readable(text) for _, text in first.lines])
    return Failure(
        node=first.node,
        rank=rank,
        exit_code=code,
        reason=first.reported if lost else reason_of(failed, found),
        lines=tuple(line for line in lines if line.strip() and not is_torch_log(line))[-SHOWN_LINES:],
        cause=Cause.of(found, job=job, node=first.node, rank=str(rank), run=run, again=again) if found else None,
    )


def _how_far_from_the_cause(arrived: tuple[int, EndedBadly]) -> tuple[bool, bool, int, int]:
    """Sort key: the cause first."""
    number, ended = arrived
    # A node that ends by a signal after the failure of another was stopped because of it.
    was_stopped = number > 0 and not ended.oom_killed and rank_and_code(ended)[1] in (137, 143)
    found = _classified(ended)
    distance = distance_from_cause(found.owner, lost_peer=found.lost_peer, cause=found.id) if found else 0
    return is_consequence(ended) or was_stopped, not ended.oom_killed, distance, number


def is_consequence(ended: EndedBadly) -> bool:
    """Return whether this node failed because of another: it lost a peer, or received a request to stop."""
    if ended.oom_killed or ended.exit_code is None:  # a lost node is not a consequence of another
        return False
    found = _classified(ended)
    return found is not None and found.lost_peer


def _classified(ended: EndedBadly) -> Classified | None:
    return classify(_failed_rank(ended, *rank_and_code(ended), None))


def rank_and_code(ended: EndedBadly) -> tuple[int, int | None]:
    """Read from torchrun's summary the rank that failed first on this node, and how it ended."""
    found = first_failure([text for _, text in ended.lines])
    return (found.rank, found.exit_code) if found else (ended.first_rank, ended.exit_code)


def _failed_rank(ended: EndedBadly, rank: int, code: int | None, agreed: GenerationFailure | None) -> FailedRank:
    # A report about a lost node is from the controller or a supervisor, not from the rank.
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
