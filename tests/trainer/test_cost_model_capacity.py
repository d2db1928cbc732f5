"""The plan before a launch: how many nodes, which, under what rung, and what a larger step gives."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.cost_model.capacity import ENOUGH, MULTIPLES, CapacityPlan, Query, plan_capacity
from contract.cost_model.measurement import CostModelError, Measurement, read_measurement
from contract.cost_model.shares import micro_batches
from contract.cost_model.step_time import ALONE
from tests.trainer.forecasts import GIGABIT, costs, measured, node

FAST = 100 * GIGABIT


def three(samples: int = 96, **third: float) -> Measurement:
    """Two alike, and a third one that may differ, on fast links."""
    nodes = [node(0, link=FAST), node(1, link=FAST), node(2, **{"link": FAST, **third})]
    return measured(nodes, samples_per_step=samples, parameters=1_000_000)


def member(found: CapacityPlan, name: str) -> Any:
    return next(each for each in found.members if each.node == name)


def test_every_number_of_nodes_and_every_rung() -> None:
    found = plan_capacity(three(), Query())
    assert [len(row.nodes) for row in found.by_size] == [1, 2, 3]
    assert {(len(row.nodes), row.sync) for row in found.rows} == {(k, c.sync) for k in (2, 3) for c in costs()}
    assert found.chosen.nodes == ("alpha", "beta", "gamma")
    assert [row.step_s for row in found.by_size] == sorted((row.step_s for row in found.by_size), reverse=True)
    for row in found.by_size:
        assert row.compute_s + row.exchange_s == pytest.approx(row.step_s)
        assert row.proven


def test_a_slow_link_hurts_and_a_slow_computer_makes_no_difference() -> None:
    slow_link = plan_capacity(three(link=GIGABIT / 1000), Query())
    assert slow_link.chosen.nodes == ("alpha", "beta")
    gamma = member(slow_link, "gamma")
    assert (gamma.effect, gamma.taken, gamma.share) == ("hurts", False, 0)
    assert gamma.with_s > 2 * gamma.without_s
    assert gamma.without_s == pytest.approx(slow_link.chosen.step_s, rel=0.05)
    assert member(slow_link, "alpha").effect == "helps"
    assert member(plan_capacity(three(sample_s=0.9), Query()), "gamma").effect == "makes no difference"


def test_the_last_node_of_all_helps() -> None:
    single = measured([node(0)], samples_per_step=4)
    (alpha,) = plan_capacity(single, Query()).members
    assert (alpha.effect, alpha.without_s, alpha.share) == ("helps", 0.0, 4)


def test_where_one_trains_alone_the_others_are_judged_against_it() -> None:
    slow = measured([node(0, link=1e4), node(1, link=1e4, sample_s=0.03)], samples_per_step=2)
    found = plan_capacity(slow, Query())
    assert (found.chosen.sync, found.chosen.nodes) == (ALONE, ("alpha",))
    assert (member(found, "alpha").effect, member(found, "beta").effect) == ("helps", "hurts")
    assert member(found, "alpha").without_s == pytest.approx(0.06)


def test_unequal_nodes_finish_together_by_their_shares_and_micro_batches() -> None:
    nodes = [replace(node(0, sample_s=0.01, link=FAST), micro_batch=8), replace(node(1, sample_s=0.03, link=FAST),
             micro_batch=4)]  # fmt: skip
    found = plan_capacity(measured(nodes, samples_per_step=40, parameters=1000), Query())
    reported = [(each.share, each.micro_batch, each.passes) for each in found.members]
    assert reported == [(30, 8, 4), (10, 4, 3)]
    assert pytest.approx(10 * 0.03) == 30 * 0.01


@given(st.integers(1, 3000), st.integers(1, 300))
def test_micro_batches_cover_the_share_in_as_few_passes_as_can_be(share: int, most: int) -> None:
    size, passes = micro_batches(share, most)
    assert (passes - 1) * size < share <= passes * size
    assert size <= most
    assert passes * most >= share > (passes - 1) * most


def test_no_share_needs_no_pass() -> None:
    assert micro_batches(0, 4) == (0, 0)


def test_a_larger_step_hides_the_exchange_and_says_when_it_is_enough() -> None:
    found = plan_capacity(measured([node(rank) for rank in range(3)], samples_per_step=12), Query())
    speeds = [each.row.per_s for each in found.larger]
    assert [each.multiple for each in found.larger] == list(MULTIPLES)
    assert speeds == sorted(speeds)
    assert found.larger[-1].efficiency > found.larger[0].efficiency
    enough = next(each for each in found.larger if each.samples_per_step == found.enough)
    assert enough.row.per_s >= ENOUGH * speeds[-1]
    assert all(e.row.per_s < ENOUGH * speeds[-1] for e in found.larger if e.samples_per_step < found.enough)


def test_the_rung_asked_for_is_the_one_planned_with() -> None:
    found = plan_capacity(three(), Query(sync="int4"))
    assert {row.sync for row in found.by_size} == {ALONE, "int4"}
    assert found.chosen.sync == "int4"
    assert {each.row.sync for each in found.larger} <= {ALONE, "int4"}
    unknown = pytest.raises(CostModelError, match="--sync int7")
    with unknown:
        plan_capacity(three(), Query(sync="int7"))


def test_among_fewer_nodes_and_with_another_step() -> None:
    found = plan_capacity(three(), Query(among=("beta", "gamma"), samples_per_step=10))
    assert (found.samples_per_step, found.chosen.nodes) == (10, ("beta", "gamma"))
    assert sum(found.chosen.shares) == 10
    with pytest.raises(CostModelError, match="not measured: delta"):
        plan_capacity(three(), Query(among=("beta", "delta")))


def test_a_node_of_two_ranks_is_chosen_by_its_name() -> None:
    two = [replace(node(rank, link=FAST), node=f"alpha.{rank}") for rank in range(2)]
    both = measured([*two, node(2, link=FAST)], samples_per_step=30, parameters=1000)
    assert plan_capacity(both, Query(among=("alpha",))).chosen.nodes == ("alpha.0", "alpha.1")


def test_a_node_may_be_called_as_a_rank_of_another_would_be() -> None:
    dotted = [replace(node(rank, link=FAST), node=f"pc.{rank}") for rank in range(3)]
    both = measured(dotted, samples_per_step=30, parameters=1000)
    assert plan_capacity(both, Query(among=("pc.1", "pc.2"))).chosen.nodes == ("pc.1", "pc.2")
    with pytest.raises(CostModelError, match="not measured: pd"):
        plan_capacity(both, Query(among=("pc.1", "pd")))


# ── As JSON ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_measurement_comes_back_as_it_was() -> None:
    whole = replace(three(), links=((0.0, 1.5), (2.5, 0.0)))
    assert read_measurement(json.loads(json.dumps(asdict(whole)))) == whole
    newer = {**asdict(whole), "weather": "rain", "around": []}
    assert read_measurement(newer) == whole


@pytest.mark.parametrize(
    "broken", [{}, {"nodes": []}, {"nodes": [{"node": "a"}]}, {"costs": []}, {"samples_per_step": 0}, {"links": [3]}]
)
def test_what_is_no_measurement_is_refused(broken: dict[str, Any]) -> None:
    values = {} if not broken else {**asdict(three()), **broken}
    with pytest.raises(CostModelError, match="not a measurement"):
        read_measurement(values)


@given(st.data())
def test_no_measurement_of_a_node_raises_anything_else(data: st.DataObject) -> None:
    """Values of a node are data: they are refused, or a plan can be made from them."""
    hostile = st.one_of(
        st.none(), st.booleans(), st.text(max_size=3), st.lists(st.integers(), max_size=3), st.integers(-2, 2),
        st.sampled_from((1e300, 1e18, 1e-300, 5e-324, -1.0, 10**30, float("inf"), float("nan"))),
    )  # fmt: skip
    values = json.loads(json.dumps(asdict(three())))
    part = data.draw(st.sampled_from((values, values["nodes"][0], values["costs"][0])))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(hostile)
    with suppress(CostModelError):
        plan_capacity(read_measurement(values), Query())
