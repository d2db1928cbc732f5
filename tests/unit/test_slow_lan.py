"""The rig of the slow LAN: what is computed, read and printed; and, where this machine can, two nodes for real."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.slow_lan import network, quality, rates, transport
from benchmarks.slow_lan.processors import Processors
from benchmarks.slow_lan.rig import Event, Node, Outcome, Rig, RunFailed, cannot_run
from benchmarks.slow_lan.rounds import Entry, in_turns
from benchmarks.slow_lan.speed import Point, links, section
from benchmarks.slow_lan.train import Task, Trained, Way, command, read, ways

# ── Rates ─────────────────────────────────────────────────────────────────────────────────────────


def test_rates_are_read_and_written() -> None:
    assert [rates.bits(text) for text in ("100mbit", "2.5Gbit", "64kbit")] == [1e8, 2.5e9, 64e3]
    assert [rates.written(rate) for rate in (2.5e9, 41.3e6, 900.0)] == ["2.5 Gbit/s", "41.3 Mbit/s", "0.9 kbit/s"]


@pytest.mark.parametrize("text", ["", "fast", "100", "-1mbit", "0mbit", "1mbit/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        rates.bits(text)


def test_a_small_models_exchange_weighs_as_much_as_gpt2s() -> None:
    small, step_s = 3.7e6, 0.32
    rate = rates.equivalent(1e9, small, step_s)
    assert small / rate / step_s == pytest.approx(rates.GPT2_BYTES / 1e9 / rates.GPT2_STEP_S)


@pytest.mark.parametrize("bits_per_s", [1e6, 7.4e6, 1e8, 1e9, 1e10])
def test_a_burst_is_small_and_a_packet_fits_in_it(bits_per_s: float) -> None:
    for switch in (False, True):
        shape = rates.shape(bits_per_s, switch=switch)
        assert shape.packet_bytes < shape.burst_bytes < shape.limit_bytes
        assert shape.packet_bytes >= 1514
        assert shape.burst_bytes <= max(bits_per_s / 8 * 0.002, 6000)


@pytest.mark.parametrize("cores", [0.02, 0.0286, 0.36, 0.9, 2.0])
def test_a_quota_is_the_share_it_stands_for(cores: float) -> None:
    quota = rates.quota(cores)
    assert quota.quota_us / quota.period_us == pytest.approx(cores, rel=0.001)
    assert quota.quota_us >= 1000
    assert quota.period_us <= 100_000


def test_no_node_is_faster_than_one_thread() -> None:
    assert rates.parts([1, 4, 30], 0.7) == pytest.approx((0.02, 0.08, 0.6))
    slow, middle, fast = rates.parts([1, 4, 30], 1.9)
    assert fast == pytest.approx(0.95)
    assert (middle / slow, fast / slow) == (pytest.approx(4), pytest.approx(30))
    with pytest.raises(ValueError, match="above 0"):
        rates.parts([1, 0], 1.0)


# ── What is left behind, and counted ──────────────────────────────────────────────────────────────


def test_only_what_a_gone_rig_has_left_is_stale() -> None:
    gone, running = (lambda _: False), (lambda _: True)
    assert network.is_stale("slowlan-123-bridge", gone)
    assert network.is_stale("slowlan-123", gone)
    assert not network.is_stale("slowlan-123-0", running)
    assert not network.is_stale("someone-elses-123-0", gone)


def test_counters_are_those_of_the_nodes_link() -> None:
    text = "Inter-|   Receive\n    lo:  9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  lan0: 700 5 0 0 0 0 0 0 8000 6 0 0 0 0 0 0\n"
    assert network.sent_and_received(text) == (8000, 700)
    with pytest.raises(ValueError, match="lan0"):
        network.sent_and_received("lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n")


@pytest.mark.parametrize(
    ("version", "entry", "message"),
    [(1, "cpu/{rig}/node0/cpu.cfs_quota_us", "10000"), (2, "{rig}/node0/cpu.max", "10000 20000")],
)
def test_quotas_of_both_versions_of_cgroups(tmp_path: Path, version: int, entry: str, message: str) -> None:
    if version == 1:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    processors = Processors([0.5], root=tmp_path)
    processors.open()
    processors.limit(0)
    assert (tmp_path / entry.format(rig=f"slowlan-{os.getpid()}")).read_text() == message
    processors.free(0)
    assert (tmp_path / entry.format(rig=f"slowlan-{os.getpid()}")).read_text() in ("-1", "max")


# ── What is trained, and read of it ───────────────────────────────────────────────────────────────

TASK = Task(data_dir=Path("Data"), samples=40, micro_batch=8, steps=7, skip=2)


def step(number: int, ended_at: float, sent: tuple[int, ...], t: float | None = None) -> Event:
    t = ended_at if t is None else t
    return Event(fields={"event": "step", "step": number, "t": t, "ended_at": ended_at}, at=t, sent=sent)


def test_ways_have_options_and_an_interval() -> None:
    plain, local = ways(["int4", "local:--sync-every 5 --sync-codec int4"])
    assert (plain.options, plain.every) == (("--sync", "int4"), 1)
    assert (local.options, local.every) == (("--sync", "local", "--sync-every", "5", "--sync-codec", "int4"), 5)


def test_a_peer_gets_the_same_options_as_our_trainer() -> None:
    ours = command(Way(name="fp32", options=("--sync", "fp32")), TASK, Path("run"), 1)
    peer = command(Way(name="ddp", options=("--peer", "ddp"), peer=True), TASK, Path("run"), 1)
    begin = ours.index("--preset=lab")
    assert ours[begin:-2] == peer[peer.index("--preset=lab") : -2]
    assert (ours[-2:], peer[-2:]) == (("--sync", "fp32"), ("--peer", "ddp"))


def test_steps_are_timed_over_whole_rounds_of_exchanges() -> None:
    times = [0.0, 9.0, 10.0, 11.0, 14.0, 15.0, 18.0]  # every second step exchanges, and takes three times as long
    outcome = Outcome(rank=0, events=[step(n, t, (n * 10, n * 20)) for n, t in enumerate(times, 1)])
    found = read([outcome], Way(name="local", every=2), TASK, 5)
    assert found.step_s == 2.0
    assert found.tokens_per_s == 40 * 64 / 2.0
    assert found.sent_bytes == 20
    assert (found.loss, found.forecast_s) == (None, None)


@pytest.mark.parametrize("optimizer_s", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("late", [False, True])
def test_steps_of_a_second_take_a_second_whenever_they_are_reported(late: bool, optimizer_s: float) -> None:
    """Each step sends 10 bytes, before its optimizer's step; a late report comes between the two of the next step."""
    reports = [number + 1 - optimizer_s if late and number < 9 else number + 0.01 for number in range(1, 10)]
    sent = [10 * (number + 1 if late and number < 9 else number) for number in range(1, 10)]
    outcome = Outcome(rank=0, events=[step(n, n, (sent[n - 1],), reports[n - 1]) for n in range(1, 10)])
    found = read([outcome], Way(name="int8"), TASK, 5)
    assert (found.step_s, found.sent_bytes, found.seconds) == (1.0, 10, 8.0)


def test_the_forecast_and_the_loss_are_read() -> None:
    rows = [{"sync": "fp32", "step_s": 3.0, "chosen": False}, {"sync": "int4", "step_s": 1.5, "chosen": True}]
    forecast = Event(fields={"event": "forecast", "sync": "int4", "rows": rows}, at=0.0, sent=())
    evaluation = Event(fields={"event": "evaluation", "loss": 2.5}, at=9.0, sent=())
    outcome = Outcome(rank=0, events=[forecast, *(step(n, float(n), (0,)) for n in range(1, 8)), evaluation])
    found = read([outcome], Way(name="auto"), TASK, 5)
    assert (found.forecast_s, found.chosen, found.loss) == (1.5, "int4", 2.5)


def test_too_few_steps_are_refused() -> None:
    outcome = Outcome(rank=0, events=[step(n, float(n), (0,)) for n in range(1, 8)])
    with pytest.raises(ValueError, match="too few"):
        read([outcome], Way(name="local", every=20), TASK, 5)


# ── Rounds and tables ─────────────────────────────────────────────────────────────────────────────


def trained(step_s: float = 1.0, loss: float | None = None, sent: float = 1e6) -> Trained:
    return Trained(step_s=step_s, tokens_per_s=1000 / step_s, sent_bytes=sent, loss=loss, seconds=9.0)


def test_contestants_take_turns_and_one_that_failed_is_not_asked_again() -> None:
    asked = []

    def run(way: Way, number: int) -> Trained:
        asked.append((way.name, number))
        if way.name == "b":
            raise RunFailed("node 1 failed (1): no room")
        return trained()

    a, b = in_turns([Way(name="a"), Way(name="b")], 2, run)
    assert asked == [("a", 0), ("b", 0), ("a", 1)]
    assert (len(a.runs), b.problem) == (2, "node 1 failed (1): no room")


def test_speed_is_relative_to_one_node_and_bytes_to_fp32() -> None:
    entries = [
        Entry(way=Way(name="fp32"), runs=[trained(2.0, sent=8e6)]),
        Entry(way=Way(name="int4"), runs=[trained(0.5, sent=1e6)]),
        Entry(way=Way(name="topk"), problem="node 0 failed | again"),
    ]
    point = Point(
        nodes=5,
        named=(1e9, 1e9, 1e9, 1e9, 1e8),
        actual=(5e8, 5e8, 5e8, 5e8, 5e7),
        share_s=0.4,
        alone_tokens_per_s=500.0,
        resting_tokens_per_s=550.0,
        entries=entries,
    )
    lines = section(point)
    assert "## 5 nodes at 4 of 1 Gbit/s, 1 of 100 Mbit/s" in lines
    assert "| int4 | 0.500 s | 2,000 | **4.00x** | 3.64x | 1 MB | 1/8 | 32% |  |  |" in lines
    assert any("node 0 failed \\| again" in line for line in lines)


def test_a_rate_is_for_all_and_those_after_it_for_the_last_nodes() -> None:
    assert links("1gbit", 3) == (1e9, 1e9, 1e9)
    assert links("1gbit,100mbit,10mbit", 3) == (1e9, 1e8, 1e7)
    with pytest.raises(ValueError, match="more rates than 2 nodes"):
        links("1gbit,100mbit,10mbit", 2)


def test_losses_are_compared_seed_by_seed() -> None:
    fp32 = Entry(way=Way(name="fp32"), runs=[trained(loss=2.0), trained(loss=4.0)])
    int4 = Entry(way=Way(name="int4"), runs=[trained(loss=2.02), trained(loss=3.96)])
    assert quality.differences(int4.runs, fp32.runs) == pytest.approx([0.01, -0.01])
    assert "+0.00% (-1.00%–+1.00%)" in "\n".join(quality.table([fp32, int4]))


def test_shares_of_a_link_count_what_had_to_be_sent() -> None:
    case = transport.Case(method="all_reduce", bucket_bytes=4_000_000, buckets=2, pipelined=False, streams=1)
    assert transport.least_bytes(case, 5) == 12.8e6
    seconds = 12.8e6 * 8 / (1e9 * rates.TCP_SHARE)
    timing = transport.Timing(case=case, seconds=seconds, cpu_s=0.01, sent_bytes=12_900_000)
    assert transport.share(timing, 5, 1e9) == pytest.approx(1.0)
    text = "\n".join(transport.section(1e9, 5, 9.4e8, [timing]))
    assert "| all_reduce | 100% (9%) | 1.01x |" in text


def test_cases_fill_the_link_and_leave_out_what_takes_minutes() -> None:
    given = argparse.Namespace(sizes=[1, 64], methods=["all_reduce"], streams=[1, 4], volume_s=1.0)
    cases = transport.cases_for(given, 1e8)
    assert {(case.bucket_bytes, case.pipelined, case.streams) for case in cases} == {
        (1_000_000, False, 1), (64_000_000, False, 1), (1_000_000, True, 1), (1_000_000, True, 4),
    }  # fmt: skip
    assert all(case.buckets >= 2 * case.streams for case in cases if case.pipelined)


# ── For real ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(bool(cannot_run()), reason=cannot_run() or "can")
def test_two_nodes_whose_link_is_as_slow_as_configured() -> None:
    rate = 40e6
    with ExitStack() as stack:
        try:
            rig = stack.enter_context(Rig([Node(cores=0.5, bits_per_s=rate)] * 2))
        except PermissionError as problem:  # root of a container, who may not make what a rig is made of
            pytest.skip(f"no rig here: {problem}")
        command_ = (sys.executable, "-m", "benchmarks.slow_lan.tcp_rank", "1.5")
        first, second = rig.run([command_, command_], timeout_s=60)
        reached = first.named("tcp")[0].fields["bits_per_s"]
        assert reached == pytest.approx(rate * rates.TCP_SHARE, rel=0.15)
        assert second.sent_bytes > reached / 8
        assert (first.code, second.code) == (0, 0)
        failing = (sys.executable, "-c", "import sys; sys.exit('no room')")
        waiting = (sys.executable, "-c", "import time; time.sleep(60)")
        with pytest.raises(RunFailed, match=r"node 1 failed \(1\): .*no room"):
            rig.run([waiting, failing], timeout_s=60)
    assert not [name for name in Path("/var/run/netns").iterdir() if str(os.getpid()) in name.name]
