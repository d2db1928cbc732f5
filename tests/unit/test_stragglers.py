"""The node that the others wait for, why, and its words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract.cost_model.forecast import Forecast, ForecastRow
from contract.events import StepDone
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.state.condition import Code, Condition
from orchestrator.state.conditions import slow_node
from orchestrator.state.facts import NodeAnswered
from orchestrator.state.line_reduce import share_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.watch.words import words
from tests.run_streams import NAMES, RUN_ID, T0, USAGE, begun

ROW = ForecastRow(sync="fp32", nodes=NAMES, step_s=1.0, compute_s=1.0, exchange_s=0.0, per_s=1.0, speedup=1.0,
                  sent_mb=0.0, chosen=True)  # fmt: skip
SLOW = {"alpha": 0.5, "beta": 0.5, "gamma": 1.2}
GPU = GpuUsage(index=0, name="RTX 3050", slowed_by="temperature")


def state_after(step: StepDone, used: ResourceUsage = USAGE, links: dict[str, float] | None = None) -> RunState:
    """The state of a run on three nodes, of which gamma uses this much."""
    stream, state = begun(), RunState(run_id=RUN_ID)
    stream.event(5, "alpha", step, 0)
    stream.facts.append(NodeAnswered(seen=T0 + 6, node="gamma", usage=used))
    for fact in stream.facts:
        apply(state, fact)
    if links:
        state.recorded_forecast = Forecast(
            unit="tokens", rows=(ROW,), sync="fp32", best_node="alpha", link_mbit_s=links, latency_ms=0.2
        )
    return state


def step(compute_s: dict[str, float | None] | None = None, **shares: Any) -> StepDone:
    return StepDone(step=5, node="alpha", compute_s=compute_s, others=shares)


def found(state: RunState) -> tuple[str, str, str]:
    condition = slow_node(state)
    assert condition is not None
    return condition.code, condition.node, words(condition, RUN_ID).text


TIMES = "gamma takes 2.4 x the others' time for its part of a step"


@pytest.mark.parametrize(
    ("used", "code", "text"),
    [
        (USAGE, "slow_compute", f"{TIMES}; --shares auto gives it a smaller part"),
        (replace(USAGE, swap_used_mib=4096), "swapping", f"{TIMES}; 4.0 GiB of its memory is swapped out"),
        (
            replace(USAGE, swap_used_mib=4096, gpus=(GPU,)),
            "throttled",
            f"{TIMES}; its GPU is slowed by temperature",
        ),
    ],
)
def test_a_slow_rank_and_what_slows_it(used: ResourceUsage, code: str, text: str) -> None:
    assert found(state_after(step(dict(SLOW)), used)) == (code, "gamma", text)


@pytest.mark.parametrize(
    ("seconds", "command"),
    [
        (1.2, f"orch restart {RUN_ID} --nodes alpha,beta   # without gamma"),
        (0.752, f"orch restart {RUN_ID}"),
        (0.748, ""),
    ],
)
def test_the_next_command_leaves_it_out_where_the_others_are_faster_without_it(seconds: float, command: str) -> None:
    """Two of three nodes take 1.5 times as long for what it did."""
    condition = slow_node(state_after(step({**SLOW, "gamma": seconds})))
    assert (condition is None) == (not command)
    assert condition is None or words(condition, RUN_ID).command.startswith(command)


def test_of_two_nodes_a_slow_one_helps() -> None:
    values = {"ratio": 1.8, "label": "beta", "others": "alpha"}
    condition = Condition(code=Code.SLOW_COMPUTE, severity="warning", node="beta", values=values)
    assert words(condition, RUN_ID).command == "orch doctor --nodes beta"


def test_a_machine_of_a_lab_is_not_slow() -> None:
    """Those on one computer share its cores, and each is the slowest in turn."""
    state = state_after(step(dict(SLOW)))
    assert state.plan is not None
    state.plan = replace(state.plan, one_computer=True)
    assert slow_node(state) is None


def test_the_rank_that_reports_waits_for_data() -> None:
    code, node, text = found(state_after(step(waiting=0.4, exchanging=0.5)))
    assert (code, node, text.partition(":")[0]) == ("slow_data", "alpha", "alpha waits 40% of the time for data")


def test_the_slowest_link() -> None:
    links = {"alpha": 941.0, "beta": 94.0, "gamma": 940.0}
    text = "the exchange takes 50% of the time; the link of beta carries 94 Mbit/s, the others' 940"
    assert found(state_after(step(exchanging=0.5), links=links)) == ("slow_link", "beta", text)


def test_links_that_are_alike_slow_all_down() -> None:
    code, node, text = found(state_after(step(exchanging=0.5), links={"alpha": 941.0, "beta": 940.0}))
    assert (code, node, text.partition("; ")[2]) == ("slow_link", "", "all links are about equally fast")


@pytest.mark.parametrize(
    "last", [step(), step({"alpha": 0.5, "beta": 0.6}, waiting=0.1, exchanging=0.2), step({"alpha": None})]
)
def test_no_node_is_slow(last: StepDone) -> None:
    assert slow_node(state_after(last)) is None


@pytest.mark.parametrize("value", [None, True, "0.5", -0.1, 1.5, [], 10**30])
def test_a_share_that_is_none(value: object) -> None:
    assert share_of(step(waiting=value), "waiting") is None
