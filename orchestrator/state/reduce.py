"""The reducer: a fact in, a changed state. Total and deterministic, without input, output or a clock."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.specs.run import ACTIVE, Member, short_id
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import (
    ContainerSeen,
    Fact,
    JournalRead,
    LineRead,
    LinesNotStored,
    NodeAnswered,
    NodeUnanswered,
    RunSeen,
    SupervisorSought,
)
from orchestrator.state.limits import FOREIGN, NODES
from orchestrator.state.line_reduce import read_line, use
from orchestrator.state.run_state import AttemptPart, ForeignContainer, NodeState, RunState


def apply(state: RunState, fact: Fact) -> None:
    """Take a fact into account. O(1) for a line of text."""
    state.as_of = max(state.as_of, fact.seen)
    match fact:
        case LineRead():
            _read(state, fact)
        case NodeAnswered():
            if node := _node(state, fact.node):
                _answer(node, fact.seen)
                if fact.usage:
                    node.sampled_at = fact.seen
                    use(node, fact.usage, fact.seen)
        case NodeUnanswered():
            if node := _node(state, fact.node):
                _miss(node, fact.seen, fact.error)
        case ContainerSeen():
            _see(state, fact)
        case JournalRead():
            _record(state, fact)
        case RunSeen():
            _show(state, fact)
        case SupervisorSought():
            state.is_supervised = fact.found
        case LinesNotStored():
            state.lines_not_stored = fact.reason


# ── Nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _node(state: RunState, name: str) -> NodeState | None:
    """The node of this name, a new one where there is none; None beyond the limit."""
    if name not in state.nodes and len(state.nodes) < NODES:
        state.nodes[name] = NodeState(name=name)
    return state.nodes.get(name)


def _answer(node: NodeState, at: float) -> None:
    node.last_answer_at = max(at, node.last_answer_at or 0.0)
    if node.silent_since is None or at >= node.silent_since:
        node.silent_since, node.error = None, ""


def _miss(node: NodeState, at: float, error: str) -> None:
    if node.silent_since is None:
        node.silent_since = at
    node.error = error


# ── Attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _record(state: RunState, fact: JournalRead) -> None:
    """The record says which attempt is the current one, unless most nodes show a later one."""
    state.journal, state.plan, state.recorded_forecast = fact.journal, fact.plan, fact.forecast
    current = fact.journal.current
    if current is None or (state.attempt is not None and state.attempt > current.number):
        return
    _begin(state, current.number, current.claim.id)
    if fact.plan:
        state.master = fact.plan.master
    names = [part.node for part in fact.plan.nodes] if fact.plan else list(current.claim.nodes)
    for node in state.nodes.values():
        node.node_rank = None  # a scheduler may have given the same attempt other nodes
    for rank, name in enumerate(names):
        if member := _node(state, name):
            member.node_rank = rank


def _begin(state: RunState, attempt: int, claim: str = "") -> None:
    """Forget what belongs to another attempt."""
    if (attempt, claim or state.claim) == (state.attempt, state.claim):
        return
    state.attempt, state.claim = attempt, claim
    for node in state.nodes.values():
        node.node_rank, node.container, node.is_missing, node.part = None, None, False, AttemptPart()


def _show(state: RunState, fact: RunSeen) -> None:
    run, current = fact.run, state.journal.current
    state.was_looked_for, state.run, state.unreachable = True, run, fact.unreachable
    members = run.members if run else ()
    if run is None or (current and run.attempt < current.number):
        members = ()  # no node shows a container of the current attempt
    else:
        _begin(state, run.attempt, current.claim.id if current and run.attempt == current.number else "")
        state.master = state.master if members and state.master in {one.node for one in members} else run.master
        for node in state.nodes.values():
            node.node_rank = None if members else node.node_rank
    shown = {_key(one) for one in members}
    for one in members:
        _show_member(state, one, fact.seen)
    for name, node in state.nodes.items():
        if name not in shown:
            _without_container(node, fact.seen, is_silent=name in fact.unreachable)
    state.foreign = {
        (one.node, short_id(one.container.id)): ForeignContainer(
            node=one.node, attempt=attempt, is_active=one.state in ACTIVE
        )
        for attempt, one in (run.foreign[:FOREIGN] if run else ())
        if one.container
    }


def _show_member(state: RunState, member: Member, seen: float) -> None:
    if node := _node(state, _key(member)):
        node.name, node.node_rank, node.container = member.node, member.node_rank, member.container
        node.is_missing = member.container is None and not member.out_of_reach
        if member.container:
            _answer(node, seen)
        elif member.out_of_reach:
            _miss(node, seen, node.error or member.reason)
        else:
            node.error = member.reason


def _key(member: Member) -> str:
    """Return the key of its state: without a record, the names of nodes that show nothing are not known."""
    return member.node if member.node != "?" else f"? {member.node_rank}"


def _without_container(node: NodeState, seen: float, *, is_silent: bool) -> None:
    node.container, node.is_missing = None, node.node_rank is not None and not is_silent
    if is_silent:
        _miss(node, seen, node.error or "did not answer")


# ── Containers and their lines ────────────────────────────────────────────────────────────────────────────────────────


def _is_of_the_run(state: RunState, node: NodeState, container: str, attempt: int | None) -> bool:
    """Return whether a container is one of the current attempt. A scheduler makes those of a job."""
    if state.is_job:
        return attempt in (None, state.attempt)
    if attempt not in (None, state.attempt):
        return False
    if not container:
        return True
    current = state.journal.current
    made = state.journal.containers if current and current.number == state.attempt else {}
    known, short = made.get(node.name) or (node.container.id if node.container else ""), short_id(container)
    return short == short_id(known) if known else (node.name, short) not in state.foreign


def _see(state: RunState, fact: ContainerSeen) -> None:
    node = _node(state, fact.node)
    if node is None:
        return
    _answer(node, fact.seen)
    if fact.facts is None:
        node.container, node.is_missing = None, node.node_rank is not None
    elif _is_of_the_run(state, node, fact.facts.id, None):
        node.ended_at = None if fact.facts.state in ACTIVE else fact.seen
        node.container, node.is_missing = fact.facts, False
    elif foreign := state.foreign.get((node.name, short_id(fact.facts.id))):
        foreign.is_active = fact.facts.state in ACTIVE


def _read(state: RunState, fact: LineRead) -> None:
    node = _node(state, fact.line.node)
    if node is None:
        return
    if not _is_of_the_run(state, node, fact.line.container, fact.line.attempt):
        _note_foreign(state, node, fact.line)
        return
    if state.attempt is None and node.node_rank is None and not state.has_record:
        node.node_rank = fact.line.node_rank  # lines are all that is known
    at = read_line(node, fact.line, fact.seen)
    if at is None:
        return
    if node.silent_since is not None and at >= node.silent_since:
        _answer(node, at)
    if node.container and node.container.status == "created":
        node.container = replace(node.container, status="running")  # it has started since it was seen


def _note_foreign(state: RunState, node: NodeState, line: RunLine) -> None:
    """A container of an earlier attempt may continue to write, and its lines are on record; another one is no part of
    the run."""
    key, attempt = (node.name, short_id(line.container)), line.attempt
    if attempt is None or (state.attempt is not None and attempt < state.attempt):
        return
    if line.container and (key in state.foreign or len(state.foreign) < FOREIGN):
        state.foreign.setdefault(key, ForeignContainer(node=node.name, attempt=attempt))
