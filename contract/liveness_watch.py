"""Liveness of a run over time: pauses, counts since the start of the training, and the reports that are due. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.liveness import FIRST_STEP, LivenessDecision, LivenessHistory, LivenessLimits, TrainingSoFar, decide
from contract.rank_signs import RankSigns

EXCHANGE_RULES = ("apart", "scalars")


@dataclass(frozen=True, kw_only=True)
class ProgressAgain:
    """Ranks make progress again after a report."""

    seconds: float


LivenessReport = LivenessDecision | ProgressAgain


@dataclass(frozen=True, kw_only=True)
class _Base:
    """Counts of a rank at its fifth optimizer step; by default at its start."""

    process: int
    steps: int = 0
    collectives: int = 0
    sent_bytes: int | None = 0
    at: float = 0.0


class LivenessWatch:
    """The liveness of one generation of ranks. Every look gets the newest signs of all ranks and the time."""

    def __init__(self, limits: LivenessLimits, now: float, *, independent: bool = False) -> None:
        self.limits = limits
        self.decisions: tuple[LivenessDecision, ...] = ()
        """Those of the newest look."""
        self.history = LivenessHistory(still_s=0.0, independent=independent)
        self._since = now
        self._marks: Mapping[int, tuple[int, ...]] = {}
        self._before: tuple[RankSigns, ...] = ()
        """Signs of the newest progress."""
        self._bases: dict[int, _Base] = {}
        self._newest: dict[int, RankSigns] = {}
        self._reported: LivenessDecision | None = None
        self._next_s = 0.0
        self._of_exchange: set[str] = set()

    def look(self, signs: Sequence[RankSigns], now: float, ended: Collection[int] = ()) -> tuple[LivenessReport, ...]:
        """Decide, and return the reports that are due: a fault at once, a note and a repetition each after twice the
        time, a recovery once. `ended`: ranks that have ended well."""
        self._newest |= {one.rank: one for one in signs}
        ended = {*ended, *self._newest.keys() - {one.rank for one in signs}}  # alone, while others of its node work
        paused_s = self._count(signs, now)
        self.history = replace(
            self.history, still_s=now - self._since, ended=frozenset(ended), trained=self._trained(signs, now)
        )
        self.decisions = decide(signs, self.history, self.limits)
        of_exchange = [one for one in self.decisions if one.rule in EXCHANGE_RULES]
        due = [one for one in of_exchange if one.rule not in self._of_exchange]
        self._of_exchange |= {one.rule for one in due}
        of_progress = next((one for one in self.decisions if one not in of_exchange), None)
        return (*self._due(of_progress, paused_s), *due)

    def summary(self, seconds: float) -> str:
        """Sentence about a run that has ended well; empty where there is nothing to be said."""
        signs = tuple(self._newest.values())
        # Nothing is left to wait for, and of few steps each counts.
        of_all = {one.rank: _since(_Base(process=one.process), one, math.inf) for one in signs if one.optimizer_steps}
        trained = of_all | {rank: one for rank, one in self._trained(signs, math.inf).items() if one.steps}
        for one in decide(signs, replace(self.history, still_s=0.0, trained=trained, is_over=True), self.limits):
            if one.rule in EXCHANGE_RULES:
                return f"{one.message} → {one.fix}"
        world = max((one.world for one in signs), default=1)
        seen = [one for one in signs if one.age_s is not None]
        if world < 2 or not seen or any(one.optimizer_steps or one.work for one in signs):
            return ""
        if any(one.joined or one.in_group or one.groups for one in signs):
            return ""
        if any(one.libraries for one in signs):
            return ""
        return f"done in {seconds:.0f} s; no training detected: no optimizer step, no process group"

    def _count(self, signs: Sequence[RankSigns], now: float) -> float:
        """Note progress. Return the length of the pause that it ends; 0 while there is none."""
        marks = {one.rank: one.progress for one in signs if not one.left_out}
        if marks == self._marks:
            return 0.0
        has_begun = any(one.optimizer_steps or one.completed or one.work for one in self._before)
        paused_s = now - self._since
        self._marks, self._since, self._before = marks, now, tuple(signs)
        if not has_begun:  # imports, downloads and the first compilation say nothing about later pauses
            return paused_s
        if not (self._reported and self._reported.is_fault):  # after a fault the next one is to be reported as early
            longest = max(self.history.longest_pause_s, paused_s)
            self.history = replace(self.history, longest_pause_s=longest)
        return paused_s

    def _trained(self, signs: Sequence[RankSigns], now: float) -> Mapping[int, TrainingSoFar]:
        for one in signs:
            base = self._bases.get(one.rank)
            is_new = base is None or base.process != one.process  # a script may start torchrun twice
            if one.optimizer_steps >= FIRST_STEP and is_new and not one.left_out:
                self._bases[one.rank] = _Base(
                    process=one.process,
                    steps=one.optimizer_steps,
                    collectives=one.completed,
                    sent_bytes=one.sent_bytes,
                    at=now,
                )
        return {one.rank: _since(self._bases[one.rank], one, now) for one in signs if one.rank in self._bases}

    def _due(self, decision: LivenessDecision | None, paused_s: float) -> tuple[LivenessReport, ...]:
        before = self._reported
        if decision is None:
            if before and not paused_s and before.rule not in ("stopped", "blocked"):
                return ()  # nothing has moved since: only a rate is above a limit for a moment
            self._reported, self._next_s = None, 0.0
            return (ProgressAgain(seconds=paused_s or self.history.still_s),) if before else ()
        new_fault = decision.is_fault and (
            before is None or (before.rule, before.ranks) != (decision.rule, decision.ranks)
        )
        if not new_fault and before and self.history.still_s < self._next_s:
            return ()
        self._reported, self._next_s = decision, 2 * max(self.history.still_s, self.limits.note_s)
        return (decision,)


def _since(base: _Base, one: RankSigns, now: float) -> TrainingSoFar:
    sent = None if one.sent_bytes is None or base.sent_bytes is None else max(0, one.sent_bytes - base.sent_bytes)
    return TrainingSoFar(
        steps=one.optimizer_steps - base.steps, collectives=one.completed - base.collectives, sent_bytes=sent,
        seconds=now - base.at,
    )  # fmt: skip
