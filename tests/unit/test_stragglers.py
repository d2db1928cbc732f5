"""The node that holds a run back, and why."""

from __future__ import annotations

from typing import Any

import pytest

from contract.events import StepDone
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.checks.stragglers import share_of, straggler

NODES = ("alpha", "beta", "gamma")
SLOW = {"alpha": 0.5, "beta": 0.5, "gamma": 1.2}


def step(compute_s: dict[str, float | None] | None = None, **shares: Any) -> StepDone:
    return StepDone(step=5, node="alpha", compute_s=compute_s, others=shares)


def usage(swap_used_mib: int = 0, slowed_by: str = "") -> ResourceUsage:
    gpus = (GpuUsage(index=0, name="RTX 3050", slowed_by=slowed_by),)
    return ResourceUsage(
        cpu_percent=50.0, cpus=2.0, ram_used_mib=10, ram_limit_mib=4096, swap_used_mib=swap_used_mib, gpus=gpus
    )


@pytest.mark.parametrize(
    ("used", "reason", "text"),
    [
        (usage(), "compute", "takes 2.4 x the others' time"),
        (usage(4096), "swapping", "takes 2.4 x the others' time; 4.0 GiB of its memory is swapped out"),
        (usage(4096, "temperature"), "throttled", "takes 2.4 x the others' time; its GPU is slowed by temperature"),
    ],
)
def test_a_slow_rank_and_what_slows_it(used: ResourceUsage, reason: str, text: str) -> None:
    found = straggler(step(SLOW), NODES, {"gamma": used})
    assert found is not None
    assert (found.node, found.reason, found.text) == ("gamma", reason, text)


def test_the_rank_that_reports_waits_for_data() -> None:
    found = straggler(step(waiting=0.4, exchanging=0.5), NODES)
    assert found is not None
    assert (found.node, found.reason, found.text) == ("alpha", "data", "waits 40% of the time for data")


def test_the_slowest_link() -> None:
    found = straggler(step(exchanging=0.5), NODES, links={"alpha": 941.0, "beta": 94.0, "gamma": 940.0})
    assert found is not None
    assert (found.node, found.reason) == ("beta", "link")
    assert found.text == "the exchange takes 50% of the time; its link carries 94 Mbit/s, the others' 940"


def test_links_that_are_alike_hold_all_back() -> None:
    found = straggler(step(exchanging=0.5), NODES, links={"alpha": 941.0, "beta": 940.0})
    assert found is not None
    assert (found.node, found.reason) == ("", "link")


@pytest.mark.parametrize(
    "last", [None, step(), step({"alpha": 0.5, "beta": 0.6}, waiting=0.1, exchanging=0.2), step({"alpha": None})]
)
def test_no_straggler(last: StepDone | None) -> None:
    assert straggler(last, NODES) is None


@pytest.mark.parametrize("value", [None, True, "0.5", -0.1, 1.5, [], 10**30])
def test_a_share_that_is_none(value: object) -> None:
    assert share_of(step(waiting=value), "waiting") is None
