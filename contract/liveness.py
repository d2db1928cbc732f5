"""Liveness of the ranks of a run: signs of each rank in, one decision out, by one table of rules.

Progress is work: an optimizer step, a collective that completes, a line. A rank that prints nothing is no fact about
the run. Agents report signs, the coordinator alone decides, and nothing is reported while a run is healthy. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contract.rank_signs import BUSY, IDLE, RankSigns
from contract.rank_words import are, elements, have, place, ranks

ALL_IDLE = 0.02
"""CPU seconds per second below which a rank is idle where no rank waits for another."""
IO_BYTES_S = 10_000
"""Bytes per second from which a rank reads or writes; below, a connection carries nothing but keep-alive messages."""
FIRST_STEP, ENOUGH_STEPS, MANY_STEPS = 5, 50, 1000
"""Exchange is counted from this optimizer step on; its absence counts after so many more, and after many more where
there is a process group: methods such as DiLoCo exchange every 500 steps."""
SCALAR_STEPS = 30
"""Steps after which the recorded collectives show how large the exchanged tensors are."""
SCALARS = 16
"""Elements up to which no collective carries gradients: the tutorial's Linear(20, 1) has 21."""
BYTES_A_STEP = 64
BYTES_A_COLLECTIVE = 1024
"""Bytes on the connections of a rank from which it may exchange by other means: gloo does not record send and recv."""
INIT = "init_process_group"
NAMED = 3
"""Ranks that a sentence describes."""


@dataclass(frozen=True, kw_only=True)
class LivenessLimits:
    """Seconds without progress of any rank."""

    certain_s: float = 30.0
    """Seconds until collectives that can never complete are reported."""
    held_s: float = 40.0
    """Seconds until a rank that the kernel does not let run is reported: before its agent ends it as frozen, after
    60 s."""
    note_s: float = 60.0
    """Seconds until a rank that others wait for is reported."""
    all_idle_s: float = 120.0
    stale_s: float = 10.0
    """Age of a rank status, written every second, from which the interpreter does not run: native code holds it."""

    @classmethod
    def scaled(cls, certain_s: float) -> LivenessLimits:
        """All limits in proportion to the first."""
        factor = certain_s / cls().certain_s
        usual = cls()
        return cls(
            certain_s=certain_s, held_s=usual.held_s * factor, note_s=usual.note_s * factor,
            all_idle_s=usual.all_idle_s * factor, stale_s=max(3.0, usual.stale_s * factor),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainingSoFar:
    """Work of one rank since its fifth optimizer step."""

    steps: int
    collectives: int
    sent_bytes: int | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LivenessHistory:
    """Times and counts that the signs of one moment do not show."""

    still_s: float
    """Seconds without progress of any rank that trains."""
    longest_pause_s: float = 0.0
    """The longest such pause of this generation that ended by itself."""
    trained: Mapping[int, TrainingSoFar] = field(default_factory=dict)
    """Work by rank, once a rank has made five optimizer steps."""
    ended: frozenset[int] = frozenset()
    """Ranks that have ended well."""
    independent: bool = False
    """True if each rank is meant to train its own model."""
    is_over: bool = False
    """True if the run has ended: then one optimizer step counts, where no process group ever was."""


@dataclass(frozen=True, kw_only=True)
class LivenessDecision:
    """One row of the table that applies."""

    rule: str
    text: str
    """The message, without its sign."""
    is_fault: bool
    """True if something is wrong; otherwise it is a note."""
    restarts: bool = False
    """True if a restart can help: ranks are stuck, or can never continue."""
    ranks: tuple[int, ...] = ()
    """Ranks that it is about: those that others wait for, or all."""
    seconds: float = 0.0
    fix: str = ""
    """Next command."""

    @property
    def message(self) -> str:
        """The line for people."""
        return f"{'!' if self.is_fault else '·'} {self.text}"


INDEPENDENT_FIX = "wrap the model in DistributedDataParallel: orch docs own-scripts; if this is intended: --independent"


def decide(
    signs: Sequence[RankSigns], history: LivenessHistory, limits: LivenessLimits | None = None
) -> tuple[LivenessDecision, ...]:
    """Apply the table: at most one decision about progress, then at most one about the exchange of gradients."""
    part = sorted((one for one in signs if not one.left_out), key=lambda one: one.rank)
    progress = _progress(part, history, limits or LivenessLimits())
    exchange = None if history.independent else _exchange(part, history, limits or LivenessLimits())
    return tuple(one for one in (progress, exchange) if one)


# ── Progress ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _progress(part: Sequence[RankSigns], history: LivenessHistory, limits: LivenessLimits) -> LivenessDecision | None:
    if held := [one for one in part if is_held(one, limits.held_s)]:
        return _held(held)
    still_s, note_s = history.still_s, max(limits.note_s, 3 * history.longest_pause_s)
    # What a rank was in a moment before it held the interpreter is no wait: a step, then `json.loads`.
    waiting = [one for one in part if one.waits and not _is_stale(one, limits)]
    others = [one for one in part if one not in waiting]
    if not part or still_s < limits.certain_s:
        return None
    if still_s >= note_s and (decision := _not_joined(part, still_s)):
        return decision
    if any(one.state in ("T", "D") and _is_stale(one, limits) for one in part):
        return None  # it is about to be reported as held; its status is that of a moment before
    if any(one.gpu for one in part) and still_s < max(limits.certain_s, 3 * history.longest_pause_s):
        return None  # work that was enqueued may take its time, and numbers differ for a moment
    if not others:
        return _all_wait(part, history)
    if waiting:
        decision = _waited_for(others, waiting, still_s, limits) if still_s >= note_s else None
        serves = not history.trained and any(
            one.listens for one in others
        )  # an inference server that waits for requests
        return replace(decision, is_fault=False, restarts=False) if decision and serves else decision
    if still_s >= max(limits.all_idle_s, note_s) and (decision := _all_idle(part, history)):
        return decision
    native = [one for one in part if _is_native(one, limits) and (one.age_s or 0.0) >= limits.note_s]
    return _waited_for(native, (), still_s, limits) if native and still_s >= note_s else None


def is_held(signs: RankSigns, limit_s: float) -> bool:
    """Return whether the kernel has let no thread of the rank run for so long."""
    stands = signs.io_bytes_s < IO_BYTES_S if signs.age_s is None else signs.age_s >= limit_s
    return signs.state in ("T", "D") and signs.stood_s >= limit_s and stands


def is_frozen(signs: RankSigns, limit_s: float) -> bool:
    """Return whether the rank is beyond help: its status stands, and its CPU time does not advance either. Native code
    that holds the interpreter, such as `json.loads` of a large file, uses CPU time."""
    stands = signs.age_s is not None and signs.age_s >= limit_s and signs.stood_s >= limit_s
    return stands and (signs.state in ("T", "D") or (signs.cpu or 0.0) < IDLE)


def _held(held: Sequence[RankSigns]) -> LivenessDecision:
    one = held[0]
    why = "stopped (SIGSTOP)" if one.state == "T" else "blocked in the kernel: a disk, a network share or a driver"
    return LivenessDecision(
        rule="stopped" if one.state == "T" else "blocked", is_fault=True, restarts=True,
        text=f"{one.name} is {why}", ranks=tuple(each.rank for each in held), seconds=one.stood_s,
    )  # fmt: skip


def _not_joined(part: Sequence[RankSigns], still_s: float) -> LivenessDecision | None:
    """Ranks that have not reached the process group that others wait to form."""
    forming = [one for one in part if one.call == INIT and not one.in_group]
    missing = [one for one in part if one.call != INIT and not one.in_group and not one.groups]
    if not forming or not missing or len(forming) + len(missing) < len(part):
        return None
    one = missing[0]
    where = f" ({place(one.line)})" if one.line else ""
    at = f" it is importing {one.importing}{where}" if one.importing else f" it is at {one.line}" if one.line else ""
    return LivenessDecision(
        rule="not joined", is_fault=False, text=f"{one.name} has not reached {INIT}" + (f":{at}" if at else ""),
        ranks=tuple(each.rank for each in missing), seconds=still_s,
    )  # fmt: skip


def _all_wait(part: Sequence[RankSigns], history: LivenessHistory) -> LivenessDecision | None:
    """Collectives that can never complete: ranks are in different ones, a rank has ended, or no data arrives."""
    numbers = tuple(one.rank for one in part)
    still_s = history.still_s
    gone = sorted(rank for rank in history.ended if rank not in numbers)
    if gone:
        text = f"{_waiting_where(part)}, for {ranks(gone)}, which {have(gone)} ended"
        return LivenessDecision(
            rule="ended", is_fault=True, restarts=True, text=text, ranks=tuple(gone), seconds=still_s
        )
    if _differ(part):
        text = f"deadlock: {_waiting_where(part)}"
        return LivenessDecision(
            rule="deadlock", is_fault=True, restarts=True, text=text, ranks=numbers, seconds=still_s
        )
    if len(part) < max(one.world for one in part) or any(one.io_bytes_s >= IO_BYTES_S for one in part):
        return None
    nodes = sorted({one.node for one in part})
    number = max((number for one in part for _, number in one.pending), default=0)
    call = next((one.exchange or one.call for one in part if one.exchange or one.call), "collective")
    between = f"the network between {' and '.join(nodes)}" if len(nodes) > 1 else f"the processes on {nodes[0]}"
    return LivenessDecision(
        rule="network", is_fault=True, restarts=True, ranks=numbers, seconds=still_s, fix="orch test",
        text=f"all ranks are waiting in {call}{f' {number}' if number else ''} and no data has arrived for "
        f"{still_s:.0f} s: check {between}",
    )  # fmt: skip


def _differ(part: Sequence[RankSigns]) -> bool:
    """Return whether a collective that a rank waits in is not waited in by another rank of its group, or as another
    one."""
    waited = {collective for one in part for collective in one.pending}
    missed = any((name, number) not in one.pending for name, number in waited for one in part if name in one.groups)
    return missed or _calls_differ(part)


def _calls_differ(part: Sequence[RankSigns]) -> bool:
    """Return whether ranks are in one collective by different calls."""
    calls: dict[frozenset[tuple[str, int]], set[str]] = {}
    for one in part:
        if one.call and len(one.pending) == 1:
            calls.setdefault(one.pending, set()).add(one.call)
    return any(len(of_one) > 1 for of_one in calls.values())


def _waiting_where(part: Sequence[RankSigns]) -> str:
    """The first rank of each set of collectives, with the line that it waits at."""
    named = _calls_differ(part)
    first: dict[tuple[frozenset[tuple[str, int]], str], RankSigns] = {}
    for one in part:
        if one.call or not named:
            first.setdefault((one.pending, one.call if named else ""), one)
    found = [f"{one.name} in {_awaited(one, named=named)}" for one in list(first.values())[:NAMED]]
    return ", ".join(found).replace(" in ", " is waiting in ", 1)


def _awaited(one: RankSigns, *, named: bool) -> str:
    collectives = " and ".join(f"{number} of group {name or 0}" for name, number in sorted(one.pending))
    call = one.call if named and one.call else "collective"
    awaited = f"{call} {collectives}" if collectives else one.exchange or one.call
    return awaited + (f" ({place(one.line)})" if one.line else "")


def _waited_for(
    others: Sequence[RankSigns], waiting: Sequence[RankSigns], still_s: float, limits: LivenessLimits
) -> LivenessDecision | None:
    """Ranks that do not wait: idle ones are the cause; otherwise the others wait for all of them."""
    kinds = {one.rank: _kind(one, limits) for one in others}
    idle = [one for one in others if kinds[one.rank] == "idle"]
    asleep = [one for one in others if kinds[one.rank] == "sleeping"]
    blamed = idle or asleep or others
    waits = tuple(one.rank for one in waiting)
    for_whom = "it" if len(blamed) == 1 else "them"
    last = f"; {ranks(waits)} {are(waits)} waiting for {for_whom}" if waits else ""
    described = ", ".join(_busy_at(one, kinds[one.rank], still_s, limits) for one in blamed[:NAMED])
    more = f" and {len(blamed) - NAMED} more" if len(blamed) > NAMED else ""
    return LivenessDecision(
        rule=kinds[blamed[0].rank], is_fault=bool(idle), restarts=bool(idle or asleep), text=described + more + last,
        ranks=tuple(one.rank for one in blamed), seconds=still_s,
    )  # fmt: skip


def _kind(one: RankSigns, limits: LivenessLimits) -> str:
    if _is_native(one, limits):
        return "native"
    cpu = 1.0 if one.cpu is None else one.cpu
    if cpu >= BUSY:
        return "computing"
    if one.io_bytes_s >= IO_BYTES_S:
        return "reading"
    if one.sleeps:
        return "sleeping"
    return "idle" if cpu < IDLE else "computing"


def _is_stale(one: RankSigns, limits: LivenessLimits) -> bool:
    """Return whether the interpreter does not run, so that the status is of a moment before."""
    return one.age_s is not None and one.age_s >= limits.stale_s


def _is_native(one: RankSigns, limits: LivenessLimits) -> bool:
    """Return whether native code holds the interpreter, and computes."""
    return _is_stale(one, limits) and one.cpu is not None and one.cpu >= IDLE


def _busy_at(one: RankSigns, kind: str, still_s: float, limits: LivenessLimits) -> str:
    at = f" at {one.line}" if one.line else ""
    cpu = f"{100 * one.cpu:.0f} % CPU" if one.cpu is not None else "CPU unknown"
    if _is_stale(one, limits):
        last = f", last Python line {place(one.line)}" if one.line else ""
        return f"{one.name} has been in native code for {one.age_s:.0f} s ({cpu}){last}"
    if kind == "reading":
        rate = one.io_bytes_s / 1e6
        return f"{one.name} has been reading or writing{at} for {still_s:.0f} s ({rate:.2g} MB/s)"
    if kind == "computing":
        return f"{one.name} has been computing{at} for {still_s:.0f} s ({cpu})"
    return f"{one.name} has been {kind}{at} for {still_s:.0f} s"


def _all_idle(part: Sequence[RankSigns], history: LivenessHistory) -> LivenessDecision | None:
    """No rank waits for another, computes, reads or writes. A server that has never trained may be idle for hours."""
    if any(one.cpu is None or one.cpu >= ALL_IDLE or one.io_bytes_s >= IO_BYTES_S or one.gpu for one in part):
        return None
    if any(one.listens for one in part) and not history.trained:
        return None
    numbers, asleep = tuple(one.rank for one in part), any(one.sleeps for one in part)
    one = next((one for one in part if one.line), part[0])
    where = f": rank {one.rank} at {one.line}" if one.line else ""
    who = "all ranks have" if len(part) > 1 else f"{one.name} has"
    text = f"{who} been {'sleeping' if asleep else 'idle'} for {history.still_s:.0f} s{where}"
    return LivenessDecision(
        rule="all sleeping" if asleep else "all idle", is_fault=not asleep, restarts=True, text=text, ranks=numbers,
        seconds=history.still_s,
    )  # fmt: skip


# ── Exchange of gradients ─────────────────────────────────────────────────────────────────────────────────────────────


def _exchange(part: Sequence[RankSigns], history: LivenessHistory, limits: LivenessLimits) -> LivenessDecision | None:
    """Ranks that train, and exchange no gradients."""
    trained = [history.trained[one.rank] for one in part if one.rank in history.trained]
    steps = min((one.steps for one in trained), default=0)
    if len(trained) < 2 or any(one.libraries for one in part):
        return None
    if min(one.seconds for one in trained) < limits.note_s:
        return None
    collectives = max(one.collectives for one in trained)
    sent = max(one.sent_bytes or 0 for one in trained)
    group = any(one.in_group or one.joined or one.groups for one in part)
    numbers = tuple(one.rank for one in part)
    needed = MANY_STEPS if group else 1 if history.is_over else ENOUGH_STEPS
    if not collectives and steps >= needed and sent < BYTES_A_STEP * steps:
        because = "no collective" if group else "no process group"
        text = f"each rank trains its own model: {steps:,} optimizer steps, nothing exchanged ({because})"
        return LivenessDecision(rule="apart", is_fault=True, text=text, ranks=numbers, fix=INDEPENDENT_FIX)
    largest = max((one.largest or 0 for one in part), default=0)
    if any(one.parameter is not None and one.parameter <= largest for one in part):
        return None  # gradients of a tiny model
    looked_at = min(one.looked_at for one in part)
    enough = SCALAR_STEPS if collectives >= steps / 2 else MANY_STEPS
    if not 0 < largest <= SCALARS or looked_at < enough or sent >= BYTES_A_COLLECTIVE * collectives:
        return None
    return LivenessDecision(
        rule="scalars", is_fault=True, ranks=numbers, fix=INDEPENDENT_FIX,
        text=f"the ranks exchange only scalars ({collectives:,} collectives, at most {elements(largest)}): "
        "no gradients",
    )  # fmt: skip
