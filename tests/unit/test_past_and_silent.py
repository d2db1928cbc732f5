"""Output for runs whose nodes are silent, or of which only the record is left."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.fleet.runs.claims import CLAIM
from orchestrator.fleet.supervise.follow import follow
from orchestrator.render import times
from orchestrator.specs.run_events import NodeBack, NodeLost, RunEvent, RunLine, Tick
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached
from tests.unit.scene import Scene

SAYS = ("[rank0]: hello", event("step", step=7, loss=1.25))


def silenced(here: lan.Lan, *names: str) -> lan.Lan:
    """The same LAN, some of its machines out of reach."""
    now = lan.Lan(nodes=dict(here.nodes))
    for name in names:
        now.nodes[name] = lan.silent(name)
    return now


@pytest.mark.parametrize(("names", "code"), [((), 0), (("beta",), 5), (THREE, 4)])
def test_runs_says_that_nodes_are_silent(orch: Orch, names: tuple[str, ...], code: int) -> None:
    here = silenced(lan.lan(*THREE), *names)
    ran = orch("runs", on=here)
    assert (ran.code, "no runs yet" in ran.err) == (code, not names)
    data = orch("runs", "--json", on=here)
    assert (data.code, list(json_data(data.out)["unreachable"])) == (code, list(names))


def test_status_of_a_run_that_no_node_shows(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=1)
    run = json_data(orch("launch", "--json", "--no-supervise", on=here).out)["run_id"]
    ran = orch("status", run, on=lan.lan(*THREE))
    assert ran.code == 1
    assert ran.out.startswith(f"run {run}  failed  step 7 · loss 1.250\nas of 20")
    assert "from the record on this computer: no node shows it now\n" in ran.out
    data = json_data(orch("status", run, "--json", on=silenced(here, *THREE)).out)
    assert (data["state"], data["last_event"]["step"], list(data["unreachable"])) == ("failed", 7, list(THREE))
    assert datetime.fromisoformat(data["as_of"]).utcoffset() is not None


def test_a_silent_node_that_takes_no_part_is_not_asked_for_its_claim(orch: Orch) -> None:
    """Such a node did not answer a moment before, and costs its time limit each time."""
    here = lan.lan(*THREE, says=(lan.written(40),), ends_with=1)
    run_id = detached(orch, here)
    lan.keep_checkpoint(here.nodes["alpha"], run_id, 40)
    now = silenced(here, "gamma")
    ran = orch("resume", run_id, "--nodes", "alpha,beta", "--detach", on=now)
    assert ran.code == 0, ran.err
    asked = {name: [call for call in node.calls if call[2:3] == (CLAIM,)] for name, node in now.nodes.items()}
    assert {name: len(calls) for name, calls in asked.items()} == {"alpha": 2, "beta": 2, "gamma": 0}


def test_without_an_inventory_the_record_answers(orch: Orch) -> None:
    here = lan.lan(*THREE, says=SAYS)
    run = json_data(orch("launch", "--json", "--no-supervise", on=here).out)["run_id"]
    Path("inventory.yaml").unlink()
    assert "[all 3 nodes] hello" in orch("logs", run).out
    assert run in orch("runs").out
    assert orch("status", run).out.startswith(f"run {run}  succeeded  step 7")
    assert orch("status", "another").code == 3


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--nodes", "delta"), 3, "alpha, beta, gamma"),
        (("--rank", "9"), 2, "0 to 2"),
        (("--rank", "-1"), 2, "0 to 2"),
    ],
)
def test_logs_of_a_node_or_rank_that_the_run_does_not_have(
    orch: Orch, words: tuple[str, ...], code: int, says: str
) -> None:
    here = lan.lan(*THREE, says=SAYS)
    detached(orch, here)
    ran = orch("logs", *words, on=here)
    assert ran.code == code
    assert says in ran.err


def test_times_are_local_and_say_so(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Bogota")
    time.tzset()
    try:
        here = lan.lan(*THREE, says=("[rank0]: hello",))
        detached(orch, here)
        shown = orch("logs", "-t", "--nodes", "alpha", on=here).out
        assert shown == "2026-01-02T10:00:00.000-05:00 [0 alpha] hello\n"
        assert "started (-05)" in orch("status", on=here).out
        noon = datetime(2026, 1, 2, 17, tzinfo=UTC).timestamp()
        assert "started at (-05)" in orch("runs", "-o", "wide", on=here).out
        assert "just now" in orch("runs", on=here).out
        assert times.ago("2026-01-02T16:48:00Z", noon) == "12 min ago"
        assert times.ago("2025-12-30T16:48:00Z", noon) == "3 days ago"
        assert times.ago("2025-12-01T16:48:00Z", noon) == "2025-12-01"
        assert times.ago("", noon) == ""
        assert times.started("2026-01-02T15:00:00.5Z", noon) == "2026-01-02 10:00, 2 h ago"
        assert times.started("2026-01-02T16:48:00Z", noon) == "2026-01-02 11:48, 12 min ago"
        assert times.started("2026-01-01T15:00:00Z", noon) == "2026-01-01 10:00"
        assert (times.started("x\x1b[2J", noon), times.started("", noon)) == ("", "")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("known", [True, False])
def test_following_waits_for_a_node_that_is_away_and_continues_with_the_others(known: bool) -> None:
    """`known`: whether its container was found before it went away."""
    scene = Scene()
    plan, containers = scene.begin()
    if not known:
        scene.engines["beta"].pull()
        containers = tuple(one if one.node.name != "beta" else type(one)(
            node=one.node, node_rank=one.node_rank, id="") for one in containers)  # fmt: skip
    received: list[RunEvent] = []
    for happening in follow(containers, RunRecord(plan.run_id), patient=True, pause=scene.time.pause, tick_s=0.005):
        received.append(happening)
        if isinstance(happening, Tick):
            scene.time.pass_(10)
        elif isinstance(happening, RunLine) and happening.node == "beta" and known:
            scene.engines["beta"].pull()
            known = False
        elif isinstance(happening, NodeLost):
            scene.say("alpha", "[rank0]: meanwhile")
        elif isinstance(happening, RunLine) and happening.text == "meanwhile":
            scene.engines["beta"].put_back()
        elif isinstance(happening, NodeBack):
            scene.say("beta", "[rank1]: here again")
        elif isinstance(happening, RunLine) and happening.text == "here again":
            scene.finish()
    texts = [happening.text for happening in received if isinstance(happening, RunLine) and happening.node == "beta"]
    assert [text for text in texts if "@orch" not in text] == ["here again"]
    assert len(texts) == 2
    assert [type(one) for one in received if isinstance(one, NodeLost | NodeBack)] == [NodeLost, NodeBack]
