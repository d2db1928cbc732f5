"""Prediction of a step: shares, the model of a step, the choice, and that it is quick."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.slow_lan.simulate import simulate
from contract.cost_model.choice import SyncChoice, choose_sync
from contract.cost_model.forecast import forecast
from contract.cost_model.measurement import CostModelError, Measurement, read_measurement
from contract.cost_model.node_sets import NEARLY, node_sets
from contract.cost_model.shares import split
from contract.cost_model.step_time import ALONE, BACKWARD, StepTime, exchanged, node_set, step_s
from tests.trainer.forecasts import GIGABIT, costs, measured, node
from tests.work import calls_of
from trainer.engine.reporting.forecast_text import summary, table

SPEEDS = st.lists(st.floats(1e-4, 10), min_size=1, max_size=8)
NODES = st.lists(
    st.tuples(st.floats(1e-3, 1), st.floats(0, 0.5), st.floats(1e6, 1.25e9)), min_size=1, max_size=5
)  # seconds per sample, per step; bytes per second


def machines(drawn: list[tuple[float, float, float]], samples: int) -> Measurement:
    nodes = [node(at, sample_s=each, step_s=fixed, link=link) for at, (each, fixed, link) in enumerate(drawn)]
    return measured(nodes, samples_per_step=samples)


def row_of(reported: SyncChoice, sync: str, nodes: int) -> StepTime:
    return next(row for row in reported.rows if row.sync == sync and len(row.nodes) == nodes)


# ── shares ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(SPEEDS, st.integers(0, 3000))
def test_shares_sum_up_and_all_finish_within_one_sample(sample_s: list[float], more: int) -> None:
    samples = len(sample_s) + more
    shares = split(samples, sample_s)
    assert sum(shares) == samples
    assert min(shares) >= 1
    last = max(share * each for share, each in zip(shares, sample_s, strict=True))
    at = max(range(len(shares)), key=lambda rank: shares[rank] * sample_s[rank])
    if shares[at] > 1:  # else one sample is what it takes
        for share, each in zip(shares, sample_s, strict=True):
            assert (share + 1) * each >= last * (1 - 1e-9)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 2)), min_size=1, max_size=3), st.integers(0, 6))
def test_no_other_shares_are_done_earlier(nodes: list[tuple[float, float]], more: int) -> None:
    sample_s, fixed = [each for each, _ in nodes], [other for _, other in nodes]
    samples = len(nodes) + more

    def done(shares: tuple[int, ...]) -> float:
        return max(share * each + other for share, each, other in zip(shares, sample_s, fixed, strict=True))

    every = (one for one in itertools.product(range(1, samples + 1), repeat=len(nodes)) if sum(one) == samples)
    assert done(split(samples, sample_s, fixed)) <= min(map(done, every)) * (1 + 1e-9)


def test_speeds_of_1_to_4_to_30_get_shares_like_them() -> None:
    assert split(350, [0.3, 0.075, 0.01]) == (10, 40, 300)


def test_fewer_samples_than_nodes_are_refused() -> None:
    with pytest.raises(CostModelError, match="a step of 2 samples cannot be shared by 3 ranks: give a larger --global"):
        split(2, [1, 1, 1])


# ── a step ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_of_ddp_on_gigabit_takes_what_the_wire_takes() -> None:
    """GPT-2's gradients, five nodes: 2 × 4/5 × 498 MB = 796 MB at 941 Mbit/s, 6.77 s."""
    choice = choose_sync(measured([node(rank) for rank in range(5)], samples_per_step=10), sync="fp32")
    assert choice.chosen.sent_bytes == pytest.approx(796.4e6, rel=1e-3)
    assert choice.chosen.exchange_s == pytest.approx(6.77, rel=0.01)
    assert choice.chosen.compute_s == pytest.approx(2 * 0.0215)


def test_a_way_of_sending_reaches_its_share_of_the_link() -> None:
    nodes = [node(rank) for rank in range(2)]
    known = measured(nodes, samples_per_step=2)
    half = replace(costs()[0], efficiency=0.5, collectives=0)
    assert step_s(known, node_set(nodes, 2), half) == pytest.approx(
        0.0215 + known.latency_s + 2 * 4 * known.parameters / GIGABIT
    )


def test_an_exchange_hides_behind_the_last_micro_batch_alone() -> None:
    fp32 = replace(costs()[0], overlap=1.0, collectives=0)
    nodes = [replace(node(rank, sample_s=1.0), micro_batch=4) for rank in range(2)]
    known = measured(nodes, samples_per_step=64)
    wire = 4 * known.parameters / nodes[0].link
    hidden = 4 * BACKWARD
    assert step_s(known, node_set(nodes, 64), fp32) == pytest.approx(32 + known.latency_s + wire - hidden)
    quick = replace(known, parameters=known.parameters // 10)
    assert step_s(quick, node_set(nodes, 64), fp32) == pytest.approx(32 + known.latency_s)
    # What the last bucket holds is ready when the pass is over, however long it was.
    late = replace(fp32, overlap=0.7)
    assert step_s(quick, node_set(nodes, 64), late) == pytest.approx(32 + known.latency_s + 0.3 * wire / 10)


def test_a_node_that_is_done_late_leaves_less_time_to_hide_in() -> None:
    """Equal shares: the exchange can begin when the slow one is in its backward pass, not before."""
    fast, slow = replace(node(0, sample_s=0.1), micro_batch=8), replace(node(1, sample_s=1.0), micro_batch=1)
    together = node_set([fast, slow], 16, equal=True)
    assert together.shares == (8, 8)
    assert together.window_s == pytest.approx(BACKWARD * 1.0)


def test_local_steps_pay_for_an_exchange_once_in_so_many() -> None:
    known = measured([node(rank) for rank in range(5)], samples_per_step=10)
    rows = {row.sync: row for row in choose_sync(known, unproven=True).rows if len(row.nodes) == 5}
    assert rows["diloco"].exchange_s == pytest.approx(rows["fp32"].exchange_s / 50, rel=0.01)
    assert rows["diloco"].sent_bytes == pytest.approx(rows["fp32"].sent_bytes / 50)


# ── the choice ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(NODES, st.integers(8, 4000), st.booleans())
@settings(max_examples=200)
def test_auto_is_never_below_the_best_single_node(
    drawn: list[tuple[float, float, float]], samples: int, unproven: bool
) -> None:
    known = machines(drawn, samples)
    choice = choose_sync(known, unproven=unproven)
    alone = min(samples * each + fixed for each, fixed, _ in drawn)
    assert choice.chosen.step_s <= alone * (1 + 1e-9)
    assert choice.chosen.speedup >= 1 - 1e-9
    assert choice.chosen in choice.rows
    assert unproven or choice.chosen.proven
    assert {out.rank for out in choice.left_out} | set(choice.chosen.ranks) == set(range(len(drawn)))
    assert sum(choice.chosen.shares) == samples


@given(NODES.filter(lambda drawn: len(drawn) > 1), st.integers(8, 4000), st.floats(1, 100))
def test_faster_links_never_slow_a_rung_down(
    drawn: list[tuple[float, float, float]], samples: int, factor: float
) -> None:
    slow, fast = machines(drawn, samples), machines([(a, b, link * factor) for a, b, link in drawn], samples)
    for sync in ("fp32", "int4", "diloco"):
        before, after = (choose_sync(known, sync=sync).chosen for known in (slow, fast))
        assert after.step_s <= before.step_s * (1 + 1e-9)
        served = [max(row.per_s for row in choose_sync(known).rows if row.sync == sync) for known in (slow, fast)]
        assert served[1] >= served[0] * NEARLY * (1 - 1e-9)


def test_each_rung_has_its_place() -> None:
    """The gentlest that comes within 5 % of the fastest, as the link gets slower."""
    chosen = []
    for mbit in (100_000, 25_000, 10_000, 1_000, 300, 10):
        nodes = [node(rank, link=mbit * 1e6 / 8) for rank in range(5)]
        choice = choose_sync(measured(nodes, samples_per_step=400))
        chosen.append((choice.chosen.sync, len(choice.chosen.nodes)))
    assert chosen == [("fp32", 5), ("fp16", 5), ("int8", 5), ("int4", 5), ("int4", 5), ("alone", 1)]


def test_a_rung_whose_loss_is_not_known_is_taken_only_on_request() -> None:
    known = measured([node(rank) for rank in range(5)], samples_per_step=10)
    assert choose_sync(known).chosen.sync == ALONE
    assert choose_sync(known, unproven=True).chosen.sync == "diloco"


def test_a_requested_rung_is_taken_on_all_nodes() -> None:
    choice = choose_sync(measured([node(rank) for rank in range(5)], samples_per_step=10), sync="int4")
    assert (choice.chosen.sync, len(choice.chosen.nodes), choice.left_out) == ("int4", 5, ())
    assert choice.chosen.speedup < 1


def test_an_unknown_rung_is_refused() -> None:
    with pytest.raises(CostModelError, match="--sync int3: measured were fp32, fp16, int8, int4, diloco; "):
        choose_sync(measured([node(0), node(1)], samples_per_step=10), sync="int3")


def test_a_node_on_a_slow_link_is_left_out_where_that_is_faster() -> None:
    nodes = [node(rank, link=GIGABIT if rank != 1 else GIGABIT / 10) for rank in range(5)]
    choice = choose_sync(measured(nodes, samples_per_step=2000))
    assert choice.chosen.nodes == ("alpha", "gamma", "delta", "epsilon")
    assert choice.chosen.ranks == (0, 2, 3, 4)
    small = replace(choice.measured, parameters=100_000)
    assert len(choose_sync(small).chosen.nodes) == 5


def test_one_node_has_nothing_to_choose() -> None:
    choice = choose_sync(measured([node(0)], samples_per_step=8), sync="int4")
    assert (choice.chosen.sync, choice.chosen.speedup, choice.warnings, len(choice.rows)) == (ALONE, 1.0, (), 1)


def test_equal_shares_wait_for_the_slowest() -> None:
    known = measured([node(0, sample_s=0.01), node(1, sample_s=0.3)], samples_per_step=310, parameters=1000)
    fair, equal = choose_sync(known, sync="fp32").chosen, choose_sync(known, sync="fp32", equal=True).chosen
    assert (fair.shares, equal.shares) == ((300, 10), (155, 155))
    assert fair.step_s < equal.step_s / 10


def test_64_nodes_take_little_work() -> None:
    nodes = [node(rank, sample_s=0.01 + rank * 0.004, link=1e6 * 1.1**rank) for rank in range(64)]
    known = measured(nodes, samples_per_step=4096)
    assert calls_of(lambda: choose_sync(known)) < 400_000  # 0.02 s on a 2-core machine


def test_it_needs_nothing_but_python() -> None:
    program = "import contract.cost_model.capacity, contract.cost_model.forecast"
    subprocess.run((sys.executable, "-S", "-c", program), check=True)


# ── simulated and told ──────────────────────────────────────────────────────────────────────────────────────────────


def test_more_nodes_like_the_average_one() -> None:
    known = measured([node(0, sample_s=0.01), node(1, sample_s=0.03)], samples_per_step=6400)
    simulated = simulate(known, (2, 4, 64), (GIGABIT, GIGABIT / 10))
    assert len(simulated) == 3 * 2 * len(known.costs)
    two = next(one for one in simulated if one.world_size == 2 and one.row.sync == "fp32")
    assert two.row.compute_s == pytest.approx(3200 * 0.015)  # 100 and 33 samples a second: 67 on average
    speeds = {(one.world_size, one.link): one.row.speedup for one in simulated if one.row.sync == "int4"}
    assert speeds[4, GIGABIT] > speeds[2, GIGABIT] > speeds[2, GIGABIT / 10]
    assert speeds[64, GIGABIT] < 64


def test_the_event_is_json_and_marks_one_row() -> None:
    choice = choose_sync(measured([node(rank) for rank in range(3)], samples_per_step=600))
    fields = json.loads(json.dumps(asdict(forecast(choice))))
    assert sorted(fields) == [
        "best_node", "latency_ms", "left_out", "link_mbit_s", "rows", "sync", "unit", "warnings",
    ]  # fmt: skip
    (chosen,) = [row for row in fields["rows"] if row["chosen"]]
    assert chosen["sync"] == fields["sync"] == choice.chosen.sync
    assert chosen["nodes"] == ["alpha", "beta", "gamma"]
    assert fields["link_mbit_s"]["beta"] == 941.0


def test_the_choice_in_one_line() -> None:
    nodes = [node(rank) for rank in range(5)]
    assert summary(choose_sync(measured(nodes, samples_per_step=10))) == "forecast: alpha alone, 6.0k tokens/s"
    choice = summary(choose_sync(measured(nodes, samples_per_step=400)))
    assert choice == "forecast: int4 on alpha, beta, gamma, delta, epsilon, 19.5k tokens/s, 3.3 x alpha alone"


def test_the_table_is_aligned_and_marks_the_choice() -> None:
    choice = choose_sync(measured([node(rank) for rank in range(5)], samples_per_step=400))
    lines = table(choice)
    assert lines[0].split() == ["sync", "nodes", "step", "compute", "exchange", "tokens/s", "x", "alpha"]
    assert len({len(line) for line in lines[: len(choice.rows) + 1]}) == 1
    assert [line.split()[1:4] for line in lines if line.startswith("▶")] == [["int4", "all", "5"]]
    assert any(line.startswith("   diloco ?") for line in lines)
    assert "links: alpha 941 Mbit/s" in "\n".join(lines)


def test_ranks_of_a_node_send_once_for_all_and_share_its_link() -> None:
    ranks = [replace(node(rank), host=2 * (rank // 2), inside=2e9) for rank in range(4)]
    known = measured(ranks, samples_per_step=8)
    fp32, int4 = known.cost("fp32"), known.cost("int4")
    together = node_set(ranks, 8)
    assert exchanged(known, together, fp32) == 4 * known.parameters  # 2 (k-1)/k copies for two nodes, not for four
    one_node = node_set(ranks[:2], 8)
    assert exchanged(known, one_node, fp32) == 4 * known.parameters
    assert one_node.link == 2e9
    # A reduce-scatter and an all-gather within each node: twice half a copy for two ranks.
    within = 4 * known.parameters / 2e9
    wire = exchanged(known, together, int4) / GIGABIT + int4.codec_s_per_parameter * known.parameters
    latency = (1 + int4.collectives) * known.latency_s
    assert step_s(known, together, int4) == pytest.approx(together.compute_s + wire + within + latency)
    whole = replace(int4, whole=True)  # one rank for both: each sends it all it has
    assert step_s(known, together, whole) == pytest.approx(step_s(known, together, int4) + within)


def test_unequal_nodes_have_as_many_owners_as_the_smallest_has_ranks() -> None:
    ranks = [replace(node(rank), host=0 if rank < 3 else -1, inside=1e9 * (rank < 3)) for rank in range(4)]
    together = node_set(ranks, 8)
    assert together.senders == 2
    assert together.within_s(1e9, whole=False) == pytest.approx(4.0)  # two others send the owner 1 s each, and back


def test_measurements_of_earlier_versions_have_a_rank_on_each_node() -> None:
    data = json.loads(json.dumps(asdict(measured([node(0), node(1)], samples_per_step=8))))
    for one in data["nodes"]:
        del one["host"], one["inside"]
    assert node_set(read_measurement(data).nodes, 8).senders == 2


def test_a_thousand_nodes_have_fewer_sets_than_nodes() -> None:
    sizes = [
        len(one.members) for one in node_sets(measured([node(rank) for rank in range(1000)], samples_per_step=2000))
    ]
    assert sizes[0] == 1000, "all of them"
    assert sizes[-63:] == list(range(64, 1, -1)), "each size that a LAN may have"
    assert all(larger / smaller < 1.04 for larger, smaller in pairwise(sizes[:-62]))
    assert len(sizes) < 200
