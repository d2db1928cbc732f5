"""Rules that find the conditions of a run, each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from contract.cost_model.capacity import node_of
from contract.events import LivenessReported, Restarting
from contract.resources import ResourceUsage
from orchestrator.checks.slow_ranks import SlowRank, slow_ranks
from orchestrator.specs.run import ACTIVE, State
from orchestrator.state.condition import Code, Condition, Scalar, Severity
from orchestrator.state.journal_entries import DataEntry
from orchestrator.state.limits import ABSENT_S, LEAVE_S, NODE_SILENT_S, STUCK_S, SUPERVISED_S
from orchestrator.state.phase import STOPPED_CODE, Phase
from orchestrator.state.progress import progress_of
from orchestrator.state.run_state import NodeState, RunState

RULES = {
    "stopped": Code.RANK_STUCK,
    "blocked": Code.RANK_STUCK,
    "idle": Code.RANK_STUCK,
    "all idle": Code.RANK_STUCK,
    "ended": Code.RUN_BLOCKED,
    "deadlock": Code.RUN_BLOCKED,
    "network": Code.RUN_BLOCKED,
    "all sleeping": Code.QUIET,
}
"""Rows of the coordinator's table; of every other one, ranks wait for one that works."""
TRAINS = (Phase.STARTING, Phase.RUNNING)
ENDED = (Phase.SUCCEEDED, Phase.STOPPED, Phase.FAILED)

WAITING, EXCHANGING = 0.2, 0.3
"""Shares of the time from which waiting for data, or for the exchange between nodes, is worth a look."""
SLOW_LINK = 0.7
"""Times the other links' speed."""
SWAP_MIB = 512
"""Swapped memory from which a slow node counts as swapping: systems swap out some of what is never used."""


def conditions_of(state: RunState, phase: Phase, now: float) -> Iterator[Condition]:
    """All conditions of a run in this phase."""
    if phase in TRAINS:
        yield from _liveness(state, now)
        yield from _speed(state, phase, now)
    if phase in (*TRAINS, Phase.RESTARTING):
        yield from _peers(state, now)  # all ranks wait for a node that was lost
    yield from _nodes(state, phase, now)
    yield from _containers(state, phase, now)
    if phase.is_active and state.restarts:
        yield _restarted(state)
    yield from damaged_data(state, phase)
    yield from _record(state, phase)
    if phase in (*TRAINS, Phase.RESTARTING) and is_unsupervised(state, now):
        yield Condition(code=Code.NO_SUPERVISOR, severity="info")


def is_unsupervised(state: RunState, now: float) -> bool:
    """Return whether this computer has launched the run and none of its processes supervises it. A job has no
    supervisor."""
    started = state.journal.current.started if state.journal.current else None
    is_new = started is None or now - started.at < SUPERVISED_S
    return state.is_supervised is False and not state.is_job and not is_new


# ── Ranks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _liveness(state: RunState, now: float) -> Iterator[Condition]:
    """The coordinator alone decides: the same report of another node does not count."""
    coordinator = state.coordinator
    if coordinator is None:
        return
    part = coordinator.part
    if report := part.liveness:
        since = part.by_our_clock(part.liveness_at) - max(0.0, report.seconds or 0.0)
        code = RULES.get(report.rule or "", Code.WAITING_FOR_RANK)
        yield _reported(state, report, code, _severity(report, now - since), since)
    if report := part.exchange:
        yield _reported(state, report, Code.NO_EXCHANGE, "warning", None)
    printed = progress_of(state, Phase.RUNNING, now).printed
    if printed and printed.not_finite in ("nan", "inf"):
        values = {"not_finite": printed.not_finite, "step": printed.not_finite_since}
        yield Condition(code=Code.LOSS_NOT_FINITE, severity="warning", rank=printed.rank, values=values)


def _severity(report: LivenessReported, seconds: float) -> Severity:
    if report.fault:
        return "error" if report.rule == "stopped" or seconds >= STUCK_S else "warning"
    is_long = seconds >= STUCK_S and report.rule != "all sleeping"
    return "warning" if is_long else "info"


def _reported(
    state: RunState, report: LivenessReported, code: Code, severity: Severity, since: float | None
) -> Condition:
    known = {one.name for one in state.members}
    names = [name for name in report.nodes or () if name in known]
    ranks = report.ranks or ()
    values: dict[str, Any] = {
        "rule": report.rule, "text": report.text or "", "fix": report.fix or "", "seconds": report.seconds,
        "ranks": ",".join(map(str, ranks)), "nodes": ",".join(names),
    }  # fmt: skip
    one = len(ranks) == 1
    node, rank = (names[0] if one and names else ""), (ranks[0] if one else None)
    return Condition(code=code, severity=severity, node=node, rank=rank, since=since, values=values)


def _speed(state: RunState, phase: Phase, now: float) -> Iterator[Condition]:
    if phase is Phase.RUNNING and not progress_of(state, phase, now).is_before_restart and (slow := slow_node(state)):
        yield slow


def slow_node(state: RunState) -> Condition | None:
    """The condition of the node that the others wait for in every step; None: there is none, or it is not known.

    Shares of the time are those of the rank that reports: where it waits for data, it is the slow one.
    """
    leader = state.leader
    if leader is None or leader.part.progress is None:
        return None
    names = [one.name for one in state.members]
    is_lab = state.plan is not None and state.plan.one_computer
    if not is_lab and (slow := slow_ranks(leader.part.progress, names)):
        used = next((one.usage for one in state.members if one.name == slow[0].node), None)
        run: dict[str, Scalar] = {"cluster": state.plan.cluster, "nnodes": state.plan.nnodes} if state.plan else {}
        run["others"] = ",".join(name for name in names if name != slow[0].node)
        return _slow_rank(slow[0], used, run)
    waiting, exchanging = (leader.part.shares.get(name, 0.0) for name in ("waiting", "exchanging"))
    if waiting >= WAITING:
        return Condition(code=Code.SLOW_DATA, severity="warning", node=leader.name, values={"share": waiting})
    if exchanging >= EXCHANGING:
        speeds = state.forecast.link_mbit_s if state.forecast else {}
        by_node = {node_of(label, names): speed for label, speed in speeds.items() if speed > 0}
        return _slow_link(exchanging, {name: speed for name, speed in by_node.items() if name in names})
    return None


def _slow_rank(slow: SlowRank, used: ResourceUsage | None, run: Mapping[str, Scalar]) -> Condition:
    values: dict[str, Scalar] = {"ratio": slow.ratio, "label": slow.label, "balanced": slow.balanced, **run}
    slowed = next((gpu for gpu in used.gpus if gpu.slowed_by), None) if used else None
    code = Code.SLOW_COMPUTE
    if slowed:
        code = Code.THROTTLED
        values |= {"slowed_by": slowed.slowed_by, "gpu": slowed.index}
    elif used and used.swap_used_mib >= SWAP_MIB:
        code = Code.SWAPPING
        values |= {"swap_mib": used.swap_used_mib}
    return Condition(code=code, severity="warning", node=slow.node, values=values)


def _slow_link(share: float, links: Mapping[str, float]) -> Condition:
    values: dict[str, Scalar] = {"share": share}
    node = ""
    if len(links) > 1:
        slowest = min(links, key=lambda name: links[name])
        others = median(speed for name, speed in links.items() if name != slowest)
        if links[slowest] < SLOW_LINK * others:
            node, values = slowest, {**values, "mbit_s": links[slowest], "others_mbit_s": others}
    return Condition(code=Code.SLOW_LINK, severity="warning", node=node, values=values)


def _restarted(state: RunState) -> Condition:
    """All ranks started again; the cause is that of the newest restart, by the coordinator."""
    ends = state.coordinator.part.ends if state.coordinator else ()
    newest = next((one for one in reversed(ends) if isinstance(one, Restarting)), Restarting())
    values: dict[str, Scalar] = {
        "restarts": state.restarts,
        "reason": newest.reason or newest.outcome or "",
        "restarts_left": newest.restarts_left,
    }
    node = newest.node if newest.node in {one.name for one in state.members} else ""
    return Condition(code=Code.RESTARTED, severity="info", node=node or "", rank=newest.rank, values=values)


# ── Nodes and containers ──────────────────────────────────────────────────────────────────────────────────────────────


def _peers(state: RunState, now: float) -> Iterator[Condition]:
    coordinator = state.coordinator
    if coordinator is None:
        return
    part, known = coordinator.part, {one.name for one in state.members}
    for name, at in part.waiting_for.items():
        since = part.by_our_clock(at)
        severity: Severity = "warning" if now - since >= ABSENT_S else "info"
        if name in known:
            yield Condition(code=Code.NODE_ABSENT, severity=severity, node=name, since=since)
    for name, at in part.peers_silent.items():
        if name in known:
            yield Condition(code=Code.PEER_SILENT, severity="warning", node=name, since=part.by_our_clock(at))


def _nodes(state: RunState, phase: Phase, now: float) -> Iterator[Condition]:
    if not (phase.is_active or phase is Phase.LOST):
        return
    severity: Severity = "error" if phase is Phase.LOST else "warning"
    for one in state.members:
        if (since := silent_since(one, now)) is not None:
            values = {"error": one.error}
            yield Condition(code=Code.NODE_SILENT, severity=severity, node=one.name, since=since, values=values)


def silent_since(node: NodeState, now: float) -> float | None:
    """Find the time since which a node does not answer this computer; None: it does, or is not asked."""
    if node.silent_since is not None:
        return node.silent_since
    answered = node.last_answer_at
    if node.sampled_at is None or answered is None:
        return None
    return answered if now - answered > NODE_SILENT_S else None


def _containers(state: RunState, phase: Phase, now: float) -> Iterator[Condition]:
    is_active = phase.is_active and phase is not Phase.STOPPING  # what ends after a request to stop was to end
    for one in state.members:
        facts = one.container
        failed = facts is not None and facts.state is State.FAILED and facts.exit_code != STOPPED_CODE
        if failed and facts and (is_active or phase is Phase.FAILED):
            values = {"exit_code": facts.exit_code, "oom_killed": facts.oom_killed, "error": facts.error}
            yield Condition(code=Code.CONTAINER_FAILED, severity="error", node=one.name, values=values)
        is_missing = one.is_missing and state.was_looked_for and phase is not Phase.LAUNCHING
        if is_missing and is_active:
            name = "" if one.name == "?" else one.name
            yield Condition(code=Code.CONTAINER_MISSING, severity="warning", node=name)
        if phase in ENDED and facts and facts.state in ACTIVE and not _is_leaving(state, one, now):
            yield Condition(code=Code.STILL_RUNNING, severity="warning", node=one.name)
    for foreign in state.foreign.values():
        values = {"attempt": foreign.attempt, "is_active": foreign.is_active}
        yield Condition(code=Code.FOREIGN_CONTAINER, severity="warning", node=foreign.node, values=values)


def _is_leaving(state: RunState, node: NodeState, now: float) -> bool:
    """Return whether its agent, or the coordinator, has reported the end a moment ago."""
    parts = [one.part for one in (node, state.coordinator) if one and one.part.finished]
    return any(now - part.by_our_clock(part.read_at or now) < LEAVE_S for part in parts)


def damaged_data(state: RunState, phase: Phase) -> Iterator[Condition]:
    """Conditions of the data, by the record, and by lines that are not on record."""
    found = {one.identity: one for one in state.journal.damaged}
    for node in state.members:
        for event in node.part.damaged.values():
            entry = DataEntry.of(event, attempt=state.attempt or 0, node=node.name)
            found.setdefault(entry.identity, entry)
    yield from data_conditions(found.values(), state.attempt, is_active=phase.is_active)


def data_conditions(entries: Iterable[DataEntry], attempt: int | None, *, is_active: bool) -> Iterator[Condition]:
    """One condition for each node of which data was damaged. It lasts: what was trained from them stays in doubt."""
    by_node = dict[str, list[DataEntry]]()
    for one in entries:
        by_node.setdefault(one.node, []).append(one)
    for name, of_node in by_node.items():
        first, newest = of_node[0], max(one.attempt for one in of_node)
        is_replaced = attempt is not None and attempt > newest
        values: dict[str, Scalar] = {
            "data": first.data, "file": first.file, "wrong": first.wrong, "offset": first.offset,
            "found_at": first.found_at, "others": len({(one.data, one.file) for one in of_node}) - 1,
            "replaced_by": newest + 1 if is_replaced else None, "is_active": is_active,
        }  # fmt: skip
        since = min(one.intact_at for one in of_node)
        yield Condition(code=Code.DATA_DAMAGED, severity="warning", node=name, since=since, values=values)


# ── Record ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _record(state: RunState, phase: Phase) -> Iterator[Condition]:
    if state.is_superseded:
        recorded = state.journal.current.number if state.journal.current else None
        values = {"attempt": state.attempt, "recorded": recorded, "user": state.run.user if state.run else ""}
        yield Condition(code=Code.SUPERSEDED, severity="warning", values=values)
    if not state.has_record and phase.is_active:
        yield Condition(code=Code.NO_RECORD, severity="info")
    if state.lines_not_stored and phase.is_active:
        values = {"reason": state.lines_not_stored}
        yield Condition(code=Code.LINES_NOT_STORED, severity="warning", values=values)
    leader = state.leader
    counts = {one.identity for one in state.journal.checkpoints}
    for one in state.members:
        found = one.part.checkpoint
        own = leader.part.checkpoint if leader else None
        is_known = found and ((found.step, found.sha256) in counts or (own and own.sha256 == found.sha256))
        if found and leader is not None and one is not leader and not is_known:
            values = {"step": found.step}
            yield Condition(code=Code.UNREPORTED_CHECKPOINT, severity="info", node=one.name, values=values)
