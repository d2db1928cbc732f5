"""The run that a name means, by one rule for all commands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from orchestrator.specs.errors import UsageError
from orchestrator.store.run_names import KnownRun, resolve, telling_by
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.unit.conftest import THREE, Orch

MINE = (
    KnownRun(run_id="mine-419b", at=3.0),
    KnownRun(run_id="mine-7c22", at=1.0, active=True),
    KnownRun(run_id="mine-big-1a2b", at=2.0),
    KnownRun(run_id="mi", at=0.0),
)


@dataclass(frozen=True)
class Meant:
    wanted: str | None
    run_id: str | None
    message: str = ""
    ended: tuple[str, ...] = ()
    """Runs that are not active."""


@pytest.mark.parametrize(
    "case",
    [
        Meant("mine-419b", "mine-419b"),
        Meant("mi", "mi"),  # an id before the beginning of others
        Meant("mine", "mine-7c22", "note: mine-7c22, the active one of 2"),  # a name before what begins so
        Meant("mine", "mine-419b", "note: mine-419b, the newer of 2", ended=("mine-7c22",)),
        Meant("min", "mine-7c22", "note: mine-7c22, the active one of 3"),
        Meant("min", "mine-419b", "note: mine-419b, the newest of 3", ended=("mine-7c22",)),
        Meant("mine-b", "mine-big-1a2b"),
        Meant("mine-4", "mine-419b"),
        Meant("yours", None),
        Meant(None, "mine-7c22"),
        Meant("", "mine-419b", ended=("mine-7c22",)),
    ],
)
def test_an_id_then_a_name_then_a_beginning_and_of_several_the_active_or_the_newest(case: Meant) -> None:
    known = [replace(one, active=one.active and one.run_id not in case.ended) for one in MINE]
    message: list[str] = []
    with telling_by(message.append):
        assert resolve(case.wanted, known) == case.run_id
        assert resolve(case.wanted, known, "end") == case.run_id
    assert message == [case.message] * (2 if case.message else 0)


def test_only_what_ends_a_run_refuses_and_only_where_two_are_active() -> None:
    both = [replace(one, active=True) for one in MINE[:2]]
    assert resolve("mine", both) == "mine-419b"
    with pytest.raises(UsageError, match="2 active runs are named mine: mine-419b, mine-7c22"):
        resolve("mine", both, "end")
    assert resolve("mine-7c22", both, "end") == "mine-7c22"


def launched(orch: Orch, here: lan.Lan, node: str, ends_with: int | None) -> str:
    here.nodes[node].engine.ends_with = ends_with  # type: ignore[attr-defined]  # an Actor
    ran = orch("launch", "--detach", "--name", "mine", "--nodes", node, on=here)
    assert ran.code == 0, ran.err
    return ran.out.strip()


COMMANDS = (
    ("status", "mine"),
    ("logs", "mine"),
    ("why", "mine"),
    ("wait", "mine", "--timeout", "0"),
    ("stop", "mine"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_name_that_two_runs_have_is_the_active_one(orch: Orch, words: tuple[str, ...]) -> None:
    """Earlier behavior: some took the newest without a line, some refused and named themselves as the way out."""
    here = lan.lan(*THREE, says=("[rank0]: hello",))
    active = launched(orch, here, "alpha", None)
    launched(orch, here, "beta", 0)
    ran = orch(*words, on=here)
    assert f"note: {active}, the active one of 2\n" in ran.err, ran
    assert ran.err.count("note: ") == 1
    assert "error: " not in ran.err.replace("error: run mine", "") or words[0] == "wait"


@pytest.mark.parametrize("words", [("report", "mine", "--json"), ("runs", "diff", "mine", "mine")], ids=" ".join)
def test_commands_that_read_records_alone_follow_the_same_rule(orch: Orch, words: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    older = launched(orch, here, "alpha", 0)
    newer = launched(orch, here, "beta", 0)
    for run_id in (older, newer):
        RunRecord(run_id).save_outcome("succeeded", "")
    ran = orch(*words, on=here)
    assert (ran.code, f"note: {newer}, the newer of 2\n" in ran.err) == (0, True), ran.err


def test_of_two_active_runs_stop_ends_none(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    both = [launched(orch, here, node, None) for node in ("alpha", "beta")]
    ran = orch("stop", "mine", on=here)
    assert (ran.code, set(here.containers)) == (2, {"alpha", "beta"})
    assert "2 active runs are named mine: " in ran.err
    assert all(run_id in ran.err for run_id in both)
