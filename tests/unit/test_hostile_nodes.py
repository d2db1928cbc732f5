"""Lies of nodes, and accidents that look like one, against every command that acts on a run.

A node can keep itself out of a run. It cannot choose the checkpoint, hide the run from `stop`, or have a container of
the run removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from contract.environment import RESUME_FROM
from contract.event_lines import encode_event
from contract.events import DataDamaged
from orchestrator.fleet.runs.claims import CLAIM, TAKEN
from orchestrator.fleet.supervise.replan import NodePool, claim_next, start_next_attempt
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.each_case import failures_of
from tests.unit.conftest import THREE, Orch, detached

SHA, OTHER = lan.MANIFEST_SHA256, "ef" * 32
RIGHT = f"40:{SHA}"


@dataclass
class Attacked:
    """A run of three nodes that has reported step 40, and what a node lies about."""

    orch: Orch
    here: lan.Lan
    run_id: str
    plan: Plan
    ours: set[str]
    """Its containers."""

    @classmethod
    def begin(cls, orch: Orch, lie: Callable[[Attacked], object]) -> Attacked:
        here = lan.lan(*THREE, ends_with=None)
        run_id = detached(orch, here)
        plan = RunRecord(run_id).plan()
        assert plan is not None
        made = cls(orch, here, run_id, plan, {id for node in here.nodes.values() for id in node.engine.made})
        for node in here.nodes.values():  # no copy of a checkpoint arrives
            node.answers = {("cat", "--", "*"): (1, "", "gone"), ("rm", "-rf", "--", "*"): (0, "", ""), **node.answers}
        made.say("alpha", lan.written(40))
        lan.keep_checkpoint(here.nodes["alpha"], run_id, 40)
        orch("logs", run_id, on=here)
        lie(made)
        return made

    def say(self, name: str, text: str) -> None:
        engine = self.here.nodes[name].engine
        engine.write(next(iter(engine.made)), lan.moment(5), text)

    def plant(self, name: str, *, attempt: int, claim: str) -> None:
        """An ended container with these labels."""
        node = self.here.nodes[name]
        spec = next(iter(node.engine.made.values()))[0]
        labels = {**spec.labels, "orch.attempt": str(attempt), "orch.claim": claim}
        id = node.engine.create(replace(spec, name="planted", labels=labels))
        node.engine.write(id, lan.moment(6), lan.written(9999))
        node.engine.finish(id, 1)

    def finish(self) -> None:
        for node in self.here.nodes.values():
            for id, (_, facts) in list(node.engine.made.items()):
                if facts.status == "running":
                    node.engine.finish(id, 1)

    def running(self) -> dict[str, str]:
        """Id of the container that runs on each node."""
        return {
            name: id
            for name, node in self.here.nodes.items()
            for id, (_, facts) in node.engine.made.items()
            if facts.status == "running"
        }

    def starts(self) -> set[str]:
        """The checkpoint that the attempts after the first were given."""
        made = [spec for node in self.here.nodes.values() for spec, _ in node.engine.made.values()]
        return {spec.environment[RESUME_FROM] for spec in made if spec.name == "orch-run"} - {"none"}

    def continue_(self, *names: str, why: str) -> None:
        """The next attempt, as a supervisor starts it."""
        pool = NodePool(nodes=self.here.nodes, request=lan.request(THREE, min_nodes=1))
        try:
            claim = claim_next(pool, self.plan, names, why)  # type: ignore[arg-type]  # one of its words
            start_next_attempt(pool, self.plan, claim, lambda _node, _progress: None)
        except OrchError:
            assert self.starts() == set()


# ── The lies ──


def takes_claim(made: Attacked) -> None:
    answers = made.here.nodes["beta"].answers
    made.here.nodes["beta"].answers = {
        ("sh", "-c", CLAIM, "*"): (TAKEN, "attempt 7 by eve@desk", ""),
        **answers,
    }


def reports(made: Attacked) -> None:
    made.say("beta", lan.written(9999, rank=0))
    lan.keep_checkpoint(made.here.nodes["beta"], made.run_id, 9999)


def cuts_record(made: Attacked) -> None:
    with (RunRecord(made.run_id).folder / "record.jsonl").open("a") as file:
        file.write('{"kind": "checkpoint", "attempt": 0, "step": 9999, "sha')


def sets_clock_back(made: Attacked) -> None:
    """The computer's clock is an hour back: the same checkpoint is on record with an earlier time than the launch."""
    file = RunRecord(made.run_id).folder / "record.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["at"] = datetime.now(UTC).timestamp() - 3600
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def leaves_branch(made: Attacked) -> None:
    """A node that was off has step 60 of a branch that the run has left: it is on record, of an attempt beside."""
    record = RunRecord(made.run_id)
    claim = record.claim(made.plan, THREE, "replan")
    record.save_plan(replace(made.plan, attempt=claim.attempt, claim=claim.id), {"alpha": "gone"})
    text = lan.written(60, OTHER).partition(": ")[2]
    line = RunLine(time=lan.moment(7), node="alpha", node_rank=0, rank=0, text=text)
    record.note_report(line, "gone")
    record.forget_intent(claim.attempt, "the run went back")
    lan.keep_checkpoint(made.here.nodes["gamma"], made.run_id, 60, manifest_sha256=OTHER)


LIES: dict[str, Callable[[Attacked], object]] = {
    "a later attempt": lambda made: made.plant("beta", attempt=7, claim="x"),
    "a copied claim": lambda made: made.plant("beta", attempt=0, claim=made.plan.claim),
    "checkpoint 9999": lambda made: lan.keep_checkpoint(made.here.nodes["gamma"], made.run_id, 9999),
    "another hash": lambda made: lan.keep_checkpoint(made.here.nodes["gamma"], made.run_id, 40, manifest_sha256=OTHER),
    "an abandoned branch": leaves_branch,
    "code 17 alone": takes_claim,
    "a report of rank 1": reports,
    "a record that is cut": cuts_record,
    "a clock an hour back": sets_clock_back,
    "old checkpoints": lambda made: lan.keep_checkpoint(made.here.nodes["gamma"], made.run_id, 30),
}


# ── The commands ──


def status(made: Attacked) -> None:
    ran = made.orch("status", made.run_id, "--json", on=made.here)
    shown = json.loads(ran.out)["data"]
    assert ran.code == 0
    assert (shown["state"], shown["attempt"]) == ("running", 0)
    assert set(made.running().values()) == made.ours


def stop(made: Attacked) -> None:
    ran = made.orch("stop", made.run_id, "--yes", on=made.here)
    assert (ran.code, made.running()) == (0, {}), ran.err
    assert made.here.containers == {}
    assert RunRecord(made.run_id).outcome() == ("stopped", "checkpoint of step 40")


def resume(made: Attacked) -> None:
    refused = made.orch("resume", made.run_id, "--yes", "--detach", on=made.here)
    assert (refused.code, set(made.running().values())) == (6, made.ours), refused.err
    made.finish()
    made.orch("resume", made.run_id, "--yes", "--detach", on=made.here)
    assert made.starts() <= {RIGHT}


def restart(made: Attacked) -> None:
    ran = made.orch("restart", made.run_id, "--yes", "--detach", on=made.here)
    assert made.starts() <= {RIGHT}, ran.err
    assert not made.ours & set(made.running().values())


def replan(made: Attacked) -> None:
    made.continue_("alpha", "beta", why="replan")
    assert made.starts() == {RIGHT}


def rejoin(made: Attacked) -> None:
    made.continue_(*THREE, why="add_nodes")
    assert made.starts() == {RIGHT}


def pull(made: Attacked) -> None:
    made.orch("pull", made.run_id, on=made.here)
    assert set(made.running().values()) == made.ours


def supervise(made: Attacked) -> None:
    made.finish()
    ran = made.orch("supervise", made.run_id, on=made.here)
    assert (ran.code, made.starts()) == (1, set()), ran.err


def adopt(made: Attacked) -> None:
    ran = made.orch("adopt", made.run_id, "--detach", on=made.here)
    assert ran.code == 0, ran.err
    assert set(made.running().values()) == made.ours


COMMANDS = (status, stop, resume, restart, replan, rejoin, pull, supervise, adopt)


@pytest.mark.parametrize("lie", LIES)
def test_no_command_obeys(lie: str, orch: Orch) -> None:
    def check(command: Callable[[Attacked], None]) -> None:
        command(Attacked.begin(orch, LIES[lie]))

    assert failures_of(check, COMMANDS) == []


def test_with_a_record_that_was_deleted_the_run_is_asked_about(orch: Orch) -> None:
    """The folder is there and its plans too: they give no permission."""
    made = Attacked.begin(orch, lambda made: (RunRecord(made.run_id).folder / "record.jsonl").unlink())
    assert made.orch("status", made.run_id, on=made.here).code == 0
    refused = made.orch("resume", made.run_id, "--yes", "--detach", on=made.here, says=None)
    assert refused.code != 0
    assert set(made.running().values()) == made.ours
    assert made.orch("stop", made.run_id, "--yes", on=made.here).code == 0
    assert made.here.containers == {}


def test_a_node_reports_damaged_data_of_its_own_and_up_to_a_limit(orch: Orch) -> None:
    """Names of other nodes, a file twice, 300 files: its own entries, a hundred of them, with short texts."""
    record = RunRecord(detached(orch, lan.lan(*THREE, ends_with=None)))
    container = record.journal.containers["beta"]
    for number in (0, 0, *range(300)):
        event = DataDamaged(node="alpha", t=1.0, data="x" * 5000, file=f"{number}", wrong="y", offset=-(2**62))
        line = RunLine(time=lan.moment(7), node="beta", node_rank=1, rank=None, text=encode_event(event))
        record.note_report(line, container)
        record.note_report(line, "container of another run")
    damaged = record.journal.damaged
    assert {one.node for one in damaged} == {"beta"}
    assert [one.file for one in damaged] == [str(number) for number in range(100)]
    assert {len(one.data) for one in damaged} == {1000}
