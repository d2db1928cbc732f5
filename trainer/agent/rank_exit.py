"""How a node's ranks ended, and whether another try could end better. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from contract.failures.classify import Classified, FailedRank, classify, distance_from_cause, reason_of
from contract.failures.owners import OUTCOMES, Outcome
from contract.failures.torchrun import first_failure
from contract.log_lines import EVENT_MARK, split_rank
from trainer.errors import TrainerError

LONGEST = 2000
"""Letters of a reason: it goes to the other nodes in one message."""
_OWN_CODES = (2, 3)
"""Of a command line that is not understood, and of the trainer's for a configuration that cannot be."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one node's ranks, as one rank's."""

    kind: Outcome
    node: str
    rank: int | None = None
    """Global rank that failed first there; None where it is the node's as a whole."""
    exit_code: int | None = None
    """The rank's; negative: ended by that signal."""
    reason: str = ""
    cause: str = ""
    """Id of the signature by which it was recognised."""
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
    if ending.kind not in OUTCOMES or not isinstance(ending.node, str) or not isinstance(ending.reason, str):
        raise ValueError(f"no ending: {values}")
    return ending


def classify_exception(error: BaseException) -> Classified:
    """An exception that ended a rank, with those that it came from."""
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


def root_cause(endings: Sequence[Ending]) -> Ending:
    """The one that the others follow from; of equals the first to be told."""
    return min(
        endings,
        key=lambda one: distance_from_cause(one.kind, lost_peer=one.because_of_others, cause=one.cause),
    )


def read_ending(node: str, code: int, lines: Sequence[str], *, first_rank: int, frozen: str = "") -> Ending:
    """From torchrun's exit code and the last lines of its output, `[rankN]: ` before a rank's own.

    `frozen`: why a rank was killed here, where one was.
    """
    if code == 0:
        return Ending(kind="done", node=node, exit_code=0)
    written = [split_rank(line) for line in lines]
    first = first_failure([text for _, text in written])
    rank, exit_code = (first.rank, first.exit_code) if first else (None, code)
    ending = Ending(kind="infrastructure", node=node, rank=rank, exit_code=exit_code)
    if frozen:
        return replace(ending, reason=frozen, cause="node.frozen")
    failed = FailedRank(
        own=[text for writer, text in written if writer == (first_rank if rank is None else rank)],
        agent=[text for writer, text in written if writer is None],
        exit_code=exit_code,
    )
    if told := _told(lines, rank):
        return _by_its_own_word(ending, failed, told)
    return _classified(replace(ending, rank=first_rank if rank is None else rank), failed)


def _told(lines: Sequence[str], rank: int | None) -> dict[str, Any]:
    """What the trainer said of a failure: that rank's event, else the first."""
    told = [values for values in map(_event, lines) if values.get("event") == "failed"]
    told.sort(key=_time)  # lines are in order for each rank alone
    return next((values for values in told if values.get("rank") == rank), told[0] if told else {})


_LATEST = 1e11
"""Seconds since 1970; a script may write any event."""


def _time(values: Mapping[str, Any]) -> float:
    at = values.get("t")
    return float(at) if isinstance(at, (int, float)) and 0 <= at <= _LATEST else 0.0


def _event(line: str) -> dict[str, Any]:
    _, mark, text = line.partition(EVENT_MARK)
    try:
        values = json.loads(text) if mark else {}
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _by_its_own_word(ending: Ending, failed: FailedRank, told: Mapping[str, Any]) -> Ending:
    """The rank's own event, which knows the exception; its lines may be another thread's."""
    rank = told["rank"] if isinstance(told.get("rank"), int) else ending.rank
    reported = replace(
        failed,
        own=(),
        reported=f"{told.get('error', 'error')}: {told.get('message', '')}",
        reported_id=str(told.get("cause") or ""),
        reported_frame=str(told.get("frame") or ""),
    )
    return _classified(replace(ending, rank=rank), reported)


def _classified(ending: Ending, failed: FailedRank) -> Ending:
    found = classify(failed)
    reason = reason_of(failed, found)[:LONGEST]
    if found is None:
        return replace(ending, reason=reason)
    return replace(
        ending,
        kind=found.owner,
        reason=reason,
        cause=found.id,
        frame=found.frame[:LONGEST],
        because_of_others=found.lost_peer,
    )
