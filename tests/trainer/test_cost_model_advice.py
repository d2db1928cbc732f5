"""Text of a forecast for people: the warnings, the nodes left out, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.cost_model.advice import larger_steps
from contract.cost_model.choice import choose_sync
from contract.cost_model.units import megabytes, names, seconds, times
from tests.trainer.forecasts import GIGABIT, cost, measured, node
from trainer.engine.reporting.forecast_text import table

FIVE = [node(rank) for rank in range(5)]


def test_the_seeds_example_is_called_thirty_times_slower_and_why() -> None:
    """Two samples of 128 tokens per node and step: 0.04 s of computing, 498 MB of gradients, gigabit."""
    choice = choose_sync(measured(FIVE, samples_per_step=10))
    assert choice.warnings[0] == (
        "5 nodes with fp32 would train 32 times slower than alpha alone: in a step they compute for 0.043 s, and"
        " sending 796 MB each adds 6.8 s; alpha alone needs 0.21 s. So auto lets it train alone"
    )
    assert choice.warnings[1] == (
        "more gradient accumulation helps: from --global-batch-size 400 on (now 10), 5 nodes with fp32 are as fast as"
        " alpha alone, and from 15000 on at 90 % of their joint speed"
    )
    assert choice.warnings[2] == (
        "--sync diloco would reach 1.2 x alpha alone; whether its loss stays within 0.5 % of fp32's is not known"
    )
    assert len(choice.warnings) == 3


def test_proposed_changes_help() -> None:
    known = measured(FIVE, samples_per_step=10)
    even, efficient = larger_steps(known, known.costs[0])
    assert (even, efficient) == (400, 15000)
    for samples, speedup in ((400, 1.0), (15000, 4.5)):
        larger = choose_sync(replace(known, samples_per_step=samples), sync="fp32").chosen
        assert larger.speedup == pytest.approx(speedup, rel=0.03)
        assert larger.speedup >= speedup


def test_no_step_is_large_enough_for_equal_shares_of_very_unequal_nodes() -> None:
    known = measured([node(0), node(1, sample_s=1.0)], samples_per_step=10)
    assert larger_steps(known, known.costs[0], equal=True) == (None, None)


def test_a_rung_asked_for_that_is_slower_than_one_node_is_called_so() -> None:
    choice = choose_sync(measured(FIVE, samples_per_step=40), sync="int4")
    assert choice.warnings[0].startswith("5 nodes with int4 would train 1.3 times slower than alpha alone: ")
    assert choice.warnings[0].endswith("alpha alone needs 0.86 s. --sync auto lets it train alone")
    better = choose_sync(measured(FIVE, samples_per_step=200), sync="fp32")
    assert "--sync auto takes int4 on alpha, beta, gamma, delta, epsilon: 2.4 x alpha alone" in better.warnings[0]


def test_auto_names_what_it_takes_instead() -> None:
    choice = choose_sync(measured(FIVE, samples_per_step=200))
    assert choice.warnings[0].endswith("So auto takes int4 on alpha, beta, gamma, delta, epsilon: 2.4 x alpha alone")


def test_a_rung_whose_loss_is_not_known_is_taken_with_a_word() -> None:
    choice = choose_sync(measured(FIVE, samples_per_step=200), sync="diloco")
    assert choice.warnings == (
        "diloco: whether its loss stays within 0.5 % of fp32's is not known. Compare the loss with a run of"
        " --sync fp32, or take --sync auto",
    )


def test_a_slow_link_is_named_and_what_a_cable_would_bring() -> None:
    nodes = [*FIVE[:4], node(4, link=GIGABIT / 10)]
    choice = choose_sync(measured(nodes, samples_per_step=2000))
    assert choice.left_out[0].why == (
        "its link carries 94 Mbit/s, the others' 941 Mbit/s: a step would take 17 s with it (int4), 12 s without"
    )
    assert choice.warnings[-1] == (
        "epsilon's link carries 94 Mbit/s, the others' 941 Mbit/s: a cable instead of Wi-Fi, or a faster port, would"
        " bring a step of all nodes with int4 from 17 s to 9.5 s"
    )


def test_slow_nodes_are_left_out_with_one_line_for_all() -> None:
    nodes = [FIVE[0], *(node(rank, sample_s=1.2) for rank in range(1, 5))]
    choice = choose_sync(measured(nodes, samples_per_step=200))
    assert [out.node for out in choice.left_out] == ["beta", "gamma", "delta", "epsilon"]
    assert "left out: beta, gamma, delta, epsilon: it computes 56 times slower than alpha: a step" in "\n".join(
        table(choice)
    )


def test_a_node_that_would_bring_little_is_not_reported_as_a_cost() -> None:
    """One sync method, 3 % faster with both nodes: less than the forecast can be sure of."""
    known = replace(
        measured([node(0, sample_s=0.1), node(1, sample_s=0.1)], samples_per_step=100, parameters=1000),
        latency_s=0.94,
        costs=(cost("fp32", 4.0),),
    )
    choice = choose_sync(known)
    assert choice.chosen.sync == "alone"
    assert choice.left_out[0].why.startswith("it would bring little, less than the forecast can be sure of: ")


def test_nothing_is_printed_where_all_is_well() -> None:
    choice = choose_sync(measured(FIVE, samples_per_step=100_000))
    assert (choice.chosen.sync, len(choice.chosen.nodes), choice.left_out, choice.warnings) == ("fp32", 5, (), ())


def test_figures_have_the_digits_that_people_need() -> None:
    assert [seconds(value) for value in (127.3, 6.77, 0.5, 0.043)] == ["127 s", "6.8 s", "0.50 s", "0.043 s"]
    assert [times(value) for value in (31.8, 1.84)] == ["32 times", "1.8 times"]
    assert [megabytes(value) for value in (796e6, 5.9e6)] == ["796 MB", "5.9 MB"]
    assert names(["n"] * 6) == "6 nodes"
