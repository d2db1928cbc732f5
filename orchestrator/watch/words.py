"""Words for the conditions of a run: a sentence, and the next command. No other module has such sentences."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contract.cost_model.units import duration
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.render.printable import printable
from orchestrator.render.times import clock
from orchestrator.specs.data import damage_text
from orchestrator.state.condition import Code, Condition, Severity
from orchestrator.state.phase import Phase

LONGEST = 500
"""Characters of a sentence: it may hold text of a node."""
SHORT_S = 10.0
"""Seconds from which it is worth saying how long a condition has lasted."""
MARKS: Mapping[Severity, str] = {"error": "!", "warning": "!", "info": "·", "ok": "·"}


@dataclass(frozen=True, kw_only=True)
class ConditionWords:
    """A condition for people, safe to show."""

    text: str
    command: str = ""
    """Next command, which can be pasted; empty: there is none."""


Words = Callable[[Condition, str], tuple[str, str]]
"""The sentence and the next command, for a condition and the id of its run."""


def words(condition: Condition, run_id: str, now: float | None = None) -> ConditionWords:
    """The words for a condition of a run. `now`: with how long it has lasted, in conditions of nodes."""
    text, command = WORDS[condition.code](condition, run_id)
    lasted_s = 0.0 if now is None or condition.since is None else now - condition.since
    if condition.code in _LASTING and lasted_s >= SHORT_S:
        text += f", for {duration(lasted_s)}"
    return ConditionWords(text=_safe(text), command=_safe(command))


def condition_lines(condition: Condition, run_id: str, now: float | None = None, *, named: bool = False) -> list[str]:
    """The same as lines of a terminal, the command on a line of its own. `named`: with the run, where there are
    several."""
    shown = words(condition, run_id, now)
    command = [f"  → {shown.command}"] if shown.command else []
    return [f"{MARKS[condition.severity]} {f'run {run_id}: ' if named else ''}{shown.text}", *command]


def unsupervised_lines(run_id: str) -> list[str]:
    """Lines on a run that no process of this computer supervises."""
    return condition_lines(Condition(code=Code.NO_SUPERVISOR, severity="info"), run_id)


def _safe(text: str) -> str:
    return printable(text[:LONGEST]).replace("\n", " ").strip()


def end_words(phase: Phase, reason: str, run_id: str) -> ConditionWords | None:
    """The words for a run that has failed or is out of sight; None: there is nothing to say of its end."""
    if phase not in _ENDS:
        return None
    text, command = _ENDS[phase]
    return ConditionWords(text=_safe(f"{text}: {reason}" if reason else text), command=_safe(f"{command} {run_id}"))


def is_part_of_end(code: str, phase: Phase) -> bool:
    """Return whether the end of the run says it already: that a run has failed is one fact, however many containers it
    had."""
    return code == Code.CONTAINER_FAILED and phase is Phase.FAILED


_ENDS: Mapping[Phase, tuple[str, str]] = {
    Phase.FAILED: ("failed", "orch why"),
    Phase.LOST: ("none of its nodes answers", "orch status"),
    Phase.UNKNOWN: ("its end was not seen from here", "orch logs"),
}


# ── Ranks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _liveness(condition: Condition, run_id: str) -> tuple[str, str]:
    """The coordinator's own sentence and command."""
    text, fix = _text(condition, "text"), _text(condition, "fix")
    return text or "the ranks make no progress", fix or f"orch why {run_id}"


def _exchange(condition: Condition, _run_id: str) -> tuple[str, str]:
    text = _text(condition, "text")
    return text or "the ranks exchange no gradients: each trains its own model", _text(condition, "fix")


def _not_finite(condition: Condition, run_id: str) -> tuple[str, str]:
    kind = {"nan": "NaN", "inf": "infinite"}.get(_text(condition, "not_finite"), "NaN or infinite")
    step = _number(condition, "step")
    since = "" if step is None else f" since step {step:,.0f}"
    return f"the loss is {kind}{since} (read from its output)", f"orch stop {run_id}"


def _restarted(condition: Condition, run_id: str) -> tuple[str, str]:
    times = _number(condition, "restarts") or 1
    often = "once" if times == 1 else f"{times:.0f} times"
    rank = "" if condition.rank is None else f"rank {condition.rank}"
    where = " on ".join(filter(None, (rank, condition.node)))
    cause = ": ".join(filter(None, (where, _text(condition, "reason"))))
    left = _number(condition, "restarts_left")
    more = "" if left is None else f" (restarts left: {left:.0f})"
    text = f"all ranks were restarted {often}" + (f"; last cause: {cause}" if cause else "")
    return f"{text}{more}", f"orch why {run_id}"


def _slow(condition: Condition, run_id: str) -> tuple[str, str]:
    """A node that takes longer than the others for its part of a step."""
    node, ratio = condition.node, _number(condition, "ratio")
    where = _text(condition, "label") or node
    times = "longer than the others" if ratio is None else f"{ratio:.1f} x the others' time"
    text = f"{where} takes {times} for its part of a step"
    if condition.code is Code.THROTTLED:
        slowed = _text(condition, "slowed_by")
        return f"{text}; its GPU is slowed by {slowed or 'its driver'}", f"orch check-gpus --nodes {_word(node)}"
    if condition.code is Code.SWAPPING:
        mib = _number(condition, "swap_mib")
        swapped = "memory" if mib is None else f"{mib / 1024:.1f} GiB of its memory"
        return f"{text}; {swapped} is swapped out", f"orch doctor --nodes {_word(node)}"
    is_small = condition.values.get("balanced")
    part = "its part is as small as --shares auto makes it" if is_small else "--shares auto gives it a smaller part"
    text += f"; {part}"
    if not (cluster := _text(condition, "cluster")):
        others = [one for one in _text(condition, "others").split(",") if one]
        if others and (ratio or 0.0) > (len(others) + 1) / len(others):  # else the others' larger parts take longer
            return text, f"orch restart {run_id} --nodes {_word(','.join(others))}   # without {node}"
        return text, f"orch doctor --nodes {_word(node)}"
    job = ClusterJob(cluster=cluster, nodes=round(_number(condition, "nnodes") or 1))
    return f"{text}; without it: {job.without(node)}, then: orch restart {run_id}", f"orch doctor {job.on}"


def _data(condition: Condition, _run_id: str) -> tuple[str, str]:
    share = _number(condition, "share")
    often = "" if share is None else f" {share:.0%} of the time"
    return f"{condition.node} waits{often} for data: more dataloader workers, or a faster disk", ""


def _link(condition: Condition, _run_id: str) -> tuple[str, str]:
    share, mbit_s, others = (_number(condition, name) for name in ("share", "mbit_s", "others_mbit_s"))
    text = "the exchange takes " + ("long" if share is None else f"{share:.0%} of the time")
    if condition.node and mbit_s is not None and others is not None:
        text += f"; the link of {condition.node} carries {mbit_s:,.0f} Mbit/s, the others' {others:,.0f}"
        return text, "orch test"
    return f"{text}; all links are about equally fast", "orch test"


# ── Nodes and containers ──────────────────────────────────────────────────────────────────────────────────────────────


def _silent(condition: Condition, _run_id: str) -> tuple[str, str]:
    error = _text(condition, "error")
    because = f": {error}" if error else ""
    command = "orch doctor" if condition.node == "?" else f"orch doctor --nodes {_word(condition.node)}"
    return f"{_name(condition)} does not answer this computer{because}", command


def _absent(condition: Condition, run_id: str) -> tuple[str, str]:
    return f"the coordinator waits for {condition.node}", f"orch logs {run_id} --nodes {_word(condition.node)}"


def _peer(condition: Condition, _run_id: str) -> tuple[str, str]:
    return (
        f"{condition.node} sends nothing to the coordinator",
        f"orch doctor --nodes {_word(condition.node)}",
    )


def _failed(condition: Condition, run_id: str) -> tuple[str, str]:
    code = _number(condition, "exit_code")
    how = f"exit code {code:.0f}" if code is not None else ""
    how = "out of memory" if condition.values.get("oom_killed") else how
    because = ", ".join(filter(None, (how, _text(condition, "error"))))
    ended = f"the container on {condition.node} has failed"
    return f"{ended}: {because}" if because else ended, f"orch why {run_id}"


def _missing(condition: Condition, run_id: str) -> tuple[str, str]:
    what = f"{condition.node} has no container of the run" if condition.node else "a container of the run is missing"
    return what, f"orch restart {run_id}"


def _still_running(condition: Condition, run_id: str) -> tuple[str, str]:
    return f"the run has ended, but its container on {condition.node} runs", f"orch stop {run_id}"


def _foreign(condition: Condition, run_id: str) -> tuple[str, str]:
    attempt = _number(condition, "attempt")
    which = "" if attempt is None else f" (attempt {attempt:.0f})"
    state = "is left out" if condition.values.get("is_active", True) else "has ended"
    text = f"{condition.node} has a container{which} that is no part of the run: it {state}"
    return text, f"orch stop {run_id}   # ends all of its containers"


def _damaged(condition: Condition, run_id: str) -> tuple[str, str]:
    """A copy of data; what was trained from it stays in doubt."""
    offset, others, since = (_number(condition, "offset") or 0.0, _number(condition, "others") or 0.0, condition.since)
    what = damage_text(_text(condition, "file"), _text(condition, "wrong"), round(offset))
    more = f", and {others:.0f} more" if others else ""
    doubt = f"; in doubt is what was trained from it since {clock(since)}" if since else ""
    text = f"data on {condition.node} is damaged: {what}{more}{doubt}"
    if (attempt := _number(condition, "replaced_by")) is not None:
        return f"{text}; it was replaced before attempt {attempt:.0f}", f"orch checkpoints ls {run_id}"
    if condition.values.get("is_active"):
        return f"{text}; a restart by the agents keeps it, the next attempt replaces it", f"orch restart {run_id}"
    return text, f"orch checkpoints ls {run_id}"


# ── Record ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _checkpoint(condition: Condition, run_id: str) -> tuple[str, str]:
    step = _number(condition, "step")
    which = "a checkpoint" if step is None else f"a checkpoint of step {step:,.0f}"
    text = f"{condition.node} reports {which}, which does not count: it does not lead the run"
    return text, f"orch checkpoints ls {run_id}"


def _superseded(condition: Condition, run_id: str) -> tuple[str, str]:
    attempt, recorded, user = (_text(condition, name) for name in ("attempt", "recorded", "user"))
    by = f" by {user}" if user else ""
    launched = f"; this one launched attempt {recorded}" if recorded else ""
    return f"attempt {attempt or '?'} was started from another computer{by}{launched}", f"orch logs -f {run_id}"


def _not_stored(condition: Condition, run_id: str) -> tuple[str, str]:
    reason = (
        _text(condition, "reason") or "lines are not stored on this computer: its disk is full or cannot be written"
    )
    return f"{reason}; the run continues", f"orch logs -f {run_id}"


def _no_record(_condition: Condition, run_id: str) -> tuple[str, str]:
    return "this computer has no record of the run: all of this is what its nodes report", f"orch supervise {run_id}"


def _no_supervisor(_condition: Condition, run_id: str) -> tuple[str, str]:
    text = "no process of this computer supervises the run: it does not continue without a node that is lost"
    return text, f"orch supervise {run_id}"


WORDS: Mapping[Code, Words] = {
    Code.RANK_STUCK: _liveness,
    Code.RUN_BLOCKED: _liveness,
    Code.WAITING_FOR_RANK: _liveness,
    Code.QUIET: _liveness,
    Code.NO_EXCHANGE: _exchange,
    Code.LOSS_NOT_FINITE: _not_finite,
    Code.NODE_SILENT: _silent,
    Code.NODE_ABSENT: _absent,
    Code.PEER_SILENT: _peer,
    Code.CONTAINER_FAILED: _failed,
    Code.CONTAINER_MISSING: _missing,
    Code.SLOW_COMPUTE: _slow,
    Code.SLOW_LINK: _link,
    Code.SLOW_DATA: _data,
    Code.THROTTLED: _slow,
    Code.SWAPPING: _slow,
    Code.RESTARTED: _restarted,
    Code.STILL_RUNNING: _still_running,
    Code.FOREIGN_CONTAINER: _foreign,
    Code.UNREPORTED_CHECKPOINT: _checkpoint,
    Code.DATA_DAMAGED: _damaged,
    Code.SUPERSEDED: _superseded,
    Code.LINES_NOT_STORED: _not_stored,
    Code.NO_SUPERVISOR: _no_supervisor,
    Code.NO_RECORD: _no_record,
}
_LASTING = (Code.NODE_SILENT, Code.NODE_ABSENT, Code.PEER_SILENT)


_AGAIN = "the ranks make progress again"
_OVER = {
    Code.LINES_NOT_STORED: "lines are stored on this computer again",
    **dict.fromkeys((Code.RANK_STUCK, Code.RUN_BLOCKED, Code.WAITING_FOR_RANK, Code.QUIET), _AGAIN),
    Code.NODE_SILENT: "{node} answers again",
    Code.PEER_SILENT: "{node} sends again",
}
SHOWN_OTHERWISE = (
    Code.CONTAINER_FAILED, Code.STILL_RUNNING, Code.NO_RECORD, Code.NO_SUPERVISOR, Code.SUPERSEDED,
    Code.FOREIGN_CONTAINER,
)  # fmt: skip
"""Conditions that a command which follows a run reports itself, at the begin or at the end, or that it ends."""


SHOWN_ONCE = (Code.SLOW_COMPUTE, Code.SLOW_LINK, Code.SLOW_DATA, Code.THROTTLED, Code.SWAPPING)
"""Conditions that come and go, on one node after another: such a command has one line about each kind."""


def over_words(condition: Condition) -> str:
    """The sentence when a condition has ended; empty: it needs none."""
    return _safe(_OVER[condition.code].format(node=_name(condition))) if condition.code in _OVER else ""


def _name(condition: Condition) -> str:
    """Name of its node: without a record, one that does not answer has none."""
    return "a node of the run" if condition.node == "?" else condition.node


def _text(condition: Condition, name: str) -> str:
    value = condition.values.get(name)
    return "" if value is None else str(value)


def _number(condition: Condition, name: str) -> float | None:
    value = condition.values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _word(text: str) -> str:
    return shlex.quote(text)
