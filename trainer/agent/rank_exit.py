"""Classification of how the ranks of a node ended, and of whether a restart can help. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from contract.event_lines import decode_event
from contract.events import RankFailed
from contract.failures.classify import Classified, FailedRank, classify, distance_from_cause, reason_of
from contract.failures.of_programs import DATA_READ_ONLY
from contract.failures.owners import OUTCOMES, Outcome
from contract.failures.torchrun import first_failure
from contract.log_lines import split_rank
from trainer.errors import TrainerError

LONGEST = 2000
"""Maximum length of a reason: it goes to the other nodes in one message."""
_LATEST = 1e11
"""Seconds since 1970 up to which the time of an event counts; a script may write any event."""
_OF_WRITING = ("storage.read_only", "storage.permission", "storage.not_opened")
"""Causes of a rank that could not write to a path."""
_OWN_CODES = (2, 3)
"""Exit codes for an invalid command line and for a configuration error."""


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """The end of a node's ranks, described by the rank that failed first."""

    outcome: Outcome
    node: str
    rank: int | None = None
    """Global rank that failed first on the node; None: the node as a whole failed."""
    exit_code: int | None = None
    """Exit code of the rank; negative: the signal that ended it."""
    reason: str = ""
    cause: str = ""
    """Id of the signature that matched."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`."""
    because_of_others: bool = False
    """True if the rank only lost another one."""
    note: str = ""
    """Sentence of the coordinator about a run that ended well."""


def from_values(values: Mapping[str, Any]) -> RankExit:
    """Build a rank exit from decoded JSON. ValueError: values do not fit."""
    known = {field.name for field in fields(RankExit)}
    rank_exit = RankExit(**{key: value for key, value in values.items() if key in known})
    if rank_exit.outcome not in OUTCOMES or not all(isinstance(one, str) for one in (rank_exit.node, rank_exit.reason)):
        raise ValueError(f"not a rank exit: {values}")
    return rank_exit


def classify_exception(error: BaseException) -> Classified:
    """Classify an exception that ended a rank, with its chain of causes."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) and before not in chain:
        chain.append(before)
    texts = [f"{type(one).__name__}: {one}" for one in chain]
    failed = FailedRank(exit_code=1, reported=texts[0], reported_earlier=texts[1:])
    found = classify(failed)
    refused = isinstance(error, TrainerError) and error.exit_code in _OWN_CODES
    if refused and found and found.owner != "configuration":
        found = classify(replace(failed, reported_id="start.configuration"))
    assert found  # noqa: S101  # an exception is something
    return found


def root_cause(rank_exits: Sequence[RankExit]) -> RankExit:
    """The exit that caused the others; of equals the first reported."""
    return min(
        rank_exits,
        key=lambda one: distance_from_cause(one.outcome, lost_peer=one.because_of_others, cause=one.cause),
    )


def read_rank_exit(
    node: str,
    code: int,
    lines: Sequence[str],
    *,
    first_rank: int,
    frozen: str = "",
    is_data: Callable[[str], bool] = lambda _path: False,
) -> RankExit:
    """Classify by torchrun's exit code and the last lines of its output, a rank's own with the prefix `[rankN]: `.

    `frozen`: the reason why the agent killed a rank; empty: it killed none. `is_data`: whether a path leads into the
    run's data, which are read-only.
    """
    if code == 0:
        return RankExit(outcome="done", node=node, exit_code=0)
    written = [split_rank(line) for line in lines]
    first = first_failure([text for _, text in written])
    rank, exit_code = (first.rank, first.exit_code) if first else (None, code)
    rank_exit = RankExit(outcome="infrastructure", node=node, rank=rank, exit_code=exit_code)
    if frozen:
        return replace(rank_exit, reason=frozen, cause="node.frozen")
    failed = FailedRank(
        own=[text for writer, text in written if writer == (first_rank if rank is None else rank)],
        agent=[text for writer, text in written if writer is None],
        exit_code=exit_code,
    )
    if event := _reported(lines, rank):  # it knows the exception; the rank's lines may be another thread's
        rank = rank if event.rank is None else event.rank
        cause, frame = event.cause or "", event.frame or ""
        failed = replace(failed, own=(), reported=event.reason, reported_id=cause, reported_frame=frame)
    elif rank is None:
        rank = first_rank
    found = classify(failed)
    rank_exit = replace(rank_exit, rank=rank, reason=reason_of(failed, found)[:LONGEST])
    if found is None:
        return rank_exit
    if found.id in _OF_WRITING and is_data(found.values.get("path", "")):
        found = replace(found, signature=DATA_READ_ONLY)
    frame, lost_peer = found.frame[:LONGEST], found.lost_peer
    return replace(rank_exit, outcome=found.owner, cause=found.id, frame=frame, because_of_others=lost_peer)


def _reported(lines: Sequence[str], rank: int | None) -> RankFailed | None:
    """The failure that this rank reported, otherwise the first that any rank did."""
    decoded = [decode_event(text, writer) for writer, text in map(split_rank, lines)]
    events = [event for event in decoded if isinstance(event, RankFailed)]
    events.sort(
        key=lambda event: event.t if event.t and 0 <= event.t <= _LATEST else 0.0
    )  # lines are in order per rank
    return next((event for event in events if event.rank == rank), events[0] if events else None)
