"""What the nodes of a run decide together: start, again, or over. Pure: the clock comes in, orders go out.

Rank 0's node holds it. Every node says `ready`; when all have, all are told to go. One rank's end is everybody's: the
others would hang in a collective for minutes, and torchrun's own agents tell each other nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from contract.failures.owners import FINAL
from trainer.agent.rank_exit import Ending, root_cause

SETTLE_S, PATIENT_SETTLE_S = 0.5, 5.0
"""After an end: time for the others to tell theirs; and where so far all only lost somebody, for that one to speak."""
STALLED_S = 8.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
REMIND_S = 10.0
GONE = "its connection ended: so did its container, or it lost sight of the others"


@dataclass(frozen=True, kw_only=True)
class Go:
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Again:
    epoch: int
    """That is to come."""
    cause: Ending
    restarts_left: int
    pause_s: float


@dataclass(frozen=True, kw_only=True)
class Over:
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Something for whoever follows the run."""

    kind: str
    values: dict[str, object]


Order = Go | Again | Over | Tell


@dataclass(frozen=True, kw_only=True)
class Patience:
    """What a run puts up with."""

    restarts: int
    """After failures that another try may mend, with no checkpoint in between."""
    silence_s: float = 60.0
    """Of a node while all train; then it counts as lost."""
    absence_s: float = 900.0
    """While the others wait for it."""


@dataclass
class _Seat:
    name: str
    here: bool = False
    ready: bool = False
    heard: float = 0.0
    stalled: bool = False
    ending: Ending | None = None


@dataclass
class Council:
    """`names` in order of node_rank."""

    names: Sequence[str]
    patience: Patience
    epoch: int = 0
    """Of the ranks that run, or ran last; 0 before the first."""
    over: Ending | None = None
    _seats: list[_Seat] = field(default_factory=list)
    _running: bool = False
    _used: int = 0
    _decide_at: float | None = None
    _waits_since: float = 0.0
    _not_before: float = 0.0
    _told_at: float = 0.0

    def __post_init__(self) -> None:
        self._seats = [_Seat(name=name) for name in self.names]

    def open(self, now: float) -> None:
        self._waits_since = self._told_at = now

    def ready(self, rank: int, epoch: int, now: float) -> list[Order]:
        """A node has no rank that runs, and would start. `epoch`: the last that it has seen."""
        seat = self._hear(rank, now)
        if self.over:
            return []
        if self._running and seat.here:  # its container was started again before its connection was known to be lost
            return [*self.gone(rank, now), *self.ready(rank, epoch, now)]
        seat.here = seat.ready = True
        self.epoch = max(self.epoch, epoch)
        return self._start(now)

    def alive(self, rank: int, now: float) -> list[Order]:
        seat = self._hear(rank, now)
        if seat.stalled:
            seat.stalled = False
            return [Tell(kind="heard", values={"nodes": [seat.name]})]
        return []

    def ended(self, rank: int, ending: Ending, now: float) -> list[Order]:
        """A node's ranks have ended."""
        seat = self._hear(rank, now)
        seat.ending = ending
        if self.over:
            return []
        if not self._running:  # what it could not tell before: the others have lost it since
            return self._close(ending) if ending.kind in FINAL and not ending.because_of_others else []
        if all(other.ending and other.ending.kind == "done" for other in self._seats):
            return self._close(ending)
        if ending.kind != "done" and self._decide_at is None:
            self._decide_at = now + PATIENT_SETTLE_S
        return self.tick(now)

    def gone(self, rank: int, now: float, why: str = GONE) -> list[Order]:
        """A node's connection is lost, or it has been silent for too long."""
        seat = self._seats[rank]
        was_here, seat.here, seat.ready, seat.stalled = seat.here, False, False, False
        if not self._running or not was_here or seat.ending:
            return []
        return self.ended(rank, Ending(kind="infrastructure", node=seat.name, reason=why), now)

    def progressed(self) -> None:
        """A checkpoint was written: failures before it are forgotten."""
        self._used = 0

    def tick(self, now: float) -> list[Order]:
        if self.over:
            return []
        if not self._running:
            return [*self._start(now), *self._wait(now)]
        orders: list[Order] = []
        for rank, seat in enumerate(self._seats):
            silent = now - seat.heard
            if rank == 0 or not seat.here:
                continue
            if silent > self.patience.silence_s:
                orders += self.gone(rank, now, f"no word from it for {silent:.0f} s")
            elif silent > STALLED_S and not seat.stalled:
                seat.stalled = True
                orders.append(Tell(kind="stalled", values={"nodes": [seat.name], "seconds": round(silent)}))
        if self._decide_at is not None and self._is_settled(now):
            orders += self._decide(now)
        return orders

    def _is_settled(self, now: float) -> bool:
        """Whether waiting longer would tell more."""
        assert self._decide_at is not None  # noqa: S101  # asked only where something has ended
        endings = [seat.ending for seat in self._seats if seat.ending and seat.ending.kind != "done"]
        if all(seat.ending or not seat.here for seat in self._seats) or now >= self._decide_at:
            return True
        its_own = any(not ending.because_of_others for ending in endings)
        return its_own and now >= self._decide_at - PATIENT_SETTLE_S + SETTLE_S

    def _decide(self, now: float) -> list[Order]:
        cause = root_cause([seat.ending for seat in self._seats if seat.ending])
        peaceful = cause.kind in ("stopped", "done")
        if cause.kind in FINAL or (not peaceful and self._used >= self.patience.restarts):
            return self._close(cause)
        pause = 0.0 if peaceful else min(FIRST_PAUSE_S * 2**self._used, LONGEST_PAUSE_S)
        self._used += not peaceful
        self._running, self._decide_at = False, None
        self._not_before, self._waits_since, self._told_at = now + pause, now, now
        for seat in self._seats:
            seat.ready, seat.ending, seat.stalled = False, None, False
        left = self.patience.restarts - self._used
        return [Again(epoch=self.epoch + 1, cause=cause, restarts_left=left, pause_s=pause)]

    def _start(self, now: float) -> list[Order]:
        if self._running or self.over or now < self._not_before or not all(seat.ready for seat in self._seats):
            return []
        self._running, self._decide_at = True, None
        self.epoch += 1
        for seat in self._seats:
            seat.heard, seat.ending = now, None
        return [Go(epoch=self.epoch)]

    def _wait(self, now: float) -> list[Order]:
        missing = [seat.name for seat in self._seats if not seat.ready]
        waited = now - self._waits_since
        if not missing:
            return []
        if waited > self.patience.absence_s:
            names = ", ".join(missing)
            reason = f"it did not come within {waited:.0f} s" if len(missing) == 1 else f"{names} did not come"
            return self._close(Ending(kind="infrastructure", node=missing[0], reason=reason))
        if now - self._told_at < REMIND_S:
            return []
        self._told_at = now
        return [Tell(kind="waiting", values={"for": missing, "seconds": round(waited)})]

    def _close(self, ending: Ending) -> list[Order]:
        self.over = ending
        return [Over(ending=ending)]

    def _hear(self, rank: int, now: float) -> _Seat:
        self._seats[rank].heard = now
        return self._seats[rank]
