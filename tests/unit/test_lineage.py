"""The checkpoint that a run resumes from is one that the record knows: what a node shows beyond it is named, asked
about, and not used by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.environment import RESUME_FROM
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached

SHA, OTHER = lan.MANIFEST_SHA256, "ef" * 32


def ended(orch: Orch, *says: str, holds: int | None = 40) -> tuple[lan.Lan, str]:
    """A run that has ended, and whose lines are on record."""
    here = lan.lan(*THREE, says=says, ends_with=1)
    run_id = detached(orch, here)
    orch("logs", run_id, on=here)
    if holds is not None:
        lan.keep_checkpoint(here.nodes["alpha"], run_id, holds)
    return here, run_id


def starts(here: lan.Lan) -> set[str]:
    """The checkpoint that the newest attempt is given, on its nodes."""
    made = [spec for node in here.nodes.values() for spec, _ in node.engine.made.values()]
    newest = max(int(spec.labels["orch.attempt"]) for spec in made)
    return {spec.environment[RESUME_FROM] for spec in made if spec.labels["orch.attempt"] == str(newest)}


def master(run_id: str) -> str:
    plan = RunRecord(run_id).plan()
    assert plan is not None
    return plan.master


def test_a_run_resumes_from_the_checkpoint_that_it_has_reported(orch: Orch) -> None:
    here, run_id = ended(orch, lan.written(40))
    assert starts(here) == {"none"}
    assert [one.identity for one in RunRecord(run_id).journal.lineage()] == [(40, SHA)]
    assert orch("resume", run_id, "--yes", "--detach", on=here).code == 0
    assert starts(here) == {f"40:{SHA}"}


def test_a_line_that_no_one_collected_before_the_resume_counts(orch: Orch) -> None:
    """The supervisor died; the containers still have their lines."""
    here = lan.lan(*THREE, says=(lan.written(40),), ends_with=1)
    run_id = detached(orch, here)
    lan.keep_checkpoint(here.nodes["alpha"], run_id, 40)
    assert orch("resume", run_id, "--yes", "--detach", on=here).code == 0
    assert starts(here) == {f"40:{SHA}"}


@pytest.mark.parametrize(("node", "step", "sha256"), [("beta", 9999, SHA), ("gamma", 41, OTHER), ("beta", 40, OTHER)])
def test_a_checkpoint_that_no_rank_has_reported_is_not_used_unasked(
    orch: Orch, node: str, step: int, sha256: str
) -> None:
    here, run_id = ended(orch, lan.written(40))
    lan.keep_checkpoint(here.nodes[node], run_id, step, manifest_sha256=sha256)
    ran = orch("resume", run_id, "--yes", "--detach", on=here)
    assert ran.code == 0
    assert (starts(here), master(run_id)) == ({f"40:{SHA}"}, "alpha")
    message = f"{node}: step {step} is not on record: not used; to use it: orch resume {run_id} --checkpoint"
    assert f"{message} {step}:{sha256[:8]}" in ran.err


@pytest.mark.parametrize("answer", [True, False])
def test_a_person_may_choose_it(orch: Orch, answer: bool) -> None:
    here, run_id = ended(orch, lan.written(40))
    lan.keep_checkpoint(here.nodes["beta"], run_id, 60, manifest_sha256=OTHER)
    ran = orch("resume", run_id, "--detach", on=here, says=lambda question: answer or "Resume from" not in question)
    assert ran.asked[0] == "Resume from step 60, which beta holds and no rank has reported, not from step 40?"
    assert starts(here) == {f"60:{OTHER}" if answer else f"40:{SHA}"}
    assert master(run_id) == ("beta" if answer else "alpha")
    known = [one.identity for one in RunRecord(run_id).journal.lineage()]
    assert known == ([(60, OTHER), (40, SHA)] if answer else [(40, SHA)])


def test_a_checkpoint_on_the_command_line_is_used_and_from_then_on_on_record(orch: Orch) -> None:
    here, run_id = ended(orch, lan.written(40))
    lan.keep_checkpoint(here.nodes["beta"], run_id, 60, manifest_sha256=OTHER)
    wrong = orch("resume", run_id, "--yes", "--checkpoint", "60:cdcd", on=here)
    assert (wrong.code, starts(here)) == (3, {"none"})
    assert "no intact checkpoint 60:cdcd" in wrong.err
    assert "there is 60:efefefef, on beta" in wrong.err
    assert orch("resume", run_id, "--yes", "--detach", "--checkpoint", "60:efef", on=here).code == 0
    assert starts(here) == {f"60:{OTHER}"}
    assert RunRecord(run_id).journal.lineage()[0].identity == (60, OTHER)


def test_a_run_does_not_begin_again_where_only_unreported_checkpoints_are_left(orch: Orch) -> None:
    here, run_id = ended(orch, holds=None)
    lan.keep_checkpoint(here.nodes["beta"], run_id, 60)
    ran = orch("resume", run_id, "--yes", "--detach", on=here)
    assert (ran.code, starts(here)) == (3, {"none"})
    assert "no checkpoint of run" in ran.err
    assert "beta: step 60 is not on record" in ran.err


@pytest.mark.parametrize("command", [(), ("--", "python", "train.py")])
def test_a_run_without_a_checkpoint_says_so_before_it_begins_again(orch: Orch, command: tuple[str, ...]) -> None:
    Path("train.py").write_text("print(1)\n")
    here = lan.lan(*THREE, ends_with=1)
    run_id = json_data(orch("launch", "--detach", "--json", *command, on=here).out)["run_id"]
    note = f"no checkpoint of run {run_id} is known: it starts from the beginning"
    refused = orch("resume", run_id, "--detach", on=here, says=False)
    assert (refused.code, refused.asked) == (130, ("Start it from the beginning?",))
    assert note in refused.err
    assert RunRecord(run_id).journal.current.number == 0  # type: ignore[union-attr]  # it was launched
    agreed = orch("resume", run_id, "--detach", "--yes", on=here)
    assert (agreed.code, note in agreed.err) == (0, True)
    assert ("unless your script loads" in agreed.err) == bool(command)


def test_one_with_a_checkpoint_or_that_is_to_begin_again_does_not(orch: Orch) -> None:
    here, run_id = ended(orch, lan.written(40))
    for words in ((), ("--", "gpt2", "--from-scratch")):
        ran = orch("resume", run_id, "--detach", *words, on=here, says=False)
        assert (ran.asked, "from the beginning" in ran.err) == (("Start it?",), False)


def test_the_branch_that_a_run_has_left_is_not_taken_again(orch: Orch) -> None:
    """The run went back from step 60 to 40; gamma, which was off, still has step 60."""
    here, run_id = ended(orch, lan.written(40), lan.written(60))
    for node in here.nodes.values():
        node.engine.says = ()  # type: ignore[attr-defined]  # an `Actor`
    assert orch("resume", run_id, "--yes", "--detach", "--checkpoint", "40", on=here).code == 0
    assert starts(here) == {f"40:{SHA}"}
    lan.keep_checkpoint(here.nodes["gamma"], run_id, 60, manifest_sha256=SHA)
    ran = orch("resume", run_id, "--yes", "--detach", on=here)
    assert ran.code == 0
    assert starts(here) == {f"40:{SHA}"}
    assert "step 60 is not on record" in ran.err


@pytest.mark.parametrize(
    ("name", "line"),
    [("beta", lan.written(9999, rank=1)), ("beta", lan.written(9999, rank=0)), ("alpha", "[rank0]: step 9999")],
)
def test_only_the_node_that_leads_the_run_reports_checkpoints(orch: Orch, name: str, line: str) -> None:
    here = lan.lan(*THREE, says=(lan.written(40),), ends_with=None)
    here.nodes[name].engine.says = (line,)  # type: ignore[attr-defined]  # an `Actor`
    run_id = detached(orch, here)
    orch("logs", run_id, on=here)
    steps = [one.step for one in RunRecord(run_id).journal.lineage()]
    assert steps == ([] if name == "alpha" else [40])


def test_a_container_that_the_record_does_not_know_reports_nothing(orch: Orch) -> None:
    here, run_id = ended(orch, lan.written(40))
    engine = here.nodes["alpha"].engine
    spec = next(iter(engine.made.values()))[0]
    planted = engine.create(spec.__class__(**{**vars(spec), "name": "planted"}))
    engine.write(planted, lan.moment(50), lan.written(9999))
    orch("logs", run_id, on=here)
    assert [one.step for one in RunRecord(run_id).journal.lineage()] == [40]
