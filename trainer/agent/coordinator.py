"""The decisions for all nodes of an attempt: start, restart or end. Pure: the clock comes in, orders go out.

The agent of rank 0's node holds the coordinator. Every node reports `Ready`; once all have, all start. When one rank
ends, all are stopped: the others would hang in a collective for minutes, and torchrun's own agents share no failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from contract.event_values import RANK_LIMIT
from contract.events import LivenessReported, NodesEvent, NodesRecovered, NodesStalled, OutputsEvent, WaitingForNodes
from contract.failures.owners import FINAL
from contract.liveness import LivenessDecision, LivenessLimits
from contract.liveness_watch import EXCHANGE_RULES, LivenessReport, LivenessWatch, ProgressAgain
from contract.rank_signs import MOST_RANKS, RankSigns
from contract.result_files import ResultFile, ResultFiles
from trainer.agent.file_lists import RESULTS, FileLists
from trainer.agent.rank_exit import LONGEST, RankExit, root_cause

SETTLE_S, LONG_SETTLE_S = 0.5, 5.0
"""Seconds after the first exit in which other nodes report theirs; longer while all reported exits only follow from
another rank's, so that this rank's node can report."""
STALLED_S = 8.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
REMIND_S = 10.0
FILES_DIFFER_S = 60.0
"""A failure within this time of a start with different files may follow from them: ranks load them at the beginning."""
COPY_STALL_S = 120.0
"""Time for which a copy without a byte is waited for: both sides end it earlier, but the last file is synced."""
GONE = "its connection ended: its container has ended, or its network is cut"


@dataclass(frozen=True, kw_only=True)
class StartRanks:
    generation: int
    port: int = 0
    """Port on which the ranks meet, on rank 0's node; 0: as their command says."""


@dataclass(frozen=True, kw_only=True)
class RestartRanks:
    generation: int
    """The next one."""
    cause: RankExit
    restarts_left: int
    pause_s: float


@dataclass(frozen=True, kw_only=True)
class CopyFiles:
    """A node is to copy files of rank 0's node, and to report `Ready` again."""

    node_rank: int
    files: tuple[ResultFile, ...]
    upload: bool = False
    """True if they are to be copied from this node to rank 0's."""


@dataclass(frozen=True, kw_only=True)
class EndRun:
    rank_exit: RankExit


@dataclass(frozen=True, kw_only=True)
class ReportStacks:
    """Each agent writes the Python stacks of its ranks into its log."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An event for the log of rank 0's agent."""

    event: NodesEvent | LivenessReported | OutputsEvent


Order = StartRanks | RestartRanks | CopyFiles | EndRun | ReportStacks | Notice


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """Limits on restarts and on waiting."""

    restarts: int
    """Maximum number of restarts without a new checkpoint."""
    silence_s: float = 60.0
    """A node that sends nothing for so long counts as lost."""
    absence_s: float = 900.0
    """Seconds for which the others wait for a lost node."""
    hang_s: float = 0.0
    """All ranks restart if they are stuck for so long; 0: they do not."""
    limits: LivenessLimits = field(default_factory=LivenessLimits)
    report_s: float = 10.0
    """Time between two reports of a node on its ranks."""
    independent: bool = False
    """True if each rank is meant to train its own model."""
    sync_outputs: str = RESULTS
    """Files that are copied between the nodes before a start, as `file_lists` names them."""


@dataclass
class _NodeState:
    name: str
    here: bool = False
    ready: bool = False
    received_at: float = 0.0
    stalled: bool = False
    signs: tuple[RankSigns, ...] = ()
    signs_at: float | None = None
    ranks: set[int] = field(default_factory=set)
    """Numbers of its ranks in this generation."""
    rank_exit: RankExit | None = None
    results: ResultFiles | None = None
    copying_until: float = 0.0
    """Time up to which the node may copy files before it is ready; 0: it copies none."""


@dataclass
class Coordinator:
    """Decides for the nodes `names`, in order of node_rank."""

    names: Sequence[str]
    policy: RestartPolicy
    generation: int = 0
    """Number of the generation that runs, or ran last; 0 before the first."""
    over: RankExit | None = None
    _nodes: list[_NodeState] = field(default_factory=list)
    _running: bool = False
    _used: int = 0
    _decide_at: float | None = None
    _waits_since: float = 0.0
    _not_before: float = 0.0
    _reported_at: float = 0.0
    _begun: float = 0.0
    _watch: LivenessWatch = field(init=False)
    _started_at: float = 0.0

    def __post_init__(self) -> None:
        self._nodes = [_NodeState(name=name) for name in self.names]
        self._watch = self._new_watch(0.0)
        self._files = FileLists(self.names, self.policy.sync_outputs)

    def open(self, now: float) -> None:
        self._waits_since = self._reported_at = now

    def ready(self, rank: int, generation: int, now: float, results: ResultFiles | None = None) -> list[Order]:
        """A node runs no rank and is ready to start. `generation`: the last one it has seen; `results`: its files."""
        node = self._hear(rank, now)
        if self.over:
            return []
        if self._running and node.here:  # its container restarted before the loss of its connection was noticed
            return [*self.gone(rank, now), *self.ready(rank, generation, now, results)]
        if not node.copying_until:
            self._files.compare_again()
        node.here = node.ready = True
        node.results, node.copying_until = results, 0.0
        self.generation = max(self.generation, generation)
        return self._start(now)

    def relisted(self, results: ResultFiles | None) -> None:
        """Files were copied to rank 0's node."""
        self._nodes[0].results = results

    def copying(self, rank: int, now: float) -> None:
        """Bytes of a copy to or from this node have arrived: a slow link takes its time."""
        node = self._hear(rank, now)
        node.copying_until = now + COPY_STALL_S if node.copying_until else 0.0

    def alive(self, rank: int, now: float) -> list[Order]:
        node = self._hear(rank, now)
        if node.stalled:
            node.stalled = False
            return [Notice(event=NodesRecovered(nodes=(node.name,)))]
        return []

    def ended(self, rank: int, rank_exit: RankExit, now: float) -> list[Order]:
        """The ranks of a node have ended."""
        node = self._hear(rank, now)
        node.rank_exit = rank_exit
        if self.over:
            return []
        if not self._running:  # it could not report before: the others have lost it since
            return self._close(rank_exit) if rank_exit.outcome in FINAL and not rank_exit.because_of_others else []
        if all(other.rank_exit and other.rank_exit.outcome == "done" for other in self._nodes):
            self._watch.look([one for other in self._nodes for one in other.signs], now)
            return self._close(replace(rank_exit, note=self._watch.summary(now - self._begun)))
        if rank_exit.outcome != "done" and self._decide_at is None:
            self._decide_at = now + LONG_SETTLE_S
        return self.tick(now)

    def signs(self, rank: int, generation: int, signs: Sequence[RankSigns], now: float) -> list[Order]:
        """Signs of the ranks of a node. It speaks for its own ranks only, of which it has at most `MOST_RANKS`: the
        first node that names a rank has it."""
        node = self._hear(rank, now)
        if generation == self.generation:
            others = {one.rank for other in self._nodes[:rank] for one in other.signs}
            own = {one.rank: replace(one, node=node.name) for one in signs if one.rank not in others}
            new = sorted(own.keys() - node.ranks)[: max(0, MOST_RANKS - len(node.ranks))]
            node.ranks.update(rank for rank in new if rank < RANK_LIMIT)
            node.signs = tuple(one for rank, one in own.items() if rank in node.ranks)
            node.signs_at = now
        return []

    def gone(self, rank: int, now: float, why: str = GONE) -> list[Order]:
        """The connection of a node is lost, or the node was silent for too long."""
        node = self._nodes[rank]
        was_here, node.here, node.ready, node.stalled = node.here, False, False, False
        node.copying_until = 0.0
        if not self._running or not was_here or node.rank_exit:
            return []
        return self.ended(rank, RankExit(outcome="infrastructure", node=node.name, reason=why), now)

    def progressed(self) -> None:
        """A checkpoint was written: restarts before it no longer count."""
        self._used = 0

    def tick(self, now: float) -> list[Order]:
        if self.over:
            return []
        if not self._running:
            return [*self._start(now), *self._wait(now)]
        orders: list[Order] = []
        for rank, node in enumerate(self._nodes):
            silent = now - node.received_at
            if rank == 0 or not node.here:
                continue
            if silent > self.policy.silence_s:
                orders += self.gone(rank, now, f"no word from it for {silent:.0f} s")
            elif silent > STALLED_S and not node.stalled:
                node.stalled = True
                orders.append(Notice(event=NodesStalled(nodes=(node.name,), seconds=round(silent))))
        if self._decide_at is not None and self._is_settled(now):
            return [*orders, *self._decide(now)]
        return [*orders, *self._look(now)]

    def _look(self, now: float) -> list[Order]:
        """Decide on liveness, once every node that runs ranks has reported lately: what is not examined is unknown."""
        running = [node for node in self._nodes if node.rank_exit is None]
        oldest = min((node.signs_at or 0.0 for node in running), default=0.0)
        if not oldest or now - oldest > 3 * self.policy.report_s or self._decide_at is not None:
            return []
        signs = [one for node in running for one in node.signs]
        ended = [one.rank for node in self._nodes if node.rank_exit for one in node.signs]
        orders: list[Order] = []
        for report in self._watch.look(signs, now, ended):
            orders.append(Notice(event=self._event(report)))
            is_pause = isinstance(report, LivenessDecision) and report.rule not in EXCHANGE_RULES
            orders += [ReportStacks()] if is_pause else []
        return [*orders, *self._end_hang(now)]

    def _end_hang(self, now: float) -> list[Order]:
        """Restart all ranks where they are stuck, for as long as the user allows."""
        still_s = self._watch.history.still_s
        stuck = next((one for one in self._watch.decisions if one.restarts), None)
        if not stuck or not 0 < self.policy.hang_s <= still_s:
            return []
        node = self._node_of(stuck.ranks[0]) or self._nodes[0]
        reason = f"hung: no rank made progress for {still_s:.0f} s: {stuck.text}"
        blamed = stuck.ranks[0] if len(stuck.ranks) == 1 else None
        node.rank_exit = RankExit(
            outcome="infrastructure", node=node.name, rank=blamed, reason=reason[:LONGEST], cause="code.hung"
        )
        return self._decide(now)

    def _event(self, report: LivenessReport) -> LivenessReported:
        if isinstance(report, ProgressAgain):
            return LivenessReported(rule="", seconds=round(report.seconds))
        nodes = [self._node_of(rank) for rank in report.ranks]
        return LivenessReported(
            rule=report.rule, text=report.text, fault=report.is_fault, ranks=report.ranks,
            nodes=tuple(node.name if node else "" for node in nodes), seconds=round(report.seconds),
            fix=report.fix or None,
        )  # fmt: skip

    def _node_of(self, rank: int) -> _NodeState | None:
        return next((node for node in self._nodes for one in node.signs if one.rank == rank), None)

    def _new_watch(self, now: float) -> LivenessWatch:
        return LivenessWatch(self.policy.limits, now, independent=self.policy.independent)

    def _is_settled(self, now: float) -> bool:
        """Return whether nothing is gained by waiting for more exits."""
        assert self._decide_at is not None  # noqa: S101  # asked only where something has ended
        rank_exits = [node.rank_exit for node in self._nodes if node.rank_exit and node.rank_exit.outcome != "done"]
        if all(node.rank_exit or not node.here for node in self._nodes) or now >= self._decide_at:
            return True
        its_own = any(not rank_exit.because_of_others for rank_exit in rank_exits)
        return its_own and now >= self._decide_at - LONG_SETTLE_S + SETTLE_S

    def _decide(self, now: float) -> list[Order]:
        cause = self._cause(now)
        clean = cause.outcome in ("stopped", "done")
        if cause.outcome in FINAL or (not clean and self._used >= self.policy.restarts):
            return self._close(cause)
        pause = 0.0 if clean else min(FIRST_PAUSE_S * 2**self._used, LONGEST_PAUSE_S)
        self._used += not clean
        self._running, self._decide_at = False, None
        self._not_before, self._waits_since, self._reported_at = now + pause, now, now
        self._files.reset()
        for node in self._nodes:
            node.ready, node.rank_exit, node.stalled, node.copying_until = False, None, False, 0.0
        left = self.policy.restarts - self._used
        return [RestartRanks(generation=self.generation + 1, cause=cause, restarts_left=left, pause_s=pause)]

    def _cause(self, now: float) -> RankExit:
        """The exit that caused the others. Where each rank only lost another one, different files may be the reason."""
        cause = root_cause([node.rank_exit for node in self._nodes if node.rank_exit])
        if not cause.because_of_others or not self._files.unequal or now - self._started_at > FILES_DIFFER_S:
            return cause
        reason = f"different files: {self._files.unequal} is not the same on all nodes; {cause.reason}"[:LONGEST]
        return replace(cause, cause="start.files_differ", reason=reason)

    def _start(self, now: float) -> list[Order]:
        if self._running or self.over or not all(node.ready for node in self._nodes):
            return []
        matched = self._files.match([node.results for node in self._nodes])
        orders: list[Order] = [Notice(event=event) for event in matched.events]
        for rank, files in matched.copies.items():
            self._nodes[rank].ready = False
            self._nodes[rank].copying_until = now + COPY_STALL_S
            orders.append(CopyFiles(node_rank=rank, files=files, upload=matched.upload))
        if matched.copies or now < self._not_before:
            return orders
        self._running, self._decide_at, self._started_at = True, None, now
        self.generation += 1
        self._begun, self._watch = now, self._new_watch(now)
        for node in self._nodes:
            node.received_at, node.rank_exit, node.signs, node.signs_at = now, None, (), None
            node.ranks.clear()
        return [*orders, StartRanks(generation=self.generation)]

    def _wait(self, now: float) -> list[Order]:
        if any(now < node.copying_until for node in self._nodes):
            self._waits_since = now
            return []
        missing = [node.name for node in self._nodes if not node.ready]
        waited = now - self._waits_since
        if not missing:
            return []
        if waited > self.policy.absence_s:
            names = ", ".join(missing)
            reason = f"it did not come within {waited:.0f} s" if len(missing) == 1 else f"{names} did not come"
            return self._close(RankExit(outcome="infrastructure", node=missing[0], reason=reason))
        if now - self._reported_at < REMIND_S:
            return []
        self._reported_at = now
        return [Notice(event=WaitingForNodes(nodes=tuple(missing), seconds=round(waited)))]

    def _close(self, rank_exit: RankExit) -> list[Order]:
        self.over = rank_exit
        return [EndRun(rank_exit=rank_exit)]

    def _hear(self, rank: int, now: float) -> _NodeState:
        self._nodes[rank].received_at = now
        return self._nodes[rank]
