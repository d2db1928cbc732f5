"""Checkpoint from which a run continues, and what is brought to rank 0's node for it, the best one included."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.fleet.checkpoints.newest import Newest, bring_newest, holding, newest_anywhere, steps_lost
from orchestrator.fleet.checkpoints.replicate import replicate
from orchestrator.nodes.interface import Progress
from orchestrator.specs.errors import ConfigError, NodeUnreachableError, OrchError, PreflightError, RunFailedError
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.shelves import RUN, Shelves, flip, mark_best, steps_in, write_checkpoint


@pytest.fixture
def here(tmp_path: Path) -> Shelves:
    return Shelves(tmp_path / "machines")


class Reported:
    """Messages about a node, each text once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, node: str, progress: Progress) -> None:
        if (line := f"{node}: {progress.text}") not in self.lines:
            self.lines.append(line)


def best_in(root: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((root / "runs" / RUN / "best.json").read_text())
    return content


def looked(here: Shelves) -> Newest:
    return newest_anywhere(here.all, here.places, RUN)


def test_rank_0_goes_where_the_newest_sound_one_is(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    write_checkpoint(here.root("gamma"), 40)
    flip(write_checkpoint(here.root("beta"), 80) / "state.pt")
    facts = {name: lan.facts(name, newest_checkpoint=80) for name in here.names}
    newest, reported = looked(here), Reported()
    held = holding(facts, newest)
    assert {name: own.newest_checkpoint for name, own in held.items()} == {"alpha": 40, "beta": None, "gamma": 40}
    bring_newest(here.nodes, here.plan, newest, reported)
    assert reported.lines == [
        "beta: checkpoint of step 80 not used: state.pt has changed since it was written (sha256 differs)",
        "alpha: resuming from step 40, intact on alpha, gamma",
    ]
    assert (steps_in(here.root("alpha")), steps_in(here.root("beta"))) == ([40], [80])


def test_a_truncated_newest_is_named_too(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    (write_checkpoint(here.root("alpha"), 80) / "state.pt").write_bytes(b"x")
    newest = looked(here)
    assert (newest.step, [(one.step, one.problem) for one in newest.damaged]) == (
        40, [(80, "state.pt has 1 bytes instead of 3000")],
    )  # fmt: skip


def test_it_is_brought_to_a_master_without_it(here: Shelves) -> None:
    write_checkpoint(here.root("beta"), 40)
    write_checkpoint(here.root("beta"), 80)
    reported = Reported()
    bring_newest(here.nodes, here.plan, looked(here), reported)
    assert (steps_in(here.root("alpha")), steps_in(here.root("gamma"))) == ([80], [])
    assert reported.lines == ["alpha: step-00000080 from beta", "alpha: step-00000080: checking what came"]


def test_older_ones_and_those_of_others_are_not_read(here: Shelves) -> None:
    for step in (40, 80):
        write_checkpoint(here.root("alpha"), step)
    write_checkpoint(here.root("beta"), 40)
    assert looked(here).step == 80
    hashed = [call for node in here.all for call in node.calls if call[0] == "sha256sum"]
    assert len(hashed) == 1


def test_a_source_that_breaks_off_is_followed_by_the_next(here: Shelves) -> None:
    for name in ("beta", "gamma"):
        write_checkpoint(here.root(name), 40)
    newest, reported = looked(here), Reported()
    here.nodes["beta"].answers["cat", "*"] = NodeUnreachableError("the connection broke", node="beta")
    bring_newest(here.nodes, here.plan, newest, reported)
    assert steps_in(here.root("alpha")) == [40]
    assert "beta: the connection broke" in reported.lines
    shutil.rmtree(here.root("alpha") / "runs")
    flip(Path(newest.copies[1].folder) / "state.pt")
    with pytest.raises(RunFailedError, match="not what its manifest says"):
        bring_newest(here.nodes, here.plan, newest, reported)
    assert steps_in(here.root("alpha")) == []


def test_the_best_goes_along(here: Shelves) -> None:
    for step in (40, 80):
        write_checkpoint(here.root("beta"), step)
    mark_best(here.root("beta"), 40)
    bring_newest(here.nodes, here.plan, looked(here), Reported())
    assert steps_in(here.root("alpha")) == [40, 80]
    assert best_in(here.root("alpha")) == {"step": 40, "checkpoint": "step-00000040"}


def test_a_best_one_that_is_damaged_stays_behind(here: Shelves) -> None:
    for step in (40, 80):
        write_checkpoint(here.root("beta"), step)
    mark_best(here.root("beta"), 40)
    flip(here.root("beta") / "runs" / RUN / "checkpoints/step-00000040/state.pt")
    reported = Reported()
    bring_newest(here.nodes, here.plan, looked(here), reported)
    assert steps_in(here.root("alpha")) == [80]
    assert any(line.startswith("alpha: best.json was not copied from beta: ") for line in reported.lines)


def test_the_best_is_replicated_and_follows_when_another_is_best(here: Shelves) -> None:
    for step in (40, 80):
        write_checkpoint(here.root("alpha"), step)
    mark_best(here.root("alpha"), 40)
    assert replicate(here.all, here.plan).holders == ("beta",)
    assert steps_in(here.root("beta")) == [40, 80]
    assert best_in(here.root("beta")) == best_in(here.root("alpha"))
    before = len(here.nodes["beta"].calls)
    replicate(here.all, here.plan)
    assert len(here.nodes["beta"].calls) == before + 1
    mark_best(here.root("alpha"), 80)
    replicate(here.all, here.plan)
    assert best_in(here.root("beta")) == {"step": 80, "checkpoint": "step-00000080"}


# ── What would be lost ───────────────────────────────────────────────────────────────────────────────────────────────


def record(*steps: int) -> RunRecord:
    saved = RunRecord(RUN)
    with saved.open_log("alpha") as log:
        for step in steps:
            text = lan.event("checkpoint", step=step, verified=True).partition(": ")[2]
            line = RunLine(time=lan.moment(step), node="alpha", node_rank=0, rank=0, text=text)
            log.add(line)
    return saved


def refused(*asked: object) -> OrchError:
    with pytest.raises(OrchError) as raised:
        steps_lost(*asked)  # type: ignore[arg-type]  # as its callers give them
    return raised.value


def test_nothing_is_lost(here: Shelves) -> None:
    assert steps_lost(record(), looked(here), ("gpt2",)) == ""
    write_checkpoint(here.root("beta"), 80)
    assert steps_lost(record(40, 80), looked(here), ("gpt2",)) == ""


def test_some_steps_are_lost(here: Shelves) -> None:
    write_checkpoint(here.root("beta"), 40)
    lost = steps_lost(record(40, 80), looked(here), ("gpt2",))
    assert lost == "the checkpoint of step 80 was on alpha alone: continuing from step 40"


def test_all_of_them_are_not_lost_unasked(here: Shelves) -> None:
    here.nodes["alpha"].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node="alpha")
    error = refused(record(40), looked(here), ("gpt2", "--epochs", "2"))
    assert isinstance(error, PreflightError)
    assert str(error) == "the run's checkpoint of step 40 was on alpha, and no node that answers has one"
    assert error.hint == (
        "alpha did not answer; once it does, try again; or "
        f"with one that you have pulled: orch checkpoints push {RUN}; "
        f"to start from the beginning: orch resume {RUN} -- gpt2 --epochs 2 --from-scratch"
    )
    for words in (("gpt2", "--from-scratch"), ("gpt2", "--resume", "never"), ("gpt2", "--resume=never")):
        assert steps_lost(record(40), looked(here), words) == ""


def test_a_supervisor_is_not_held_up_by_a_checkpoint_that_only_a_node_knows(here: Shelves) -> None:
    """A supervisor has read all reports: where there was none, the run has no checkpoint. A person is asked."""
    write_checkpoint(here.root("beta"), 40)
    newest = newest_anywhere(here.all, here.places, RUN, lineage=())
    assert (newest.step, [one.step for one in newest.in_question]) == (None, [40])
    assert steps_lost(record(), newest, ("gpt2",), unattended=True) == ""
    assert "step 40 is not on record" in str(refused(record(), newest, ("gpt2",)).problems)
    with pytest.raises(ConfigError, match="that is on record on this computer is left"):
        steps_lost(record(20), newest, ("gpt2",), unattended=True)


def test_where_all_are_damaged_each_is_named(here: Shelves) -> None:
    flip(write_checkpoint(here.root("alpha"), 40) / "state.pt")
    flip(write_checkpoint(here.root("beta"), 20) / "state.pt")
    newest = looked(here)
    error = refused(record(), newest, ("gpt2",))
    assert isinstance(error, ConfigError)
    assert [problem.partition(":")[0] for problem in error.problems] == ["alpha", "beta"]
    facts = {"alpha": lan.facts("alpha", newest_checkpoint=40)}
    assert holding(facts, newest) == facts
    reported = Reported()
    bring_newest(here.nodes, here.plan, newest, reported)
    assert len(reported.lines) == 2
