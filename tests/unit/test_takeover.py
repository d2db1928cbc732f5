"""A run of another computer: looked at without a question, and continued after one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from contract.environment import RESUME_FROM
from orchestrator.fleet.runs import load_plan
from orchestrator.fleet.runs.takeover import CLAIMS, NodeClaim, disagreement
from orchestrator.specs.plan_json import to_data
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.each_case import failures_of
from tests.unit.conftest import THREE, Orch, detached

SHA = lan.MANIFEST_SHA256
GRANTED = ("--yes", "--detach", "--nodes", ",".join(THREE), "--", "gpt2")
"""All that the plan of a node asks for."""


def left_behind(orch: Orch, state: Path, *, ends_with: int | None = 1) -> tuple[lan.Lan, str]:
    """A run whose record is lost: its nodes hold containers, claims and the plan."""
    here = lan.lan(*THREE, says=(lan.written(40),), ends_with=ends_with)
    run_id = detached(orch, here)
    plan = RunRecord(run_id).plan()
    assert plan is not None
    for node in here.nodes.values():
        claims = f"plan={'ab' * 32}\nattempt=0\nclaim={plan.claim}\nowner=eve@desk at 10:42\n"
        node.answers = {
            ("sh", "-c", load_plan._READ, "*"): (0, json.dumps(to_data(plan)), ""),
            ("sh", "-c", CLAIMS, "*"): (0, claims, ""),
            **node.answers,
        }
    lan.keep_checkpoint(here.nodes["alpha"], run_id, 40)
    shutil.rmtree(state)
    return here, run_id


def newest(here: lan.Lan) -> list[tuple[str, str]]:
    """Attempt and start of the newest container of each node."""
    made = [max(node.engine.made.values(), key=lambda one: int(one[0].labels["orch.attempt"])) for node in
            here.nodes.values()]  # fmt: skip
    return [(spec.labels["orch.attempt"], spec.environment[RESUME_FROM]) for spec, _ in made]


@pytest.mark.parametrize("words", [("status",), ("logs",), ("why",), ("stop", "--yes")])
def test_looking_and_stopping_need_no_question_and_say_whose_words_they_are(
    words: tuple[str, ...], orch: Orch, state: Path
) -> None:
    here, run_id = left_behind(orch, state, ends_with=None)
    ran = orch(words[0], run_id, *words[1:], on=here, says=None)
    assert (ran.code, ran.asked) == (0, ()), ran.err
    reported = "this computer has no record of the run" if words == ("status",) else "is not on record on this computer"
    assert reported in ran.err


def test_a_run_is_continued_after_one_question(orch: Orch, state: Path) -> None:
    here, run_id = left_behind(orch, state)
    refused = orch("resume", run_id, "--detach", on=here, says=False)
    assert (refused.code, len(refused.asked), RunRecord(run_id).journal.attempts) == (130, 1, ())
    assert "alpha        attempt 0 by eve@desk at 10:42, plan abababab" in refused.err
    ran = orch("resume", run_id, "--detach", on=here)
    assert ran.code == 0, ran.err
    assert newest(here) == [("1", f"40:{SHA}")] * 3
    journal = RunRecord(run_id).journal
    assert [(one.number, one.claim.why, one.claim.base) for one in journal.attempts] == [
        (0, "takeover", None), (1, "resume", 0),
    ]  # fmt: skip
    assert [one.identity for one in journal.lineage()] == [(40, SHA)]


def test_without_a_person_it_is_continued_only_where_the_nodes_agree(orch: Orch, state: Path) -> None:
    here, run_id = left_behind(orch, state)
    words = ("resume", run_id, *GRANTED)
    other = f"plan={'ab' * 32}\nattempt=3\nclaim=other\nowner=mallory@x\n"
    saved = here.nodes["beta"].answers["sh", "-c", CLAIMS, "*"]
    here.nodes["beta"].answers["sh", "-c", CLAIMS, "*"] = (0, other, "")
    ran = orch(*words, on=here, says=None)
    assert (ran.code, RunRecord(run_id).journal.attempts) == (3, ())
    assert "the nodes do not agree that attempt 0 is its newest" in ran.err
    here.nodes["beta"].answers["sh", "-c", CLAIMS, "*"] = saved
    assert orch(*words, on=here, says=None).code == 0
    assert newest(here) == [("1", f"40:{SHA}")] * 3


def test_lines_that_were_read_before_bring_their_checkpoints_on_record(orch: Orch, state: Path) -> None:
    here, run_id = left_behind(orch, state)
    assert orch("logs", run_id, on=here, says=None).code == 0
    assert RunRecord(run_id).names == THREE
    ran = orch("resume", run_id, *GRANTED, on=here, says=None)
    assert ran.code == 0, ran.err
    assert newest(here) == [("1", f"40:{SHA}")] * 3


def test_a_checkpoint_that_rank_0_has_not_reported_is_not_taken_over(orch: Orch, state: Path) -> None:
    here, run_id = left_behind(orch, state)
    lan.keep_checkpoint(here.nodes["gamma"], run_id, 9999)
    assert orch("resume", run_id, *GRANTED, on=here, says=None).code == 0
    assert newest(here) == [("1", f"40:{SHA}")] * 3


def test_the_agreement_of_nodes() -> None:
    plan = lan.plan()

    def check(*message: tuple[int | None, str, str], problem: str) -> None:
        claims = [NodeClaim(node="x", attempt=attempt, claim=claim, plan_sha256=sha) for attempt, claim, sha in message]
        assert problem in disagreement(plan, claims)
        assert bool(problem) == bool(disagreement(plan, claims))

    assert (plan.attempt, plan.claim) == (0, "")
    cases = [
        lambda: check(problem=""),
        lambda: check((0, "", "a"), (0, "", "a"), problem=""),
        lambda: check((0, "", "a"), (None, "", "a"), problem=""),
        lambda: check((0, "", "a"), (0, "", "b"), problem="different plans"),
        lambda: check((0, "", "a"), (1, "", "a"), problem="do not agree that attempt 0"),
        lambda: check((0, "", "a"), (0, "other", "a"), problem="do not agree that attempt 0"),
    ]
    assert failures_of(lambda case: case(), cases) == []
