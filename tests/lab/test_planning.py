"""Test, bench, plan and the nodes that it chooses, on machines with links as slow as configured."""

from __future__ import annotations

import pytest

from tests.conftest import Figure
from tests.lab.conftest import NAMES, Orch, nothing_is_left, on_node

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

WORDS = ("gpt2", "--preset", "tiny", "--no-amp", "--batch-size", "16", "--seed", "7", "--no-compile")


def test_all_ways_and_values_are_right_and_the_slow_node_is_marked(orch: Orch, before: dict[str, str]) -> None:
    assert orch("lab", "link", "100mbit").code == 0
    assert orch("lab", "link", "10mbit", "delta").code == 0
    try:
        done = orch("test", "--json")
    finally:
        assert orch("lab", "link", "off").code == 0
    assert done.code == 0, done.out + done.err
    verdict = done.json["verdict"]
    assert (verdict["nodes"], verdict["lacking"], len(verdict["checks"])) == (list(NAMES), [], 6)
    slow = NAMES.index("delta")
    for row, rates in enumerate(verdict["mbit_s"]):
        for column, rate in enumerate(rates):
            if row != column:  # a lab shapes what a node sends
                assert 5 < rate < 12 if row == slow else 12 < rate < 120, (row, column, rate)
    assert done.json["slow"]["nodes"] == [slow]
    nothing_is_left(before)


def test_who_is_cut_off_is_named(orch: Orch, before: dict[str, str], figure: Figure) -> None:
    assert orch("lab", "cut", "gamma").code == 0
    try:
        done = orch("test")
    finally:
        assert orch("lab", "heal", "gamma").code == 0
    figure(f"orch test, one of five cut off: {done.seconds:.1f} s")
    assert (done.code, "gamma" in done.err) == (4, True), done.err
    nothing_is_left(before)


def test_who_the_others_do_not_reach_is_named_before_torch_is_loaded(
    orch: Orch, before: dict[str, str], figure: Figure
) -> None:
    """The controller reaches it all the same: only its peers are walled off."""
    rule = ("INPUT", "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "DROP")
    on_node("beta", "iptables", "-I", *rule)
    try:
        done = orch("test")
    finally:
        on_node("beta", "iptables", "-D", *rule)
    figure(f"orch test, one of five behind a firewall: {done.seconds:.1f} s")
    assert done.code == 4, done.err
    assert "no peer reaches beta" in done.err
    assert "nothing was started" in done.err
    nothing_is_left(before)


def test_measured_planned_and_launched_on_the_nodes_of_the_plan(orch: Orch, before: dict[str, str]) -> None:
    assert orch("lab", "link", "1mbit", "epsilon").code == 0
    try:
        benched = orch("bench", "--json", "--", *WORDS)
        assert benched.code == 0, benched.out + benched.err
        nothing_is_left(before)
        planned = orch("plan", "--json", "--steps", "20", "--", *WORDS)
        launched = orch("launch", "--nodes", "auto", "--yes", "--json", "--", *WORDS, "--max-steps", "20")
    finally:
        assert orch("lab", "link", "off", "epsilon").code == 0
    around = benched.json["measured"]["around"]
    assert len(around) == 5
    assert all(each["memory_limit"] > each["memory_peak"] > 0 and each["disk_write"] > 0 for each in around)
    found = planned.json
    assert "epsilon" not in found["chosen"]["nodes"]
    (slow,) = (member for member in found["members"] if member["node"] == "epsilon")
    assert (slow["taken"], slow["effect"]) == (False, "hurts")
    assert launched.code == 0, launched.out + launched.err
    assert f"--nodes auto: {', '.join(found['chosen']['nodes'])}" in launched.err
    assert launched.json["last_event"]["step"] == 20
