"""Faults made for real on five machines: `orch doctor` finds each, names its node, and gives the line to fix it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Figure
from tests.lab.conftest import Done, Orch
from tests.lab.faults.lan import Fault, Lan
from tests.lab.faults.table import BATCHES

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

ALL = [(batch, fault) for batch, faults in BATCHES.items() for fault in faults]
ONLY = {"a slow link": ("--only", "reach")}
"""Options of the doctor where the link itself would make the rest slow."""


@dataclass(frozen=True)
class Seen:
    """One look at the fleet while a batch of faults was there."""

    findings: list[dict[str, Any]]
    code: int
    seconds: float

    def of(self, id: str, node: str) -> list[dict[str, Any]]:
        return [one for one in self.findings if one["id"] == id and node in one["node"].split(", ")]


LookAt = Callable[[str], Seen]


def look(lan: Lan, *words: str) -> Seen:
    done: Done = lan.doctor(*words)
    assert done.code in (0, 4), done.err
    return Seen(done.json["findings"], done.code, done.seconds)


@pytest.fixture(scope="module")
def seen(orch: Orch, figure: Figure) -> LookAt:
    """Look at a batch: all its faults made, one look, all of them undone. Once, however many tests ask for it."""
    looks: dict[str, Seen] = {}

    def look_at(batch: str) -> Seen:
        if batch not in looks:
            lan = Lan(orch)
            assert orch("clean").code == 0, "containers of other tests' runs are no faults of this batch"
            with ExitStack() as stack:
                for fault in BATCHES[batch]:
                    stack.enter_context(fault.make(lan))
                looks[batch] = look(lan, *ONLY.get(batch, ()))
            figure(f"orch doctor, {len(BATCHES[batch])} faults ({batch}): {looks[batch].seconds:.1f} s")
        return looks[batch]

    return look_at


def test_a_fleet_in_health_has_no_finding(orch: Orch, figure: Figure) -> None:
    found = look(Lan(orch))
    figure(f"orch doctor, five nodes in health: {found.seconds:.1f} s")
    assert (found.findings, found.code) == ([], 0)


@pytest.mark.parametrize(("batch", "fault"), ALL, ids=[f"{batch}: {fault.what}" for batch, fault in ALL])
def test_a_fault_is_found_and_named_with_its_fix(seen: LookAt, batch: str, fault: Fault) -> None:
    found = seen(batch)
    reported = found.of(fault.finds, fault.node)
    assert reported, [f"{one['id']} {one['node']}" for one in found.findings]
    (finding,) = reported
    assert fault.fix in finding["fix"]
    assert fault.says in finding["message"]


@pytest.mark.parametrize("batch", BATCHES)
def test_nothing_else_is_found(seen: LookAt, batch: str) -> None:
    """A false alarm costs as much trust as a fault that was missed."""
    found, faults = seen(batch), BATCHES[batch]
    follows = {id for fault in faults for id in fault.follows}
    wanted = [one for fault in faults for one in found.of(fault.finds, fault.node)]
    rest = [one for one in found.findings if one not in wanted and one["id"] not in follows]
    assert [(one["id"], one["node"], one["message"]) for one in rest] == []


def test_at_the_end_the_fleet_is_in_health_again(orch: Orch) -> None:
    assert look(Lan(orch)).findings == []
