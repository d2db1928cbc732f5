"""A rank that takes longer for its part of a step than the others is flagged, wherever a run is looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from contract.event_lines import decode_event
from contract.events import StepDone
from contract.log_lines import split_rank
from orchestrator.checks.slow_ranks import slow_ranks
from orchestrator.state.condition import Code, Condition, Scalar
from orchestrator.watch import follow_lines
from orchestrator.watch.words import words
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached

TWICE = {"alpha": 0.10, "beta": 0.11, "gamma": 0.22}


def step(compute_s: Mapping[str, float | None]) -> StepDone:
    return StepDone(rank=0, step=40, compute_s=compute_s)


def line(number: int, **values: object) -> str:
    event = {"event": "step", "rank": 0, "step": number, "loss": 2.5, "per_s": 100.0, "unit": "tokens", **values}
    return f"[rank0]: @orch {json.dumps(event)}"


def test_more_than_half_as_long_again_is_flagged() -> None:
    (slow,) = slow_ranks(step(TWICE), THREE)
    assert (slow.node, slow.label, round(slow.ratio, 1)) == ("gamma", "gamma", 2.1)
    assert slow_ranks(step({**TWICE, "gamma": 0.15}), THREE) == ()


def test_advice_on_a_cluster_names_no_nodes_of_an_inventory() -> None:
    values: dict[str, Scalar] = {"ratio": 2.1, "label": "gamma", "cluster": "uni", "nnodes": 3}
    condition = Condition(code=Code.SLOW_COMPUTE, severity="warning", node="gamma", values=values)
    advice = words(condition, "long-1a2b")
    assert "without it: add `exclude: gamma` to `options:`" in advice.text
    assert advice.text.endswith("then: orch restart long-1a2b")
    assert advice.command == "orch doctor --on uni --nodes 3"


def test_where_parts_follow_speed_that_is_given_time_and_not_advised_again() -> None:
    def after(balanced: int) -> StepDone:
        return StepDone(rank=0, step=40, compute_s=TWICE, balanced=balanced)

    assert slow_ranks(after(0), THREE) == slow_ranks(after(1), THREE) == ()
    (slow,) = slow_ranks(after(2), THREE)
    assert slow.balanced
    condition = Condition(code=Code.SLOW_COMPUTE, severity="warning", node="gamma", values={"balanced": True})
    assert words(condition, "x").text.endswith("its part is as small as --shares auto makes it")


def test_of_two_the_slow_one_is_measured_by_the_other() -> None:
    (slow,) = slow_ranks(step({"alpha": 0.1, "beta": 0.16}), ["alpha", "beta"])
    assert slow.ratio == pytest.approx(1.6)


def test_several_ranks_of_a_node_and_names_with_dots() -> None:
    reported = {"alpha.1": 0.1, "lab.b.0": 0.1, "lab.b.1": 0.3}
    (slow,) = slow_ranks(step(reported), ["alpha.1", "lab.b"])
    assert (slow.label, slow.node) == ("lab.b.1", "lab.b")


@pytest.mark.parametrize("message", [None, {}, {"alpha": 1.0}, {"alpha": 0.0, "beta": 1.0}, [1, 2], {"alpha": "x"}])
def test_where_nothing_is_known_nothing_is_reported(message: object) -> None:
    _, text = split_rank(line(3, compute_s=message))
    assert slow_ranks(decode_event(text), THREE) == ()
    assert slow_ranks(None, THREE) == ()


def test_status_flags_it_until_others_are_reported(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(line(40, compute_s=TWICE), line(50)), ends_with=None)
    detached(orch, here)
    ran = orch("status", on=here)
    assert "! gamma takes 2.1 x the others' time for its part of a step" in ran.err
    assert "--shares auto gives it a smaller part" in ran.err
    assert "2.1 x the others' time" in " ".join(ran.out.split())
    data = json_data(orch("status", "--json", on=here).out)
    (slow,) = [one for one in data["conditions"] if one["code"] == "slow_compute"]
    assert (slow["node"], round(slow["values"]["ratio"], 1)) == ("gamma", 2.1)


def test_status_says_nothing_where_all_are_alike(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(line(40, compute_s={**TWICE, "gamma": 0.12}),), ends_with=None)
    detached(orch, here)
    ran = orch("status", on=here)
    assert "the others' time" not in ran.out + ran.err
    assert json_data(orch("status", "--json", on=here).out)["conditions"] == []


def test_a_launch_flags_it_once(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_lines, "EVERY_S", 0.0)  # the run is over within the second between two looks
    here = lan.lan(*THREE, says=(line(40, compute_s=TWICE), line(50, compute_s=TWICE)))
    ran = orch("launch", on=here)
    assert ran.err.count("! gamma takes 2.1 x the others' time for its part of a step") == 1
