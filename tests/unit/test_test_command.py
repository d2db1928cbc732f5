"""`orch test`: a run in miniature; whoever does not come along is named, and nothing is left on the nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.checks.slow_links import SlowLinks, slow_links
from orchestrator.fleet.runs.stop import _REMOVE
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.rendezvous import BEHIND_S, FIRST_S, Rendezvous
from orchestrator.nodes.fake import FakeNode
from orchestrator.plan.command import in_miniature
from orchestrator.specs.connectivity import ConnectivityResult, read_connectivity_result
from orchestrator.specs.errors import NodeUnreachableError, UsageError
from orchestrator.specs.run_events import RunLine, Tick
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch


def a_test(rates: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """A `tested` event of three nodes; `rates`: Mbit/s of pairs, by their letters, where not 940."""
    names = list(THREE)

    def rate(a: str, b: str) -> float | None:
        return None if a == b else (rates or {}).get(min(a[0], b[0]) + max(a[0], b[0]), 940.0)

    values = {
        "nodes": names,
        "backend": "gloo",
        "device": "cpu",
        "checks": ["all_reduce", "broadcast", "all_gather", "barrier"],
        "lacking": ["reduce_scatter"],
        "barrier_ms": 0.61,
        "all_reduce": {"bytes": 33554432, "seconds": 0.41, "mbit_s": 873.0},
        "mbit_s": [[rate(a, b) for b in names] for a in names],
        "latency_ms": [[None if a == b else 0.2 for b in names] for a in names],
    }
    return {**values, **changes}


def verdict(rates: dict[str, float] | None = None, **changes: Any) -> ConnectivityResult:
    found = read_connectivity_result(a_test(rates, **changes))
    assert found is not None
    return found


def test_all_is_well(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(event("started"), event("tested", **a_test())))
    ran = orch("test", on=here)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "✓ gloo on cpu: right on all 3: all_reduce, broadcast, all_gather, barrier",
        "  gloo has no reduce_scatter",
        "  all-reduce of 33.6 MB in 410 ms: each sends 873 Mbit/s; of a few bytes in 0.61 ms",
        "",
        "Mbit/s to  alpha  beta  gamma",
        "alpha          –   940    940",
        "beta         940     –    940",
        "gamma        940   940      –",
        "",
        "ms there and back  alpha  beta  gamma",
        "alpha                  –   0.2    0.2",
        "beta                 0.2     –    0.2",
        "gamma                0.2   0.2      –",
    ]
    assert here.containers == {}
    for node in here.nodes.values():
        assert [call[:3] for call in node.calls].count(("sh", "-c", _REMOVE)) == 1


def test_the_containers_run_the_test_with_short_patience(orch: Orch) -> None:
    request = in_miniature(lan.request(THREE, environment={"LANG": "es"}), "gloo")
    (first, *_) = lan.plan(THREE, **{name: getattr(request, name) for name in (
        "command", "environment", "process_group_timeout_s")}).nodes  # fmt: skip
    assert first.container.command[-5:] == ("-m", "trainer", "test-ddp", "--backend", "gloo")
    environment = first.container.environment
    assert (environment["PET_RDZV_CONF"], environment["LANG"]) == ("timeout=90", "es")
    assert int(environment["ORCH_PG_TIMEOUT_S"]) <= 30


def test_a_slow_node_and_a_slow_pair_are_marked(orch: Orch) -> None:
    slow = {"ag": 90.0, "bg": 94.0}
    ran = orch("test", on=lan.lan(*THREE, says=(event("tested", **a_test(slow)),)))
    assert "gamma        !90   !94      –" in ran.out
    assert "! gamma's links carry 94 Mbit/s at most, the others' 940" in ran.out
    pair = orch("test", on=lan.lan(*THREE, says=(event("tested", **a_test({"ag": 90.0})),)))
    assert "! alpha and gamma reach 90 Mbit/s together, the others 940" in pair.out
    assert (ran.code, pair.code) == (0, 0)


def test_for_programs_it_is_json(orch: Orch) -> None:
    ran = orch("test", "--json", on=lan.lan(*THREE, says=(event("tested", **a_test({"ag": 90.0})),)))
    answer = json_data(ran.out)
    assert (answer["ok"], answer["failure"], answer["slow"]["pairs"]) == (True, None, [[0, 2]])
    assert read_connectivity_result(answer["verdict"]) == verdict({"ag": 90.0})
    named = orch("test", "-o", "name", on=lan.lan(*THREE, says=(event("tested", **a_test()),)))
    assert named.out.split() == list(THREE)


def test_a_wrong_value_is_a_failure_with_the_ranks_own_words(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    wrong = event("failed", 1, error="TrainerError", message="rank 1 of 3 (beta): broadcast gave 2, expected 1")
    here.add("beta", says=(wrong,), ends_with=1)
    ran = orch("test", on=here)
    assert (ran.code, here.containers) == (1, {})
    assert " failed: rank 1 on beta: TrainerError: rank 1 of 3 (beta): broadcast gave 2, expected 1" in ran.err


def test_an_older_image_has_no_verdict_to_give(orch: Orch) -> None:
    ran = orch("test", on=lan.lan(*THREE, says=("[rank0]: all_reduce 6 (expected 6) OK",)))
    assert ran.code == 1
    assert "orch build" in ran.err


def test_a_node_out_of_reach_is_named_and_nothing_is_started(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = lan.silent("beta")
    ran = orch("test", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "beta: no answer in 5 s" in ran.err


def test_who_is_cut_off_is_named_before_anything_is_started(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.add("alpha", shut=("gamma",))
    here.add("beta", shut=("gamma",))
    here.add("gamma", shut=("alpha", "beta"))
    ran = orch("test", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "gamma (10.0.0.13) and its peers do not reach each other (timed out) [network.cut_off]" in ran.err
    assert "not every node reaches every other; nothing was started" in ran.err
    walled = lan.lan(*THREE)
    walled.add("alpha", shut=("beta",))
    walled.add("gamma", shut=("beta",))
    assert "[firewall.blocks_peers]" in orch("test", on=walled).err


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="--backend mpi: expected auto, gloo or nccl"):
        in_miniature(lan.request(), "mpi")


@pytest.mark.parametrize("broken", [{"mbit_s": [[None]]}, {"nodes": 3}, {"latency_ms": []}, {"all_reduce": None}])
def test_what_is_no_verdict_is_not_read_as_one(broken: dict[str, Any]) -> None:
    assert read_connectivity_result(a_test(**broken)) is None


def test_alike_links_are_not_marked() -> None:
    assert slow_links(verdict()) == SlowLinks(typical_mbit_s=940.0, typical_ms=0.2)


def test_one_direction_is_enough_to_be_slow() -> None:
    one_way = a_test()
    one_way["mbit_s"][0][1] = 100.0
    assert slow_links(verdict(mbit_s=one_way["mbit_s"])).pairs == ((0, 1),)


def test_a_late_pair_is_marked_a_tenth_of_a_millisecond_is_nobodys_fault() -> None:
    late = a_test()["latency_ms"]
    late[0][2] = 8.0
    assert slow_links(verdict(latency_ms=late)).late == ((0, 2),)
    late[0][2] = 0.5
    assert slow_links(verdict(latency_ms=late)).late == ()


# ── Who does not come ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rehearsal:
    """Three nodes; those in `there` hold a connection to the master's port."""

    clock: Clock = field(default_factory=Clock)
    there: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = {name: FakeNode(name, programs=self.table(name)) for name in THREE}
        self.followed = FollowedRun(RunRecord("r1"))
        self.arrivals = Rendezvous(self.nodes, lan.plan(THREE), self.followed.state, self.clock)

    def table(self, name: str) -> Any:
        row = f" 0: 0B00000A:9C40 0B00000A:{lan.plan(THREE).supervisor_port:04X} 01 0\n"  # on 10.0.0.11, established
        return lambda _argv, _stdin, _timeout: (0, row if name in self.there else "", "")

    def after(self, seconds: float) -> list[str]:
        self.clock.now += seconds
        return self.arrivals.hear(Tick())


def test_arrivals_are_reported_once_each() -> None:
    rehearsal = Rehearsal()
    assert rehearsal.after(2) == []
    rehearsal.there = {"alpha", "gamma"}
    assert rehearsal.after(2) == ["alpha", "gamma"]
    rehearsal.there = set(THREE)
    assert rehearsal.after(BEHIND_S - 1) == ["beta"]
    assert rehearsal.after(1000) == []


def test_who_stays_away_is_named_within_seconds_of_the_others() -> None:
    rehearsal = Rehearsal(there={"alpha", "beta"})
    rehearsal.after(2)
    overdue = r"^gamma did not reach alpha \(10\.0\.0\.11:[0-9]{5}\) within 20 s after alpha, beta$"
    with pytest.raises(NodeUnreachableError, match=overdue) as caught:
        rehearsal.after(BEHIND_S + 1)
    assert (caught.value.exit_code, "orch doctor" in caught.value.hint) == (4, True)


def test_no_node_comes() -> None:
    rehearsal = Rehearsal()
    assert rehearsal.after(BEHIND_S + 1) == []
    with pytest.raises(NodeUnreachableError, match="alpha, beta, gamma did not reach"):
        rehearsal.after(FIRST_S)


def test_a_started_rank_shows_that_all_nodes_have_met() -> None:
    rehearsal = Rehearsal()
    started = RunLine(time="", node="beta", node_rank=1, rank=1, text=event("started", 1).partition(": ")[2])
    rehearsal.followed.take(started)
    assert rehearsal.arrivals.hear(started) == list(THREE)
    assert rehearsal.after(FIRST_S + 1) == []


def test_who_stays_away_ends_the_test_and_nothing_is_left(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as a whole, its patience cut to nothing: the containers continue, and none connects."""
    monkeypatch.setattr("orchestrator.fleet.supervise.rendezvous.FIRST_S", 0.0)
    here = lan.lan(*THREE, ends_with=None)
    ran = orch("test", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "alpha, beta, gamma did not reach alpha (10.0.0.11:" in ran.err
