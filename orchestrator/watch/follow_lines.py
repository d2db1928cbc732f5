"""Lines about conditions of a run that is followed: one when it begins or becomes more severe, and one at its end."""

from __future__ import annotations

from orchestrator.specs.run_events import Replanned, RunEvent, RunLine
from orchestrator.state.condition import SEVERITIES, Code, Condition
from orchestrator.state.phase import Phase
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from orchestrator.watch.words import SHOWN_ONCE, SHOWN_OTHERWISE, condition_lines, over_words

EVERY_S = 1.0


Key = tuple[str, str, int | None, object]
Start = tuple[int | None, str, int]
"""Attempt, its claim, and how often its ranks were restarted."""


class FollowLines:
    """Remembers which conditions were shown."""

    def __init__(self) -> None:
        self._shown: dict[Key, Condition] = {}
        self._looked = 0.0
        self._once: set[Code] = set()
        self._start: Start | None = None

    def after(self, run_event: RunEvent, state: RunState, now: float) -> list[str]:
        """Lines after an event of the follower; after events of ranks, at most once in a second."""
        if isinstance(run_event, Replanned):
            return []  # the state is still that of the attempt before
        if isinstance(run_event, RunLine):
            soon = run_event.rank is not None and now - self._looked < EVERY_S
            if run_event.event is None or soon:
                return []
        self._looked, lines = now, list[str]()
        judged = verdict(state, now)
        conditions = {_key(one): one for one in judged.conditions if one.code not in SHOWN_OTHERWISE}
        for key, one in conditions.items():
            known = self._shown.get(key)
            if one.code in self._once:
                continue
            if known is None or SEVERITIES.index(one.severity) > SEVERITIES.index(known.severity):
                lines += condition_lines(one, state.run_id)
        self._once |= {one.code for one in conditions.values() if one.code in SHOWN_ONCE}
        gone = [one for key, one in self._shown.items() if key not in conditions]
        start = state.attempt, state.claim, state.restarts
        is_same = start == self._start
        over = dict.fromkeys(over_words(one) for one in gone if _is_over(one, state, judged.phase, is_same=is_same))
        self._shown, self._start = conditions, start
        return [*lines, *(f"· {text}" for text in over if text)]


def _is_over(one: Condition, state: RunState, phase: Phase, *, is_same: bool) -> bool:
    """Return whether a condition that is no longer there has really ended. `is_same`: the ranks are still those that
    had it; of new ones nothing was reported yet."""
    if one.code == Code.NODE_SILENT:
        return phase.is_active and any(one.node == node.name and node.silent_since is None for node in state.members)
    if one.code == Code.LINES_NOT_STORED:
        return phase.is_active
    coordinator = state.coordinator
    if phase is not Phase.RUNNING or not is_same or state.finished or coordinator is None:
        return False
    return one.code == Code.PEER_SILENT or coordinator.part.liveness is None


def _key(one: Condition) -> Key:
    return one.code, one.node, one.rank, one.values.get("restarts")
