"""Streams of facts about runs, and the verdict that each must get on every surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from contract.event_lines import encode_event
from contract.events import (
    CheckpointWritten,
    DataDamaged,
    Event,
    Finished,
    GenerationStarted,
    LineRedrawn,
    LivenessReported,
    NodesStalled,
    OutputProgress,
    RankFailed,
    RankLeftOut,
    Restarting,
    StepDone,
    TrainingDone,
    TrainingResumed,
    TrainingStopped,
    WaitingForNodes,
)
from contract.resources import ResourceUsage
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts, Member, Run, State
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import (
    ContainerSeen,
    Fact,
    JournalRead,
    LineRead,
    NodeAnswered,
    NodeUnanswered,
    RunSeen,
    SupervisorSought,
)
from orchestrator.state.journal import fold
from orchestrator.state.journal_entries import (
    ClaimEntry,
    DataEntry,
    EndEntry,
    JournalEntry,
    RefusedEntry,
    RunEntry,
    StartedEntry,
    StopEntry,
)
from tests import lan

NAMES = lan.NAMES[:3]
RUN_ID = lan.IDENTITY.run_id
T0 = 1_790_000_000.0
USAGE = ResourceUsage(cpu_percent=40.0, cpus=2.0, ram_used_mib=1024, ram_limit_mib=4096)
PLAN: Plan = replace(lan.plan(NAMES), claim="c0")


def iso(at: float) -> str:
    """The time of a log line."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def container(node: str, status: str = "running", attempt: int = 0, **changes: Any) -> ContainerFacts:
    values: dict[str, Any] = {"name": f"orch-{RUN_ID}", "image": "i", "labels": {}, "started_at": iso(T0)}
    return ContainerFacts(id=f"{node}-{attempt}", status=status, **{**values, **changes})


def member(node: str, status: str = "running", attempt: int = 0, **changes: Any) -> Member:
    facts = container(node, status, attempt, **changes)
    return Member(node=node, node_rank=NAMES.index(node), state=facts.state, container=facts)


@dataclass
class Stream:
    """Facts in order of time; times are seconds since the launch."""

    names: Sequence[str] = NAMES
    attempt: int = 0
    facts: list[Fact] = field(default_factory=list)
    entries: list[JournalEntry] = field(default_factory=list)
    plan: Plan = PLAN

    def record(self, at: float, *entries: JournalEntry) -> None:
        self.entries += [replace(one, at=T0 + at) for one in entries]
        current = fold(self.entries).current
        self.facts.append(JournalRead(seen=T0 + at, journal=fold(self.entries), plan=self.plan if current else None))

    def claim(self, at: float, attempt: int, why: Any = "launch") -> None:
        base = None if attempt == 0 else attempt - 1
        run = [] if self.entries else [RunEntry(run_id=RUN_ID, user="ana", command=("python", "train.py"))]
        self.record(
            at, *run, ClaimEntry(attempt=attempt, id=f"c{attempt}", base=base, nodes=tuple(self.names), why=why)
        )

    def start(self, at: float, attempt: int) -> None:
        """Containers of the attempt exist, and run."""
        self.attempt = attempt
        parts = tuple(part for part in PLAN.nodes if part.node in self.names)
        self.plan = replace(PLAN, attempt=attempt, claim=f"c{attempt}", nodes=parts, nnodes=len(parts))
        made = {name: f"{name}-{attempt}" for name in self.names}
        self.record(at, StartedEntry(attempt=attempt, containers=made))

    def run(self, at: float, *members: Member, unreachable: Sequence[str] = (), **changes: Any) -> None:
        """The nodes are asked for the run."""
        shown = members or tuple(member(name, attempt=self.attempt) for name in self.names)
        values: dict[str, Any] = {
            "run_id": RUN_ID, "project": "orch", "attempt": self.attempt, "user": "ana", "started_at": iso(T0),
            "nnodes": len(self.names), "command": "python train.py", "master": "alpha", "members": shown,
        }  # fmt: skip
        self.facts.append(RunSeen(seen=T0 + at, run=Run(**{**values, **changes}), unreachable=tuple(unreachable)))

    def write(self, at: float, node: str, text: str, rank: int | None = None, attempt: int | None = None) -> None:
        number = self.attempt if attempt is None else attempt
        line = RunLine(time=iso(T0 + at), node=node, node_rank=NAMES.index(node), rank=rank, text=text)
        self.facts.append(LineRead(seen=T0 + at, line=replace(line, container=f"{node}-{number}", attempt=number)))

    def event(self, at: float, node: str, event: Event, rank: int | None = None, attempt: int | None = None) -> None:
        self.write(at, node, encode_event(replace(event, t=T0 + at, rank=rank)), rank, attempt)

    def agents(self, at: float, event: Event) -> None:
        for name in self.names:
            self.event(at, name, replace(event, node=name))

    def answer(self, at: float, *names: str) -> None:
        self.facts += [NodeAnswered(seen=T0 + at, node=name, usage=USAGE) for name in names or self.names]

    def end(self, at: float, code: int, *names: str, **changes: Any) -> None:
        for name in names or self.names:
            facts = container(name, "exited", self.attempt, exit_code=code, **changes)
            self.facts.append(ContainerSeen(seen=T0 + at, node=name, facts=facts))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The verdict at a time, and what every screen shows with it."""

    at: float
    phase: str
    severity: str = "ok"
    codes: tuple[str, ...] = ()
    step: int | None = None
    restarts: int = 0


def launched(**changes: Any) -> Stream:
    """Claimed, and its containers run."""
    s = Stream(**changes)
    s.claim(-2, 0)
    s.start(-1, 0)
    s.run(0)
    return s


def begun(**changes: Any) -> Stream:
    s = launched(**changes)
    s.agents(1, GenerationStarted(generation=1))
    return s


def trained(last: int = 110, **changes: Any) -> Stream:
    """Steps of rank 0 every second."""
    s = begun(**changes)
    for number, step in enumerate(range(10, last + 1, 10)):
        s.event(2 + number, "alpha", StepDone(step=step, loss=1 / step, per_s=100.0, final_step=600), 0)
    return s


# ── The streams ───────────────────────────────────────────────────────────────────────────────────────────────────────


def plain_script() -> Stream:
    s = begun()
    for number in range(150):
        s.write(2 + number * 0.8, "alpha", f"epoch {number}/200 loss 0.1", 0)
    s.answer(121)
    return s


def late_checkpoint() -> Stream:
    s = trained()
    s.event(13.5, "alpha", CheckpointWritten(step=100, verified=True, sha256="a" * 64), 0)
    return s


def restart() -> Stream:
    s = late_checkpoint()
    s.agents(14, Restarting(outcome="infrastructure", reason="killed", restarts_left=2, generation=1))
    return s


def restarted() -> Stream:
    s = restart()
    s.agents(16, GenerationStarted(generation=2))
    return s


def resumed() -> Stream:
    s = restarted()
    s.event(17, "alpha", TrainingResumed(step=100), 0)
    s.event(18, "alpha", StepDone(step=101, loss=0.1, per_s=100.0, final_step=600), 0)
    return s


def stopped_on_request() -> Stream:
    s = trained(20)
    for rank, name in enumerate(NAMES):
        s.event(20, name, TrainingStopped(step=20), rank)
    s.agents(21, Finished(outcome="stopped", exit_code=143))
    s.end(22, 143)
    return s


def stopped_script() -> Stream:
    """A script of the user's: its containers end with SIGTERM's code, and no event reports it."""
    s = begun()
    s.end(22, 143)
    return s


def good_end() -> Stream:
    s = trained(600)
    s.event(70, "alpha", TrainingDone(step=600), 0)
    s.agents(71, Finished(outcome="done", exit_code=0))
    s.end(72, 0)
    return s


def recorded_end() -> Stream:
    """The outcome is on record, and no node shows the run any more."""
    s = good_end()
    s.record(80, EndEntry(attempt=0, state="succeeded"))
    s.facts.append(RunSeen(seen=T0 + 90, run=None))
    return s


def failed_rank() -> Stream:
    s = trained(50)
    s.event(10, "beta", RankFailed(owner="user", error="ValueError", message="shapes"), 1)
    for name in NAMES:
        s.event(11, name, Finished(outcome="user", exit_code=1, node="beta", reason="ValueError: shapes"))
    s.end(12, 1)
    return s


def restarted_by_its_engine() -> Stream:
    """A failed run whose containers the engine starts again, each of which ends at once with the same report."""
    s = trained(50)
    end = Finished(outcome="user", exit_code=1, reason="ValueError: shapes")
    s.agents(11, end)
    for second in (11.2, 12.2, 13.2):
        s.end(second, 1, "gamma")
        s.run(second + 0.3, member("alpha", "restarting"), member("beta"), member("gamma"))
        s.agents(second + 0.6, end)
    return s


def end_by_the_coordinator() -> Stream:
    """The coordinator has ended the run, and the agents are about to report it."""
    s = trained(50)
    s.event(11, "alpha", Finished(outcome="user", exit_code=1, node="beta", reason="ValueError: shapes"))
    return s


def killed_container() -> Stream:
    """One container has ended while the others run."""
    s = trained()
    s.end(14, 137, "beta", oom_killed=True)
    return s


def quiet_node() -> Stream:
    """No sample of beta for five seconds: that is no fact about the run."""
    s = trained()
    s.answer(15)
    s.answer(20, "alpha", "gamma")
    return s


def slow_node() -> Stream:
    s = trained(100)
    times = {"alpha": 0.1, "beta": 0.4, "gamma": 0.1}
    s.event(13, "alpha", StepDone(step=110, loss=0.1, compute_s=times), 0)
    return s


def later_container() -> Stream:
    """One container is labelled attempt 7: three ranks train as before."""
    s = trained()
    own = tuple(member(name) for name in NAMES)
    s.run(14, *own, foreign=((7, member("gamma", attempt=7)),))
    s.event(14, "gamma", StepDone(step=9999), 0, attempt=7)
    return s


def first_evaluation() -> Stream:
    s = trained()
    s.event(80, "alpha", liveness("computing", False, "rank 0 has been computing at train.py:80 for 66 s", (0,), 66))
    return s


def silent_download() -> Stream:
    s = begun()
    s.event(80, "alpha", liveness("reading", False, "rank 1 has been reading for 66 s (9 MB/s)", (1,), 66))
    return s


def no_network() -> Stream:
    s = trained()
    text = "all ranks are waiting in all_reduce 7 and no data has arrived for 35 s"
    s.event(48, "alpha", liveness("network", True, text, (0, 1, 2), 35, "orch test"))
    return s


def spinning() -> Stream:
    """NCCL spins at 100 % CPU: the ranks are in different collectives all the same."""
    s = trained()
    text = "deadlock: rank 0 is waiting in all_reduce 7, rank 1 in barrier 7"
    s.event(48, "alpha", liveness("deadlock", True, text, (0, 1, 2), 35))
    return s


def sigstop() -> Stream:
    s = trained()
    s.event(80, "alpha", liveness("stopped", True, "rank 2 (gamma) is stopped (SIGSTOP)", (2,), 62))
    return s


def progress_again() -> Stream:
    s = sigstop()
    s.event(90, "alpha", liveness("", False, "", (), 72))
    return s


def left_out() -> Stream:
    s = trained()
    s.event(3, "gamma", RankLeftOut(why="its link is too slow"), 2)
    return s


def apart() -> Stream:
    s = begun()
    text = "each rank trains its own model: 50 optimizer steps, nothing exchanged"
    s.event(80, "alpha", liveness("apart", True, text, (0, 1, 2), 60))
    return s


def not_finite() -> Stream:
    s = begun()
    s.event(9, "alpha", OutputProgress(step=40, loss=None, not_finite="nan", not_finite_since=38), 0)
    return s


def cut_off() -> Stream:
    """This computer reaches no node any more."""
    s = trained()
    s.answer(14)
    s.facts += [NodeUnanswered(seen=T0 + 20, node=name, error="no answer in 5 s") for name in NAMES]
    return s


def lost_and_found() -> Stream:
    """Stream in which it is on record that no node answers; then they do, and the run has continued."""
    s = cut_off()
    s.record(400, EndEntry(attempt=0, state="lost"))
    s.run(1000)
    s.event(1001, "alpha", StepDone(step=500, loss=0.1, final_step=600), 0)
    return s


def lost_for_good() -> Stream:
    s = cut_off()
    s.record(400, EndEntry(attempt=0, state="lost"))
    s.facts.append(RunSeen(seen=T0 + 1000, run=None, unreachable=tuple(NAMES)))
    return s


def ended_out_of_sight() -> Stream:
    """The nodes that answer again show that the run has ended."""
    s = cut_off()
    s.record(400, EndEntry(attempt=0, state="lost"))
    s.run(1000, *(member(name, "exited", exit_code=0) for name in NAMES))
    return s


def one_node_silent() -> Stream:
    s = trained()
    s.facts.append(NodeUnanswered(seen=T0 + 20, node="beta", error="no answer in 5 s"))
    return s


def waiting_after_a_restart() -> Stream:
    """beta does not return after all ranks were stopped, and the others wait for it."""
    s = trained()
    s.agents(14, Restarting(outcome="infrastructure", reason="lost", node="beta", restarts_left=2, generation=1))
    s.event(16, "alpha", WaitingForNodes(nodes=("beta",), seconds=1.0))
    s.event(76, "alpha", WaitingForNodes(nodes=("beta",), seconds=61.0))
    return s


def damaged_data() -> Stream:
    """A node reports on itself alone, whatever its event says."""
    s = trained()
    s.event(20, "beta", DataDamaged(node="alpha", data="d" * 16, file="a.bin", wrong="content", offset=7, intact_at=T0))
    return s


def replaced_data() -> Stream:
    """Stream in which the data that an attempt has read stays in doubt."""
    s = trained()
    entry = DataEntry(attempt=0, node="beta", data="d" * 16, file="a.bin", wrong="content", found_at=9, intact_at=1)
    s.record(20, entry)
    s.end(21, 10)
    s.claim(22, 1)
    s.start(23, 1)
    s.run(24)
    s.agents(25, GenerationStarted(generation=1))
    return s


def peer_silent() -> Stream:
    s = trained()
    s.event(20, "alpha", NodesStalled(nodes=("beta",), seconds=8.0))
    return s


def node_absent() -> Stream:
    s = launched()
    for name in ("alpha", "beta"):
        s.event(1, name, WaitingForNodes(nodes=("gamma",), seconds=1.0))
    return s


def removed_after_a_stop() -> Stream:
    """`orch stop` elsewhere on this computer: one container is removed, one is killed, one still runs."""
    s = trained()
    s.record(15, StopEntry(by="ana@desk"))
    s.end(16, 137, "gamma")
    s.facts.append(ContainerSeen(seen=T0 + 16, node="beta", facts=None))
    return s


def removed_by_hand() -> Stream:
    s = trained()
    s.facts.append(ContainerSeen(seen=T0 + 16, node="beta", facts=None))
    return s


def stop_while_restarting() -> Stream:
    s = restart()
    s.record(15, StopEntry(by="ana@desk"))
    return s


def record_lost() -> Stream:
    s = trained()
    s.facts = [one for one in s.facts if not isinstance(one, JournalRead)]
    return s


def unnamed_node() -> Stream:
    """Stream without a record: a node that does not answer has no name."""
    s = record_lost()
    lost = Member(node="?", node_rank=1, state=State.LOST, reason="beta did not answer", out_of_reach=True)
    s.run(20, member("alpha"), lost, member("gamma"), unreachable=["beta"])
    return s


def record_lost_after_the_end() -> Stream:
    """Nothing is left to supervise."""
    s = record_lost()
    s.end(20, 0)
    return s


def without_supervisor() -> Stream:
    """The process that launched the run was killed."""
    s = trained()
    s.facts.append(SupervisorSought(seen=T0 + 14, found=False))
    return s


def supervised_again() -> Stream:
    s = without_supervisor()
    s.facts.append(SupervisorSought(seen=T0 + 40, found=True))
    return s


def of_another_computer() -> Stream:
    """A supervisor there is not seen from here."""
    s = trained()
    s.facts.append(SupervisorSought(seen=T0 + 40, found=None))
    return s


def job_without_supervisor() -> Stream:
    """Its scheduler makes the attempts of a job."""
    s = without_supervisor()
    s.plan = replace(s.plan, cluster="hpc")
    s.record(15)
    return s


def ended_without_supervisor() -> Stream:
    s = without_supervisor()
    s.end(41, 0)
    return s


def checkpoint_9999() -> Stream:
    """A node that does not lead claims a checkpoint of its own."""
    s = trained()
    s.event(14, "beta", CheckpointWritten(step=9999, verified=True, sha256="b" * 64), 1)
    return s


def returning_node() -> Stream:
    """Stream in which gamma was given up, and returns with its container of attempt 0, which still writes."""
    s = trained()
    s.names = NAMES[:2]
    s.claim(20, 1, "replan")
    s.start(22, 1)
    s.run(23)
    s.agents(24, GenerationStarted(generation=1))
    s.event(25, "alpha", StepDone(step=40, loss=0.5), 0)
    s.run(30, *(member(name, attempt=1) for name in s.names), earlier=((0, member("gamma")),))
    s.event(31, "gamma", StepDone(step=700), 0, attempt=0)
    s.event(31, "gamma", GenerationStarted(generation=5), attempt=0)
    return s


def continued_elsewhere() -> Stream:
    """Most nodes show attempt 1, which this computer has not launched."""
    s = trained()
    s.attempt = 1
    s.run(30)
    s.agents(31, GenerationStarted(generation=1))
    s.event(32, "alpha", StepDone(step=50), 0)
    return s


def next_attempt() -> Stream:
    """This computer makes the containers of the attempt that it has claimed."""
    s = trained()
    s.record(15, EndEntry(attempt=0, state="failed", reason="exit code 1"))
    s.claim(20, 1, "resume")
    s.run(25, *(member(name, "created", 1) for name in NAMES), attempt=1)
    return s


def lost_claim() -> Stream:
    """The claim of this computer was refused, and another one has continued the run with the same number."""
    s = trained()
    s.claim(20, 1, "resume")
    s.record(21, RefusedEntry(attempt=1))
    s.attempt = 1
    s.run(30)
    return s


def queued_job() -> Stream:
    s = Stream()
    s.claim(-2, 0)
    s.start(-1, 0)
    s.run(0, *(member(name, "queued") for name in NAMES))
    return s


def being_launched() -> Stream:
    s = Stream()
    s.claim(-2, 0)
    return s


def between_attempts() -> Stream:
    s = trained()
    s.claim(20, 1, "replan")
    s.facts.append(RunSeen(seen=T0 + 21, run=None))
    return s


def no_rank_yet() -> Stream:
    s = launched()
    s.write(1, "alpha", "agent of node 0 of 3")
    return s


def half_stopped() -> Stream:
    """gamma did not answer when the run was stopped."""
    s = trained()
    s.record(20, StopEntry(by="ana@desk"))
    s.record(25, EndEntry(attempt=0, state="stopped"))
    s.run(30, member("alpha", "exited", exit_code=143), member("beta", "exited", exit_code=143), member("gamma"))
    return s


def forgotten() -> Stream:
    """Stream of a run on record without an end, of which no node has a container."""
    s = trained()
    s.facts.append(RunSeen(seen=T0 + 900, run=None))
    return s


def record_alone(*, read_at: float, restarting: bool = False) -> Stream:
    """The record as it is read later, when no node is asked: lines up to the twelfth second."""
    s = Stream()
    s.claim(-2, 0)
    s.start(-1, 0)
    s.agents(1, GenerationStarted(generation=1))
    s.event(12, "alpha", StepDone(step=110, final_step=600), 0)
    if restarting:
        s.event(12, "alpha", Restarting(outcome="user", reason="exit code 1", node="alpha", rank=0))
    s.record(read_at)
    return s


def record_of_now() -> Stream:
    return record_alone(read_at=100)


def record_of_a_restart() -> Stream:
    return record_alone(read_at=100, restarting=True)


def record_of_then() -> Stream:
    return record_alone(read_at=900)


def removed_container() -> Stream:
    s = trained()
    lost = Member(node="beta", node_rank=1, state=State.LOST, reason="no node holds its container")
    s.run(20, member("alpha"), lost, member("gamma"))
    return s


def lying_node() -> Stream:
    """Reports of a node that does not lead, and whose agent does not coordinate: they are shown nowhere."""
    s = trained()
    s.event(14, "beta", StepDone(step=10**12, loss=-1.0, compute_s={"alpha": 9.0}), 1)
    s.event(14, "beta", Restarting(outcome="infrastructure", node="alpha", reason="a lie", generation=99))
    s.event(14, "beta", GenerationStarted(generation=99))
    s.event(14, "beta", liveness("stopped", True, "rank 0 is stopped (SIGSTOP)", (0,), 500))
    s.event(14, "beta", WaitingForNodes(nodes=("alpha", "gamma"), seconds=900.0))
    s.event(14, "beta", NodesStalled(nodes=("alpha",), seconds=900.0))
    s.event(14, "beta", Finished(outcome="user", exit_code=1, node="alpha", reason="a lie"))
    s.event(14, "beta", TrainingStopped(step=5), 1)
    return s


def progress_bar() -> Stream:
    """A script that only redraws a bar."""
    s = begun()
    for second in range(2, 60):
        s.event(second, "alpha", LineRedrawn(bar="epoch 1", text=f"epoch 1: {second}%|###"), 0)
    return s


def unknown_events() -> Stream:
    """A newer trainer, hostile values, a clock set back."""
    s = trained()
    s.write(14, "alpha", '@orch {"event": "gpu_hot", "celsius": 99}', 0)
    s.write(14, "beta", '@orch {"event": "step", "step": "many"}', 1)
    s.write(14, "beta", '@orch {"event": "liveness", "rule": "network", "fault": true, "text": "a lie"}')
    s.write(-3600, "alpha", "a line after its clock was set back", 0)
    return s


def liveness(
    rule: str, fault: bool, text: str, ranks: tuple[int, ...], seconds: float, fix: str = ""
) -> LivenessReported:
    nodes = tuple(NAMES[rank] for rank in ranks)
    return LivenessReported(rule=rule, fault=fault, text=text, ranks=ranks, nodes=nodes, seconds=seconds, fix=fix)


CASES = (
    (damaged_data, Expected(at=21, phase="running", severity="warning", codes=("data_damaged",), step=110)),
    (replaced_data, Expected(at=26, phase="running", severity="warning", codes=("data_damaged",))),
    (plain_script, Expected(at=122, phase="running")),
    (late_checkpoint, Expected(at=14, phase="running", step=110)),
    (restart, Expected(at=15, phase="restarting", severity="info", codes=("restarted",), step=110, restarts=1)),
    (restarted, Expected(at=17, phase="running", severity="info", codes=("restarted",), step=110, restarts=1)),
    (resumed, Expected(at=20, phase="running", severity="info", codes=("restarted",), step=101, restarts=1)),
    (stopped_on_request, Expected(at=23, phase="stopped", step=20)),
    (stopped_script, Expected(at=23, phase="stopped")),
    (good_end, Expected(at=73, phase="succeeded", step=600)),
    (recorded_end, Expected(at=91, phase="succeeded", step=600)),
    (failed_rank, Expected(at=13, phase="failed", severity="error", codes=("container_failed",), step=50)),
    (end_by_the_coordinator, Expected(at=12, phase="failed", severity="error", step=50)),
    (restarted_by_its_engine, Expected(at=15, phase="failed", severity="error", step=50)),
    (
        restarted_by_its_engine,
        Expected(at=40, phase="failed", severity="error", codes=("still_running",), step=50),
    ),
    (killed_container, Expected(at=15, phase="running", severity="error", codes=("container_failed",), step=110)),
    (quiet_node, Expected(at=20, phase="running", step=110)),
    (quiet_node, Expected(at=29, phase="running", severity="warning", codes=("node_silent",), step=110)),
    (slow_node, Expected(at=14, phase="running", severity="warning", codes=("slow_compute",), step=110)),
    (later_container, Expected(at=15, phase="running", severity="warning", codes=("foreign_container",), step=110)),
    (first_evaluation, Expected(at=81, phase="running", severity="info", codes=("waiting_for_rank",), step=110)),
    (first_evaluation, Expected(at=400, phase="running", severity="warning", codes=("waiting_for_rank",), step=110)),
    (silent_download, Expected(at=81, phase="running", severity="info", codes=("waiting_for_rank",))),
    (no_network, Expected(at=50, phase="running", severity="warning", codes=("run_blocked",), step=110)),
    (no_network, Expected(at=400, phase="running", severity="error", codes=("run_blocked",), step=110)),
    (spinning, Expected(at=50, phase="running", severity="warning", codes=("run_blocked",), step=110)),
    (sigstop, Expected(at=81, phase="running", severity="error", codes=("rank_stuck",), step=110)),
    (progress_again, Expected(at=91, phase="running", step=110)),
    (left_out, Expected(at=14, phase="running", step=110)),
    (apart, Expected(at=81, phase="running", severity="warning", codes=("no_exchange",))),
    (not_finite, Expected(at=10, phase="running", severity="warning", codes=("loss_not_finite",), step=40)),
    (cut_off, Expected(at=22, phase="lost", severity="error", codes=("node_silent",), step=110)),
    (lost_and_found, Expected(at=1002, phase="running", step=500)),
    (lost_for_good, Expected(at=1001, phase="lost", severity="error", codes=("node_silent",), step=110)),
    (ended_out_of_sight, Expected(at=1001, phase="succeeded", step=110)),
    (one_node_silent, Expected(at=22, phase="running", severity="warning", codes=("node_silent",), step=110)),
    (peer_silent, Expected(at=22, phase="running", severity="warning", codes=("peer_silent",), step=110)),
    (
        waiting_after_a_restart,
        Expected(
            at=77, phase="restarting", severity="warning", codes=("node_absent", "restarted"), step=110, restarts=1
        ),
    ),
    (node_absent, Expected(at=2, phase="starting", severity="info", codes=("node_absent",))),
    (node_absent, Expected(at=40, phase="starting", severity="warning", codes=("node_absent",))),
    (removed_after_a_stop, Expected(at=17, phase="stopping", step=110)),
    (
        removed_by_hand,
        Expected(at=17, phase="running", severity="warning", codes=("container_missing",), step=110),
    ),
    (
        stop_while_restarting,
        Expected(at=16, phase="stopping", severity="info", codes=("restarted",), step=110, restarts=1),
    ),
    (without_supervisor, Expected(at=15, phase="running", step=110)),
    (without_supervisor, Expected(at=42, phase="running", severity="info", codes=("no_supervisor",), step=110)),
    (supervised_again, Expected(at=42, phase="running", step=110)),
    (of_another_computer, Expected(at=42, phase="running", step=110)),
    (job_without_supervisor, Expected(at=42, phase="running", step=110)),
    (ended_without_supervisor, Expected(at=42, phase="succeeded", step=110)),
    (record_lost, Expected(at=15, phase="running", severity="info", codes=("no_record",), step=110)),
    (unnamed_node, Expected(at=21, phase="running", severity="warning", codes=("node_silent", "no_record"), step=110)),
    (record_lost_after_the_end, Expected(at=21, phase="succeeded", step=110)),
    (checkpoint_9999, Expected(at=15, phase="running", severity="info", codes=("unreported_checkpoint",), step=110)),
    (returning_node, Expected(at=32, phase="running", step=40)),
    (continued_elsewhere, Expected(at=33, phase="running", severity="warning", codes=("superseded",), step=50)),
    (next_attempt, Expected(at=26, phase="launching")),
    (lost_claim, Expected(at=31, phase="running", severity="warning", codes=("superseded",))),
    (queued_job, Expected(at=1, phase="queued")),
    (being_launched, Expected(at=1, phase="launching")),
    (between_attempts, Expected(at=22, phase="launching", step=110)),
    (no_rank_yet, Expected(at=1, phase="starting")),
    (half_stopped, Expected(at=31, phase="stopped", severity="warning", codes=("still_running",), step=110)),
    (forgotten, Expected(at=901, phase="unknown", severity="warning", step=110)),
    (record_of_now, Expected(at=100, phase="running", step=110)),
    (
        record_of_a_restart,
        Expected(at=100, phase="restarting", severity="info", codes=("restarted",), step=110, restarts=1),
    ),
    (record_of_then, Expected(at=900, phase="unknown", severity="warning", step=110)),
    (removed_container, Expected(at=21, phase="running", severity="warning", codes=("container_missing",), step=110)),
    (lying_node, Expected(at=15, phase="running", step=110)),
    (progress_bar, Expected(at=61, phase="running")),
    (unknown_events, Expected(at=15, phase="running", step=110)),
)
"""Streams with their expected verdicts, which were written before the code."""
