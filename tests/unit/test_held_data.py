"""Data of runs on the nodes: which is there, who reads it, and that nothing in use is removed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.fleet.runs.claims import claim_on, release
from orchestrator.fleet.runs.held_data import HeldData, look_at_data, remove_data
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import ConflictError, EngineError
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import LaunchRequest
from orchestrator.state.journal_entries import ClaimEntry
from tests import lan
from tests.shelves import Shelves

OTHER = "fedcba9876543210"


class Holding(Shelves):
    """Machines with the data of two runs, one of which is under way, and what a launch has not copied to its end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in self.names:
            for held in (lan.DIGEST, f"{OTHER}.partial", f"{OTHER}.0102-1504-ab12.partial", "mine", f"{OTHER}.old"):
                (self.root(name) / "data" / held).mkdir(parents=True)
                (self.root(name) / "data" / held / "x.bin").write_bytes(bytes(9000))
        self.ended, self.active = self.launched("ended-1", OTHER), self.launched("going-1", lan.DIGEST)

    def launched(self, run_id: str, digest: str) -> Plan:
        request = LaunchRequest(project="orch", nodes=self.specs, data=lan.data(digest))
        identity = replace(lan.IDENTITY, run_id=run_id)
        plan = plan_launch(request, {name: lan.facts(name) for name in self.names}, identity)
        for name in self.names:
            (self.root(name) / "runs" / run_id).mkdir(parents=True)
            (self.root(name) / "runs" / run_id / "plan.json").write_text(to_json(plan))
        return plan

    def looked(self, *names: str) -> list[HeldData]:
        places = {name: place for name, place in self.places.items() if name in names}
        return [one for outcome in look_at_data(self.all, places) for one in outcome.value()]


@pytest.fixture
def here(tmp_path: Path) -> Holding:
    return Holding(tmp_path)


def test_each_folder_with_the_runs_that_read_it(here: Holding) -> None:
    first, own, second = here.looked("alpha")
    assert (first.name, first.runs, first.in_use, first.size_bytes >= 9000) == (lan.DIGEST, ("going-1",), (), True)
    assert (own.name, own.runs) == (f"{OTHER}.0102-1504-ab12.partial", ()), "its run has no folder any more"
    assert (second.name, second.runs) == (f"{OTHER}.partial", ("ended-1",)), "a folder of the user is not listed"


def test_a_run_that_another_node_shows_keeps_its_data(here: Holding) -> None:
    """A cluster's runs are shown by its compute nodes, and its data lies on the login node."""
    beta = here.nodes["beta"]
    beta.engine.start(beta.engine.create(here.active.nodes[1].container))
    (used, _, free) = here.looked("alpha")
    assert (used.in_use, free.in_use) == (("going-1",), ())
    with pytest.raises(ConflictError, match=rf"run going-1 reads {lan.DIGEST} on alpha; nothing was removed"):
        remove_data(here.all, here.places, [used, free])
    assert (here.root("alpha") / "data" / free.name).is_dir()
    (only,) = remove_data(here.all, here.places, [free])
    only.value()
    left = {path.name for path in (here.root("alpha") / "data").iterdir()}
    assert left == {lan.DIGEST, f"{OTHER}.0102-1504-ab12.partial", "mine", f"{OTHER}.old"}
    assert (here.root("beta") / "data" / free.name).is_dir()


def test_an_active_run_counts_whatever_its_age(here: Holding) -> None:
    for number in range(25):
        here.launched(f"short-{number}", lan.DIGEST)
    os.utime(here.root("alpha") / "runs/going-1", (1, 1))
    beta = here.nodes["beta"]
    beta.engine.start(beta.engine.create(here.active.nodes[1].container))
    (used, *_) = here.looked("alpha")
    assert used.in_use == ("going-1",)


def test_a_run_that_began_after_the_question_keeps_its_data(here: Holding) -> None:
    (free, *_) = here.looked("alpha")
    beta = here.nodes["beta"]
    beta.engine.start(beta.engine.create(here.active.nodes[1].container))
    with pytest.raises(ConflictError, match="nothing was removed"):
        remove_data(here.all, here.places, [free])


@pytest.fixture
def launching(here: Holding) -> ClaimEntry:
    """A launch that has claimed its nodes and copies data to alpha; beta has it."""
    claim = ClaimEntry(attempt=0, id="0" * 32, base=None, nodes=here.names, why="launch")
    claim_on(here.all, here.places, "going-1", claim)
    (here.root("alpha") / "data" / lan.DIGEST).rename(here.root("alpha") / "data" / f"{lan.DIGEST}.going-1.partial")
    (here.root("alpha") / "data" / f"{lan.DIGEST}.ended-1.partial").mkdir()
    return claim


def test_data_of_a_launch_that_still_copies_stays(here: Holding, launching: ClaimEntry) -> None:
    used = {one.name for one in here.looked("alpha") if one.in_use}
    assert used == {f"{lan.DIGEST}.going-1.partial"}, "what another launch has left is free"
    (ready,) = [one for one in here.looked("beta") if one.name == lan.DIGEST]
    assert (ready.in_use, ready.launching) == (("going-1",), ("going-1",))
    with pytest.raises(ConflictError, match=rf"going-1 is being launched, with {lan.DIGEST} on beta; nothing was rem"):
        remove_data(here.all, here.places, [ready])
    release(here.all, here.places, "going-1", launching)
    assert not any(one.in_use for one in here.looked(*here.names)), "the launch was undone"


@pytest.mark.parametrize("over", ["a sign of the run", "its containers", "a day"])
def test_a_launch_is_over(here: Holding, launching: ClaimEntry, over: str) -> None:
    runs = [here.root(name) / "runs/going-1" for name in here.names]
    for run in runs:
        if over == "a sign of the run":
            (run / "resources-0.jsonl").write_text("{}")
        elif over == "a day":
            os.utime(run / "attempts/0", (1e9, 1e9))
            os.utime(run / "plan.json", (1e9, 1e9))
    if over == "its containers":
        beta = here.nodes["beta"].engine
        beta.finish(beta.create(here.active.nodes[1].container), 1)
    assert not any(one.in_use for one in here.looked(*here.names))


def test_a_resume_that_still_copies_has_its_data(here: Holding, launching: ClaimEntry) -> None:
    beta = here.nodes["beta"].engine
    beta.finish(beta.create(here.active.nodes[1].container), 1)
    (here.root("beta") / "runs/going-1/checkpoints").mkdir()
    claim_on(here.all, here.places, "going-1", replace(launching, attempt=1, id="1" * 32, base=0, why="resume"))
    (ready,) = [one for one in here.looked("beta") if one.name == lan.DIGEST]
    assert ready.launching == ("going-1",)


def test_read_only_data_is_removed(here: Holding) -> None:
    folder = here.root("alpha") / "data" / lan.DIGEST
    (folder / "x.bin").chmod(0o444)
    folder.chmod(0o555)
    for outcome in remove_data(here.all, here.places, here.looked("alpha")):
        outcome.value()
    assert not folder.exists()


def test_nothing_is_printed_where_the_runs_are_not_known(here: Holding) -> None:
    here.nodes["alpha"].engine.failures["containers"] = EngineError("no answer", node="alpha")
    outcome, *_ = look_at_data(here.all, here.places)
    assert isinstance(outcome.error, EngineError)
