"""A machine on a slow link: told before the start, left out where it slows the others down, and nothing is left."""

from __future__ import annotations

import pytest

from tests.json_output import json_data
from tests.lab.conftest import NAMES, Orch, nothing_is_left

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

WORDS = ("gpt2", "--preset", "tiny", "--no-amp", "--batch-size", "8", "--seed", "7", "--no-compile")


def test_a_forecast_names_the_slow_link_and_leaves_nothing_behind(orch: Orch, before: dict[str, str]) -> None:
    assert orch("lab", "link", "2mbit", "epsilon").code == 0
    try:
        done = orch("launch", "--yes", "--nodes", "5", "--forecast", "--json", "--", *WORDS)
    finally:
        assert orch("lab", "link", "off", "epsilon").code == 0
    assert done.code == 0, done.out + done.err
    told = done.json["forecast"]
    links = told["link_mbit_s"]
    assert links["epsilon"] < 3
    assert min(links[name] for name in NAMES if name != "epsilon") > 4 * links["epsilon"]
    assert any("epsilon's link carries" in text for text in told["warnings"]), told["warnings"]
    (chosen,) = (row for row in told["rows"] if row["chosen"])
    assert "epsilon" not in chosen["nodes"]
    assert chosen["speedup"] >= 1
    nothing_is_left(before)


def test_who_is_left_out_waits_and_ends_with_the_run(orch: Orch) -> None:
    assert orch("lab", "link", "1mbit", "epsilon").code == 0
    try:
        done = orch.launch("--name", "slow", "--", *WORDS, "--max-steps", "30", "--log-every", "5")
    finally:
        assert orch("lab", "link", "off", "epsilon").code == 0
    assert done.code == 0, done.out + done.err
    assert "epsilon" in done.err.split("left out: ", 1)[-1]
    status = orch("status", "slow", "--json")
    assert status.code == 0, status.err
    told = json_data(status.out)
    assert "epsilon" in {out["node"] for out in told["forecast"]["left_out"]}
    assert told["of_forecast"] > 0
