"""Every exit code, from a whole command line on machines that exist in memory alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.errors import DeadlineError, EngineError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached

DONE = ("[rank0]: hello", event("step", step=3, loss=1.5), event("done", step=3))


def test_0_a_run_that_succeeds(orch: Orch) -> None:
    ran = orch("launch", "--nodes", "3", "--name", "first", on=lan.lan(*THREE, says=DONE))
    assert ran.code == 0
    assert "✓ run first-" in ran.err
    assert "succeeded at step 3" in ran.err
    assert any(line.endswith("] hello") for line in ran.out.splitlines())
    assert "@orch" not in ran.out


def test_0_a_run_as_json_is_json_alone(orch: Orch) -> None:
    ran = orch("launch", "--json", on=lan.lan(*THREE, says=DONE))
    answer = json_data(ran.out)
    assert (ran.code, answer["state"], answer["failure"], answer["last_event"]["step"]) == (0, "succeeded", None, 3)


def test_1_the_training_failed(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: no data here \x1b[2J",), ends_with=3)
    ran = orch("launch", on=here)
    assert ran.code == 1
    assert "failed: rank 1 on beta: exit code 3\n" in ran.err
    assert "    no data here \n" in ran.err
    assert "→ orch logs " in ran.err


def test_1_as_json(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: no data here",), ends_with=3)
    ran = orch("launch", "--json", on=here)
    failure = json_data(ran.out)["failure"]
    assert (ran.code, failure["node"], failure["rank"], failure["lines"]) == (1, "beta", 1, ["no data here"])


@pytest.mark.parametrize(
    "argv",
    [
        ("launch", "--no-such-option"),
        ("launch", "--nodes", "0"),
        ("launch", "--name", "Not Good"),
        ("launch", "--mount", "relative:/x"),
        ("launch", "--mount", "/a:/b:rx"),
        ("launch", "--env", "NOVALUE"),
        ("launch", "--profile", "tpu"),
        ("launch", "--engine", "podman"),
        ("launch", "--", "python", "-c", "print(1)"),
        ("launch", "--", "python"),
        ("launch", "--workdir", ".", "--", "gpt2"),
        ("logs", "--grep", "("),
        ("logs", "--since", "yesterday"),
        ("logs", "--tail", "-1"),
        ("stop", "--timeout", "-1"),
        ("status", "one", "two"),
        ("no-such-command",),
        ("--no-such-option",),
    ],
)
def test_2_usage(orch: Orch, argv: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    ran = orch(*argv, on=here)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err
    assert here.containers == {}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("launch", "--nodes", "9"), "asked for 9 nodes"),
        (("launch", "--nodes", "omega"), "not in inventory.yaml: omega"),
        (("launch", "-n", "room=lab"), "not in inventory.yaml: room=lab"),
        (("launch", "--master", "omega"), "--master omega is not among the nodes"),
        (("launch", "--workdir", "nowhere", "--", "python", "x.py"), "nowhere is not a folder"),
        (("launch", "--data", "nowhere"), "nowhere is not a folder"),
        (("launch", "--resume", "nope"), "no plan of run nope"),
        (("launch", "-i", "nowhere.yaml"), "no nowhere.yaml"),
        (("status",), "no run on any node"),
        (("status", "nope"), "no run nope on any node"),
        (("logs", "nope"), "no run nope on any node"),
        (("stop",), "no run on any node"),
    ],
)
def test_3_configuration(orch: Orch, argv: tuple[str, ...], says: str) -> None:
    ran = orch(*argv, on=lan.lan(*THREE))
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("error: ")
    assert says in ran.err


def test_3_every_problem_of_the_inventory_at_once(orch: Orch) -> None:
    Path("inventory.yaml").write_text("nodes:\n  alpha: {address: 10.0.0.1, devize: cpu, port: 0}\n")
    ran = orch("status")
    assert ran.code == 3
    assert "inventory.yaml:2: " in ran.err
    assert "'device'" in ran.err
    assert "port" in ran.err


def test_3_a_state_folder_that_is_a_file(orch: Orch, state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_text("")
    ran = orch("launch", on=lan.lan(*THREE, says=DONE))
    assert ran.code == 3
    assert str(state) in ran.err


def test_4_a_node_out_of_reach_and_nothing_is_started(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = lan.silent("beta")
    ran = orch("launch", on=here)
    assert (ran.code, ran.out, here.containers) == (4, "", {})
    assert "error: beta: no answer in 5 s\n  → is it on?\n" in ran.err
    assert "error: nothing was started" in ran.err


def test_4_a_check_refuses(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.held.clear()
    ran = orch("launch", "--image", "lab/mine:1", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "gamma: the image lab/mine:1 is missing [image.missing]\n  → orch build --image lab/mine:1" in ran.err


def test_4_an_engine_refuses(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.failures["start"] = EngineError("could not select device driver", node="gamma")
    ran = orch("launch", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "error: gamma: could not select device driver" in ran.err


def test_5_stopped_on_some_nodes_only(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    here.nodes["beta"].engine.failures["stop"] = EngineError("no answer", node="beta")
    ran = orch("stop", "--json", on=here)
    assert ran.code == 5
    assert json_data(ran.out) == {"run_id": run_id, "stopped": ["alpha", "gamma"], "checkpoint_step": None}
    assert f"run {run_id} stopped on alpha, gamma (no checkpoint), but may still run on beta" in ran.err
    left = f"the run has ended, but its container on beta runs\n  → orch stop {run_id}\n"
    assert left in orch("status", on=here).err
    assert left in orch("runs", on=here).err


def test_5_a_node_that_may_hold_a_rank_does_not_answer(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    detached(orch, here)
    here.nodes["beta"].engine.failures["containers"] = NodeUnreachableError("no answer in 5 s", node="beta")
    status = orch("status", "--json", on=here)
    data = json_data(status.out)
    reported = [(one["code"], one["node"]) for one in data["conditions"]]
    assert (status.code, data["state"], reported) == (5, "running", [("node_silent", "beta")])
    assert orch("stop", on=here).code == 5


def test_5_cleaned_in_part(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE)
    detached(orch, here)
    here.nodes["beta"].engine.failures["remove"] = EngineError("device busy", node="beta")
    ran = orch("clean", on=here)
    assert ran.code == 5
    assert "error: 1 of 3 nodes could not be cleaned" in ran.err


def test_6_another_run_holds_a_node(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    ran = orch("launch", on=here)
    assert ran.code == 6
    assert f"error: alpha: run {run_id} by " in ran.err
    assert "holds this node since " in ran.err
    assert f"  → wait for it, or: orch stop {run_id}" in ran.err


def test_7_no_answer_in_time(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].engine.failures["create"] = DeadlineError("no answer in 120 s", node="beta")
    ran = orch("launch", on=here)
    assert (ran.code, here.containers) == (7, {})
    assert "error: beta: no answer in 120 s" in ran.err


@dataclass
class Watched(lan.Actor):
    """Container whose log is being read when Ctrl-C is pressed."""

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        if follow:
            # Where the signal comes between open() and its `with`, Python leaves the file to the garbage collector.
            reader = threading.main_thread().ident or 0
            deadline = time.monotonic() + 10
            while Path(sys._current_frames()[reader].f_code.co_filename).name not in {"follow.py", "threading.py"}:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        return super().logs(container, follow=follow, since=since, tail=tail)


def test_130_ctrl_c_leaves_the_run_going_and_says_how_to_come_back(
    orch: Orch, supervisors: list[tuple[str, ...]]
) -> None:
    here = lan.lan(*THREE, ends_with=None)
    engine = here.nodes["alpha"].engine
    here.nodes["alpha"].engine = Watched("alpha", held=engine.held, description=engine.description, ends_with=None)
    ran = orch("launch", "--name", "mine", on=here)
    assert ran.code == 130
    assert "continues without you\n  supervised in the background" in ran.err
    assert "→ orch logs -f mine-" in ran.err
    assert sorted(here.containers) == sorted(THREE)
    (supervisor,) = supervisors
    assert supervisor[3:5] == ("orchestrator", "supervise")

    ran = orch("logs", "-f", on=here)
    assert ran.code == 130
    assert "continues\n  → orch stop mine-" in ran.err


def test_130_anywhere_else(orch: Orch) -> None:
    def interrupted(_spec: NodeSpec) -> FakeNode:
        raise KeyboardInterrupt

    with connecting_by(interrupted):
        assert main(["status"]) == 130


def test_nodes_with_the_same_error_share_its_lines(orch: Orch) -> None:
    here = lan.Lan({name: lan.silent(name) for name in THREE})
    ran = orch("launch", "--yes", on=here)
    assert ran.code == 4
    assert "error: alpha, beta, gamma: no answer in 5 s\n  → is it on?\n" in ran.err
    assert ran.err.count("no answer in 5 s") == 1


@pytest.mark.parametrize("words", [(), ("--detach",)], ids=["followed", "detached"])
def test_0_a_run_that_had_ended_before_is_not_called_stopped(orch: Orch, words: tuple[str, ...]) -> None:
    """Twice: the second time no node shows it."""
    here = lan.lan(*THREE, says=DONE)
    assert orch("launch", "--name", "first", *words, on=here).code == 0
    ran = orch("stop", "first", on=here)
    assert (ran.code, here.containers) == (0, {})
    assert "had ended before: succeeded" in ran.err
    assert "stopp" not in ran.err
    again = orch("stop", "first", on=here)
    assert again.code == 0
    assert "had ended before: succeeded, no checkpoint\n" in again.err
    assert json_data(orch("stop", "first", "--json", on=here).out)["stopped"] == []
    assert orch("runs", "--json", on=here).out.count("succeeded") == 1


def test_a_run_with_a_longer_name_is_not_meant(orch: Orch) -> None:
    """The second stop of the first run finds the other one on the nodes alone."""
    here = lan.lan(*THREE, ends_with=None)
    for name, node in (("first", "alpha"), ("first2", "beta")):
        assert orch("launch", "--detach", "--name", name, "--nodes", node, on=here).code == 0
    assert orch("stop", "first", on=here).code == 0
    again = orch("stop", "first", on=here)
    assert (again.code, "had ended before: stopped" in again.err) == (0, True), again.err
    assert len(here.containers) == 1
    assert orch("exec", "first", "--", "ls", on=here).code == 3
