"""Every row of the table of liveness, by the signs of ranks alone: no process, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contract.liveness import LivenessDecision, LivenessHistory, LivenessLimits, TrainingSoFar, decide, is_frozen
from contract.liveness_watch import LivenessWatch, ProgressAgain
from contract.rank_signs import RankSigns
from contract.rank_words import position_line, ranks, together_line, work_line
from tests.each_case import failures_of

NAMES = ("alpha", "beta", "gamma")
WAIT = {"0": (156, 155)}
PASSED = {"0": (155, 155)}


def signs(rank: int, **more: Any) -> RankSigns:
    """A rank of three that computes, in a healthy run."""
    usual = {
        "node": NAMES[rank], "process": 100 + rank, "world": 3, "age_s": 0.5, "optimizer_steps": 90, "groups": PASSED,
        "in_group": True, "line": "train.py:8 in main", "cpu": 0.98, "io_bytes_s": 50_000.0, "state": "R",
    }  # fmt: skip
    return RankSigns(rank=rank, **{**usual, **more})  # type: ignore[arg-type]


def waits(rank: int, **more: Any) -> RankSigns:
    return signs(rank, **{"groups": WAIT, "cpu": 0.0, "io_bytes_s": 0.0, "state": "S", "call": "all_reduce", **more})


def idle(rank: int, **more: Any) -> RankSigns:
    return signs(rank, **{"cpu": 0.0, "io_bytes_s": 0.0, "state": "S", "line": "data.py:40 in fetch", **more})


def trained(steps: int, collectives: int, sent: int | None = 0, seconds: float = 61) -> dict[int, TrainingSoFar]:
    one = TrainingSoFar(steps=steps, collectives=collectives, sent_bytes=sent, seconds=seconds)
    return dict.fromkeys(range(3), one)


def alone(rank: int, **more: Any) -> RankSigns:
    return signs(rank, **{"groups": {}, "in_group": False, **more})


ROWS: dict[str, tuple[Sequence[RankSigns], float, str]] = {
    "deadlock": (
        [
            waits(0, line="train.py:8 in main"),
            waits(1, groups={**PASSED, "1": (1, 0)}, line="train.py:9 in main"),
            waits(2, line="train.py:8 in main"),
        ],
        30,
        "! deadlock: rank 0 on alpha is waiting in collective 156 of group 0 (train.py:8), rank 1 on beta in "
        "collective 1 of group 1 (train.py:9)",
    ),
    "other call": (
        [waits(0, call="all_gather", line="f.py:1"), waits(1, call="broadcast", line="f.py:9"), waits(2, call="")],
        30,
        "! deadlock: rank 0 on alpha is waiting in all_gather 156 of group 0 (f.py:1), rank 1 on beta in broadcast "
        "156 of group 0 (f.py:9)",
    ),
    "network": (
        [waits(0, world=2), waits(1, world=2)],
        30,
        "! all ranks are waiting in all_reduce 156 and no data has arrived for 30 s: check the network between alpha "
        "and beta → orch test",
    ),
    "computing": (
        [waits(0), signs(1, line="train.py:88 in evaluate"), waits(2)],
        61,
        "· rank 1 on beta has been computing at train.py:88 in evaluate for 61 s (98 % CPU); ranks 0, 2 are waiting "
        "for it",
    ),
    "idle": (
        [waits(0), idle(1), waits(2)],
        61,
        "! rank 1 on beta has been idle at data.py:40 in fetch for 61 s; ranks 0, 2 are waiting for it",
    ),
    "sleeping": (
        [waits(0), idle(1, sleeps=True, line="x.py:4")],
        61,
        "· rank 1 on beta has been sleeping at x.py:4 for 61 s; rank 0 is waiting for it",
    ),
    "reading": (
        [waits(1), idle(0, io_bytes_s=12e6, line="save.py:4 in save")],
        61,
        "· rank 0 on alpha has been reading or writing at save.py:4 in save for 61 s (12 MB/s); rank 1 is waiting "
        "for it",
    ),
    "all idle": (
        [idle(0), idle(1)],
        120,
        "! all ranks have been idle for 120 s: rank 0 at data.py:40 in fetch",
    ),
    "all sleeping": (
        [idle(0), idle(1, sleeps=True)],
        120,
        "· all ranks have been sleeping for 120 s: rank 0 at data.py:40 in fetch",
    ),
    "native": (
        [waits(0), signs(1, age_s=61.0, cpu=1.0, line="load.py:6 in load")],
        61,
        "· rank 1 on beta has been in native code for 61 s (100 % CPU), last Python line load.py:6; rank 0 is waiting "
        "for it",
    ),
    "native, in a collective a moment before": (
        [waits(0), waits(1, age_s=61.0, cpu=1.0, line="load.py:6 in load")],
        61,
        "· rank 1 on beta has been in native code for 61 s (100 % CPU), last Python line load.py:6; rank 0 is waiting "
        "for it",
    ),
    "idle in native code": (
        [waits(0), idle(1, age_s=61.0, line="load.py:6 in load")],
        61,
        "! rank 1 on beta has been in native code for 61 s (0 % CPU), last Python line load.py:6; rank 0 is waiting "
        "for it",
    ),
    "stopped": (
        [waits(0), signs(1, state="T", age_s=61.0, stood_s=60.0, cpu=0.0)],
        61,
        "! rank 1 on beta is stopped (SIGSTOP)",
    ),
    "blocked": (
        [signs(0), signs(1, state="D", age_s=61.0, stood_s=60.0, cpu=0.0)],
        0,
        "! rank 1 on beta is blocked in the kernel: a disk, a network share or a driver",
    ),
    "not joined": (
        [
            alone(0, call="init_process_group", cpu=0.0, optimizer_steps=0),
            alone(1, call="init_process_group", cpu=0.0, optimizer_steps=0),
            alone(2, importing="transformers", line="loading.py:12 in <module>", optimizer_steps=0),
        ],
        60,
        "· rank 2 on gamma has not reached init_process_group: it is importing transformers (loading.py:12)",
    ),
    "ended": (
        [waits(1, line="train.py:9")],
        30,
        "! rank 1 on beta is waiting in collective 156 of group 0 (train.py:9), for rank 0, which has ended",
    ),
}  # fmt: skip


def decided(found: Sequence[RankSigns], still_s: float, **history: Any) -> LivenessDecision | None:
    decisions = decide(found, LivenessHistory(still_s=still_s, **history))
    return decisions[0] if decisions else None


def line_of(decision: LivenessDecision | None) -> str:
    return "" if decision is None else decision.message + (f" → {decision.fix}" if decision.fix else "")


OTHER_NAMES = {
    "other call": "deadlock", "idle in native code": "idle", "native, in a collective a moment before": "native",
}  # fmt: skip


def test_each_row_has_its_message_and_its_time() -> None:
    def check(rule: str) -> None:
        found, still_s, message = ROWS[rule]
        ended = frozenset({0}) if rule == "ended" else frozenset[int]()
        decision = decided(found, still_s, ended=ended)
        assert line_of(decision) == message
        assert decision
        assert decision.rule == OTHER_NAMES.get(rule, rule)
        assert decision.is_fault is message.startswith("!")
        if rule not in ("stopped", "blocked"):
            early = decided(found, 29 if still_s == 30 else 59 if still_s < 120 else 119, ended=ended)
            assert early is None, early

    assert failures_of(check, ROWS) == []


def test_only_what_is_certain_or_stuck_is_restarted() -> None:
    restarts = {rule for rule, (found, still_s, _) in ROWS.items() if (one := decided(found, still_s)) and one.restarts}
    assert restarts == {
        "deadlock", "other call", "network", "idle", "idle in native code", "sleeping", "all idle", "all sleeping",
        "stopped", "blocked",
    }  # fmt: skip


def test_healthy_runs_are_not_reported_however_long() -> None:
    """Nothing that moves is a pause, and nothing is known of ranks that neither wait nor idle."""

    def check(_name: str, found: Sequence[RankSigns], still_s: float) -> None:
        decision = decided(found, still_s)
        assert decision is None, line_of(decision)

    silent = [signs(rank) for rank in range(3)]
    server = [idle(rank, groups={}, in_group=False, optimizer_steps=0, listens=True) for rank in range(2)]
    cases = [
        ("all compute and print nothing for ten minutes", silent, 600.0),
        ("rank 0 prints, the others wait", [signs(0), waits(1), waits(2)], 0.8),
        ("an inference server without a request", server, 7200.0),
        ("a large tensor over a slow link", [waits(rank, io_bytes_s=80e3) for rank in range(2)], 300.0),
        ("CUDA ranks that enqueue far ahead and compute", [signs(rank, gpu=True) for rank in range(2)], 600.0),
        ("no torch: only the process is known", [RankSigns(rank=rank, cpu=0.9) for rank in range(2)], 600.0),
        ("nothing is known", [RankSigns(rank=rank) for rank in range(2)], 600.0),
        ("left-out ranks alone", [idle(rank, left_out=True) for rank in range(2)], 600.0),
    ]
    assert failures_of(check, cases) == []


def test_a_left_out_rank_neither_waits_nor_is_waited_for() -> None:
    found = [waits(0), idle(1), waits(2, exchange="left-out", left_out=True)]
    assert line_of(decided(found, 61)).endswith("; rank 0 is waiting for it")
    rest = [waits(0), waits(1), idle(2, exchange="left-out", left_out=True)]
    decision = decided([replace(one, world=2) for one in rest], 61)
    assert decision
    assert decision.rule == "network"


def test_a_wait_by_nccl_may_spin() -> None:
    spinning = [waits(rank, cpu=1.0, gpu=True) for rank in range(2)]
    decision = decided([spinning[0], replace(spinning[1], groups={"0": (157, 155)})], 30)
    assert decision
    assert decision.rule == "deadlock"


def test_disjoint_groups_in_one_collective_each_are_no_deadlock() -> None:
    """Two pairs of ranks, as with tensor parallelism."""
    pairs = [waits(0, groups={"1": (7, 6)}), waits(1, groups={"1": (7, 6)}), waits(2, groups={"2": (9, 8)})]
    decision = decided(pairs, 31)
    assert decision
    assert decision.rule == "network"


def test_the_limit_grows_with_the_longest_pause_of_the_generation() -> None:
    found, _, _ = ROWS["computing"]
    assert decided(found, 119, longest_pause_s=40) is None
    assert decided(found, 120, longest_pause_s=40)
    deadlock, _, _ = ROWS["deadlock"]
    assert decided(deadlock, 31, longest_pause_s=40)  # it can never continue


def test_a_status_of_a_moment_before_proves_nothing() -> None:
    """Rank 1 was stopped before its collective completed: its numbers and its line are old."""
    behind = waits(1, groups={"0": (155, 154)}, state="T", age_s=30.0, stood_s=25.0)
    assert decided([waits(0), behind], 30) is None
    blocked = idle(1, state="D", age_s=41.0, stood_s=35.0)
    assert decided([waits(0), blocked], 41) is None
    decision = decided([waits(0), replace(blocked, stood_s=40.0)], 46)
    assert decision
    assert decision.rule == "blocked"
    assert decided([waits(0, age_s=11.0), waits(1, groups={"0": (157, 155)})], 31) is None


def test_a_frozen_rank_uses_no_cpu_time() -> None:
    """`json.loads` of a large file holds the interpreter, and computes."""
    assert is_frozen(signs(0, age_s=61.0, stood_s=61.0, cpu=0.0), 60)
    assert is_frozen(signs(0, age_s=61.0, stood_s=61.0, cpu=0.5, state="T"), 60)  # a child computes
    assert not is_frozen(signs(0, age_s=61.0, stood_s=0.0, cpu=1.0), 60)
    assert not is_frozen(signs(0, age_s=61.0, stood_s=61.0, cpu=0.5), 60)
    assert not is_frozen(signs(0, age_s=None, stood_s=61.0, cpu=0.0, state="D"), 60)


# ── Exchange of gradients ─────────────────────────────────────────────────────────────────────────────────────────────


def test_ranks_that_exchange_no_gradients_are_reported_and_no_others() -> None:
    each = [alone(rank) for rank in range(3)]
    group = [signs(rank) for rank in range(3)]
    scalars = [signs(rank, largest=1, looked_at=30) for rank in range(3)]
    later = [signs(rank, largest=1, looked_at=1000) for rank in range(3)]
    apart = (
        "! each rank trains its own model: 127 optimizer steps, nothing exchanged (no process group) → wrap the model "
        "in DistributedDataParallel: orch docs own-scripts; if this is intended: --independent"
    )

    def check(_name: str, found: Sequence[RankSigns], so_far: dict[int, TrainingSoFar], message: str) -> None:
        decision = decided(found, 0.0, trained=so_far)
        assert line_of(decision).startswith(message) if message else decision is None, line_of(decision)
        assert decided(found, 0.0, trained=so_far, independent=True) is None

    cases = [
        ("no group", each, trained(127, 0), apart),
        ("for less than a minute", each, trained(127, 0, seconds=59), ""),
        ("in few steps", each, trained(49, 0), ""),
        ("by connections of its own", each, trained(127, 0, sent=64 * 127), ""),
        ("with Horovod", [replace(one, libraries=("horovod",)) for one in each], trained(127, 0), ""),
        ("one rank trains, the others act", each, {0: trained(127, 0)[0]}, ""),
        ("a group, and DiLoCo exchanges every 500 steps", group, trained(499, 0), ""),
        ("a group that is destroyed", [replace(one, joined=True) for one in each], trained(499, 0), ""),
        ("a group, and nothing for long", group, trained(1000, 0), "! each rank trains its own model: 1,000 optimizer"),
        (
            "metrics alone", scalars, trained(75, 75),
            "! the ranks exchange only scalars (75 collectives, at most 1 element): no gradients",
        ),
        ("metrics alone, seldom", scalars, trained(600, 6), ""),
        ("metrics alone, seldom, for long", later, trained(1200, 12), "! the ranks exchange only scalars (12 coll"),
        ("the tutorial's model", [replace(one, largest=21) for one in scalars], trained(75, 75), ""),
        ("a model's metrics", [replace(one, parameter=512) for one in scalars], trained(75, 75), "! the ranks"),
        ("a line through points", [replace(one, largest=2, parameter=1) for one in scalars], trained(75, 75), ""),
        ("pipeline parallelism by send and recv", scalars, trained(75, 75, sent=75 * 100_000), ""),
        ("DDP", [replace(one, largest=131_584) for one in scalars], trained(75, 75, sent=10**8), ""),
    ]  # fmt: skip
    assert failures_of(check, cases) == []


# ── Over time ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def played(watch: LivenessWatch, *moments: tuple[float, Sequence[RankSigns]]) -> dict[float, list[str]]:
    """Reports by time."""
    found = {}
    for now, of_ranks in moments:
        if reports := watch.look(of_ranks, now):
            found[now] = ["progress" if isinstance(one, ProgressAgain) else one.rule for one in reports]
    return found


def test_a_note_is_repeated_after_twice_the_time_and_taken_back_once() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    waiting = [waits(0), signs(1)]
    moments = [(second, waiting) for second in range(0, 400, 5)]
    assert played(watch, *moments) == {60: ["computing"], 120: ["computing"], 240: ["computing"]}
    (back,) = watch.look([waits(0, groups={"0": (157, 156)}), signs(1)], 400)
    assert back == ProgressAgain(seconds=400)
    assert watch.look([waits(0, groups={"0": (158, 157)}), signs(1)], 410) == ()


def test_notes_that_alternate_are_one_and_a_fault_is_reported_at_once() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    reads = idle(1, io_bytes_s=1e6)
    moments = [(second, [waits(0), signs(1) if second % 10 else reads]) for second in range(0, 100, 5)]
    assert list(played(watch, *moments, (100, [waits(0), idle(1)]), (110, [waits(0), idle(1)]))) == [60, 100]


def test_a_pause_that_ended_by_itself_makes_the_next_limit_longer() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    evaluates = [waits(0), signs(1)]
    step = [waits(0, optimizer_steps=91), signs(1, optimizer_steps=91)]
    assert played(watch, (0, evaluates), (50, evaluates), (50.1, step), (110.2, step), (201, step)) == {
        201: ["computing"]
    }
    assert watch.history.longest_pause_s == 50.1


def test_a_long_start_says_nothing_about_later_pauses() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    imports = [alone(rank, optimizer_steps=0) for rank in range(2)]
    watch.look(imports, 1)
    watch.look([waits(0), signs(1)], 500)
    assert [one.rule for one in watch.look([waits(0), signs(1)], 561) if isinstance(one, LivenessDecision)] == [
        "computing"
    ]


def test_models_apart_are_reported_once_and_in_the_last_line() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    moments = [(second, [alone(rank, optimizer_steps=second * 2) for rank in range(2)]) for second in range(0, 200, 10)]
    assert played(watch, *moments) == {70: ["apart"]}
    assert watch.summary(200).startswith("! each rank trains its own model: 360 optimizer steps, nothing exchanged")
    short = LivenessWatch(LivenessLimits(), 0)
    played(short, *moments[:5])
    assert short.summary(41).startswith("! each rank trains its own model: 60 optimizer steps")
    shortest = LivenessWatch(LivenessLimits(), 0)
    played(shortest, (1, [alone(rank, optimizer_steps=3) for rank in range(2)]))
    assert shortest.summary(2).startswith("! each rank trains its own model: 3 optimizer steps")
    shortest.look([alone(rank, optimizer_steps=3, groups={"0": (1, 1)}) for rank in range(2)], 2)
    assert shortest.summary(2) == "", "there was a process group, and what a few steps exchange says nothing"
    intended = LivenessWatch(LivenessLimits(), 0, independent=True)
    assert played(intended, *moments) == {}
    assert intended.summary(200) == ""


def test_a_run_without_any_training_says_so() -> None:
    def summary(*found: RankSigns) -> str:
        watch = LivenessWatch(LivenessLimits(), 0)
        watch.look(found, 5)
        return watch.summary(8.4)

    none = "done in 8 s; no training detected: no optimizer step, no process group"
    empty = [alone(rank, optimizer_steps=0) for rank in range(2)]
    assert summary(*empty) == none
    assert summary(empty[0], replace(empty[1], optimizer_steps=1)) == ""
    assert summary(empty[0], replace(empty[1], joined=True)) == "", "it was destroyed at the end"
    assert summary(*(signs(rank, optimizer_steps=0) for rank in range(2))) == ""  # DeepSpeed steps by itself
    assert summary(*(replace(one, age_s=None) for one in empty)) == ""  # no torch: nothing is known
    assert summary(replace(empty[0], world=1)) == ""


def test_words() -> None:
    assert position_line(1, "beta", line="train.py:88 in evaluate", step=1204, cpu=0.98) == (
        "rank 1 beta  train.py:88 evaluate  step 1,204  98 % CPU"
    )
    assert position_line(0, "alpha") == "rank 0 alpha  position unknown"
    assert (work_line(1204, 3.1234), work_line(7, None)) == ("1,204 optimizer steps · 3.12/s", "7 optimizer steps")
    assert together_line(1.0) == "together: 1.0 collectives per step"
    assert [ranks(numbers) for numbers in ([3], [2, 0], [4, 0, 2, 1])] == ["rank 3", "ranks 0, 2", "ranks 0-2, 4"]


def test_a_rank_that_is_named_twice_is_one() -> None:
    assert ranks([1, 1, 2]) == "ranks 1, 2"


def test_a_rate_that_rises_for_a_moment_is_no_progress() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    stuck = [waits(rank) for rank in range(3)]
    rates = {second: 20_000.0 * (second % 20) for second in range(0, 130, 10)}
    moments = [(second, [replace(one, io_bytes_s=rate) for one in stuck]) for second, rate in rates.items()]
    assert played(watch, *moments) == {40: ["network"], 120: ["network"]}


def test_a_rank_that_ended_while_others_of_its_node_work_is_named() -> None:
    watch = LivenessWatch(LivenessLimits(), 0)
    everyone, rest = [waits(0), waits(1), signs(2)], [waits(0), waits(1)]
    assert played(watch, (0, everyone), (5, rest), (40, rest)) == {40: ["ended"]}


def test_a_server_that_waits_for_requests_is_no_fault() -> None:
    decision = decided([idle(0, listens=True), waits(1), waits(2)], 70)
    assert decision is not None
    assert (decision.is_fault, decision.restarts) == (False, False)
    trains = decided([idle(0, listens=True), waits(1), waits(2)], 70, trained=trained(50, 50))
    assert trains is not None
    assert trains.is_fault


def test_enqueued_work_of_a_gpu_may_take_as_long_as_it_took_before() -> None:
    pair = [waits(0, gpu=True, groups={"0": (503, 499)}), waits(1, gpu=True, groups={"0": (501, 499)})]
    assert decided(pair, 31, longest_pause_s=45) is None
    late = decided(pair, 140, longest_pause_s=45)
    assert late is not None
    assert late.rule == "deadlock"
