"""Every exit code, from a whole command line on machines that exist in memory alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS, main
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.seam import LogLine
from orchestrator.specs.errors import DeadlineError, EngineError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from tests import lan
from tests.lan import event

THREE = lan.NAMES[:3]
INVENTORY = "nodes:\n" + "".join(f"  {name}: {{address: {lan.address_of(name)}}}\n" for name in THREE)
DONE = ("[rank0]: hello", event("step", step=3, loss=1.5), event("done", step=3))


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Orch = Callable[..., Ran]


@pytest.fixture
def orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Orch:
    """`orch` in a folder with an inventory of three machines, reached as the lan given."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("inventory.yaml").write_text(INVENTORY)

    def run(*argv: str, on: lan.Lan | None = None) -> Ran:
        with reached(on or lan.Lan()):
            code = main(argv)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Ran(code, said.out, said.err)

    return run


@contextmanager
def reached(here: lan.Lan) -> Iterator[None]:
    with connecting_by(here.connect):
        yield


def test_0_a_run_that_succeeds(orch: Orch) -> None:
    ran = orch("launch", "--nodes", "3", "--name", "first", on=lan.lan(*THREE, says=DONE))
    assert ran.code == 0
    assert "✓ run first-" in ran.err
    assert "done at step 3" in ran.err
    assert "[0 alpha] hello" in ran.out.splitlines()
    assert "@orch" not in ran.out


def test_0_a_run_as_json_is_json_alone(orch: Orch) -> None:
    ran = orch("launch", "--json", on=lan.lan(*THREE, says=DONE))
    answer = json.loads(ran.out)
    assert (ran.code, answer["state"], answer["failure"], answer["last_event"]["step"]) == (0, "succeeded", None, 3)


def test_1_the_training_failed(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: no data here \x1b[2J",), ends_with=3)
    ran = orch("launch", on=here)
    assert ran.code == 1
    assert "failed: rank 1 on beta: exit code 3 (exit code 3)" in ran.err
    assert "    no data here \n" in ran.err
    assert "→ orch logs " in ran.err


def test_1_as_json(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: no data here",), ends_with=3)
    ran = orch("launch", "--json", on=here)
    failure = json.loads(ran.out)["failure"]
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
        (("launch", "--label", "room=lab"), "no node in inventory.yaml has room=lab"),
        (("launch", "--master", "omega"), "--master omega is not among the nodes"),
        (("launch", "--workdir", "nowhere", "--", "python", "x.py"), "nowhere is not a folder"),
        (("launch", "--data", "nowhere"), "nowhere is not a folder"),
        (("launch", "--resume", "nope"), "no plan of a run nope"),
        (("launch", "-i", "nowhere.yaml"), "no nowhere.yaml"),
        (("status",), "no node knows of a run"),
        (("status", "nope"), "no run nope on any node"),
        (("logs", "nope"), "no run nope on any node"),
        (("stop",), "no node knows of a run"),
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


def silent(name: str, error: type[NodeUnreachableError | DeadlineError] = NodeUnreachableError) -> FakeNode:
    """A machine that gives no answer."""
    node = FakeNode(
        name,
        address=lan.address_of(name),
        answers={("sh", "*"): error("no answer in 5 s", node=name, hint="is it on?")},
    )
    for method in ("facts", "containers"):
        node.engine.failures[method] = NodeUnreachableError("no answer in 5 s", node=name, hint="is it on?")
    return node


def test_4_a_node_out_of_reach_and_nothing_is_started(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = silent("beta")
    ran = orch("launch", on=here)
    assert (ran.code, ran.out, here.containers) == (4, "", {})
    assert "error: beta: no answer in 5 s\n  → is it on?\n" in ran.err
    assert "error: nothing was started" in ran.err


def test_4_a_check_refuses(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.held.clear()
    ran = orch("launch", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "✗ gamma does not have the image of this project [image.missing]\n  → orch build" in ran.err


def test_4_an_engine_refuses(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.failures["start"] = EngineError("could not select device driver", node="gamma")
    ran = orch("launch", on=here)
    assert (ran.code, here.containers) == (4, {})
    assert "error: gamma: could not select device driver" in ran.err


def detached(orch: Orch, here: lan.Lan, name: str = "first") -> str:
    ran = orch("launch", "--detach", "--json", "--name", name, on=here)
    assert ran.code == 0
    return str(json.loads(ran.out)["run_id"])


def test_5_stopped_on_some_nodes_only(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    here.nodes["beta"].engine.failures["stop"] = EngineError("no answer", node="beta")
    ran = orch("stop", "--json", on=here)
    assert ran.code == 5
    assert json.loads(ran.out) == {"run_id": run_id, "stopped": ["alpha", "gamma"], "checkpoint_step": None}
    assert f"run {run_id} may still run on beta" in ran.err


def test_5_a_node_that_may_hold_a_rank_does_not_answer(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    detached(orch, here)
    here.nodes["beta"].engine.failures["containers"] = NodeUnreachableError("no answer in 5 s", node="beta")
    status = orch("status", "--json", on=here)
    assert (status.code, json.loads(status.out)["state"]) == (5, "lost")
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
    """Somebody presses Ctrl-C while they read its log."""

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        if follow:
            os.kill(os.getpid(), signal.SIGINT)
        return super().logs(container, follow=follow, since=since, tail=tail)


def test_130_ctrl_c_leaves_the_run_going_and_says_how_to_come_back(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    engine = here.nodes["alpha"].engine
    here.nodes["alpha"].engine = Watched("alpha", held=engine.held, description=engine.description, ends_with=None)
    ran = orch("launch", "--name", "mine", on=here)
    assert ran.code == 130
    assert "goes on without you\n  → orch logs -f mine-" in ran.err
    assert sorted(here.containers) == sorted(THREE)

    ran = orch("logs", "-f", on=here)
    assert ran.code == 130
    assert "goes on\n  → orch stop mine-" in ran.err


def test_130_anywhere_else(orch: Orch) -> None:
    def interrupted(_spec: NodeSpec) -> FakeNode:
        raise KeyboardInterrupt

    with connecting_by(interrupted):
        assert main(["status"]) == 130


def test_a_run_from_launch_to_clean(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(*DONE, event("checkpoint", step=3, verified=True)), ends_with=None)
    run_id = detached(orch, here)

    status = orch("status", "--json", on=here)
    assert (status.code, json.loads(status.out)["state"]) == (0, "running")
    assert "run " + run_id in orch("status", on=here).out
    listed = json.loads(orch("runs", "--json", on=here).out)
    assert [run["run_id"] for run in listed["runs"]] == [run_id]
    assert run_id in orch("runs", on=here).out

    logs = orch("logs", run_id[:6], "--tail", "9", on=here)
    assert logs.out.splitlines() == [f"[{rank} {name:<5}] hello" for rank, name in enumerate(THREE)]
    lines = [json.loads(line) for line in orch("logs", "--json", "--node", "beta", on=here).out.splitlines()]
    assert [line.get("event", {}).get("kind") for line in lines] == [None, "step", "done", "checkpoint"]

    stopped = orch("stop", on=here)
    assert (stopped.code, here.containers) == (0, {})
    assert f"✓ run {run_id} stopped, checkpoint of step 3\n  → orch launch --resume {run_id}" in stopped.err
    assert f"{run_id}  stopped" in orch("runs", on=here).out
    assert orch("logs", run_id, "--node", "alpha", on=here).out == "[0 alpha] hello\n"
    assert json.loads(orch("clean", "--json", on=here).out) == {"removed": {name: [] for name in THREE}}


def test_a_resumed_run_is_the_next_attempt_of_the_same(orch: Orch) -> None:
    here = lan.lan(*THREE, says=DONE)
    ran = orch("launch", "--json", "--nodes", "alpha,beta", "--", "gpt2", "--epochs", "7", on=here)
    run_id = json.loads(ran.out)["run_id"]
    again = orch("launch", "--resume", run_id, "--dry-run", "--json", on=here)
    plan = json.loads(again.out)
    assert (plan["run_id"], plan["attempt"], plan["command"]) == (run_id, 1, ["gpt2", "--epochs", "7"])
    assert [part["node"] for part in plan["nodes"]] == ["alpha", "beta"]


def test_dry_run_asks_and_starts_nothing(orch: Orch) -> None:
    here = lan.lan(*THREE)
    ran = orch("launch", "--dry-run", on=here)
    assert (ran.code, here.containers) == (0, {})
    assert ran.out.count("docker -H ssh://") == 3
    assert lan.IMAGE.id in ran.out


def test_dry_run_of_machines_out_of_reach(orch: Orch) -> None:
    here = lan.Lan({name: silent(name) for name in THREE})
    ran = orch("launch", "--dry-run", on=here)
    assert ran.code == 0
    assert "# note: not asked, so the inventory's word is taken: alpha, beta, gamma" in ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(orch: Orch, command: str) -> None:
    ran = orch(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: orch {command}")
    assert f"orch {command}" in ran.out.split("\n", 1)[1]


def test_help_lists_every_command(orch: Orch) -> None:
    ran = orch("--help")
    assert ran.code == 0
    for command, summary in COMMANDS.items():
        assert f"  {command}" in ran.out
        assert summary in " ".join(ran.out.split())


def _fresh(program: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """A process of its own: what is imported here says nothing there."""
    return subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)])
def test_help_is_quick(argv: list[str]) -> None:
    """It loads nothing that only work needs; measured: fabric, docker and rich take half a second."""
    heavy = ("fabric", "paramiko", "docker", "rich", "torch")
    program = (
        f"import sys; from orchestrator.cli import main; code = main({argv}); "
        f"sys.stderr.write(' '.join(name for name in {heavy} if name in sys.modules)); sys.exit(code)"
    )
    ran = _fresh(program)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_dry_run_of_real_addresses_that_nobody_answers(tmp_path: Path) -> None:
    """Five addresses that no packet comes back from (RFC 5737): asked at once, each for 5 s at most."""
    nodes = "".join(f"  n{number}: {{address: 192.0.2.{number}}}\n" for number in range(1, 6))
    (tmp_path / "inventory.yaml").write_text(f"nodes:\n{nodes}")
    argv = ["launch", "-i", str(tmp_path / "inventory.yaml"), "--dry-run", "--nodes", "5"]
    began = time.monotonic()
    ran = _fresh(f"import sys; from orchestrator.cli import main; sys.exit(main({argv}))")
    assert (ran.returncode, ran.stdout.count("docker -H ssh://")) == (0, 5)
    assert time.monotonic() - began < 12


def test_an_error_of_a_node_does_not_move_the_cursor(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].answers[("sh", "-c", "*")] = (1, "", "\x1b[2J\x1b[31mPermission denied")
    ran = orch("launch", on=here)
    assert ran.code == 4
    assert "Permission denied" in ran.err
    assert "\x1b" not in ran.err
