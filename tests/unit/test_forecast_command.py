"""`orch launch --forecast`: measured, shown, and nothing left on the nodes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.fleet.runs.stop import _REMOVE
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.errors import UsageError
from orchestrator.specs.program import Program
from orchestrator.store.run_record import recorded_runs
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch

REPORTED = (event("forecast", **lan.forecast()), event("done", step=0))


def removed(here: lan.Lan) -> dict[str, list[Sequence[str]]]:
    """List what was removed from each node's disk: folder of the project, run id."""
    return {
        name: [call[4:] for call in node.calls if call[:3] == ("sh", "-c", _REMOVE)]
        for name, node in here.nodes.items()
    }


def test_it_measures_shows_and_leaves_nothing_but_its_record(orch: Orch) -> None:
    here = lan.lan(*THREE, says=REPORTED)
    ran = orch("launch", "--forecast", "--", "gpt2", "--batch-size", "2", on=here)
    assert ran.code == 0
    assert "▶  int4" in ran.err
    assert ran.err.endswith(
        "✓ forecast 1,216 tokens/s (1.9x alpha alone)\n  nothing was trained, and nothing is left on the nodes\n"
    )
    assert here.containers == {}
    (record,) = recorded_runs()
    plan, known = record.plan(), record.forecast()
    assert plan is not None
    assert known is not None
    assert (plan.command, known.sync) == (("gpt2", "--batch-size", "2", "--forecast"), "int4")
    assert removed(here) == {part.node: [(part.folder, plan.run_id)] for part in plan.nodes}


def test_the_containers_run_the_trainers_word(orch: Orch) -> None:
    here = lan.lan(*THREE)
    plan = json_data(orch("launch", "--forecast", "--dry-run", "--json", on=here).out)
    assert [part["container"]["command"][-4:] for part in plan["nodes"]] == [
        ["-m", "trainer", "gpt2", "--forecast"]
    ] * 3
    assert here.containers == {}


def test_for_programs_it_is_json(orch: Orch) -> None:
    ran = orch("launch", "--forecast", "--json", on=lan.lan(*THREE, says=REPORTED))
    data = json_data(ran.out)
    assert (ran.code, data["state"], data["forecast"]["sync"]) == (0, "succeeded", "int4")


def test_a_trainer_that_knows_no_forecast_is_named(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(event("done", step=0),))
    ran = orch("launch", "--forecast", on=here)
    assert (ran.code, here.containers) == (1, {})
    assert "the trainer ended without a forecast: is its image older than this orch?\n  → orch build" in ran.err


def test_a_measurement_that_fails_leaves_nothing_either(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: no data",), ends_with=3)
    ran = orch("launch", "--forecast", on=here)
    assert (ran.code, here.containers) == (1, {})
    assert "failed: rank 1 on beta: exit code 3" in ran.err
    assert "--resume" not in ran.err
    assert orch("logs", recorded_runs()[0].run_id, "--nodes", "beta", on=here).out == "[1 beta] no data\n"


def test_a_folder_that_cannot_be_removed_is_reported(orch: Orch) -> None:
    here = lan.lan(*THREE, says=REPORTED)
    answers = here.nodes["gamma"].answers
    here.nodes["gamma"].answers = {("sh", "-c", _REMOVE, "*"): (1, "", "Permission denied"), **answers}
    ran = orch("launch", "--forecast", on=here)
    assert ran.code == 0
    assert "gamma" in ran.err
    assert "Permission denied" in ran.err


class Interrupted(lan.Actor):
    """Container that is being followed when Ctrl-C is pressed."""

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        if follow:
            os.kill(os.getpid(), signal.SIGINT)
        yield from super().logs(container, follow=follow, since=since, tail=tail)


def test_ctrl_c_ends_it_everywhere(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    acting = here.nodes["beta"].engine
    here.nodes["beta"].engine = Interrupted("beta", held=acting.held, description=acting.description, ends_with=None)
    ran = orch("launch", "--forecast", on=here)
    assert (ran.code, ran.err.splitlines()[-1]) == (130, "the measurement was stopped; nothing is left on the nodes")
    assert here.containers == {}
    assert all(removed(here).values())


@pytest.mark.parametrize("command", [("python", "train.py"), ("train.py",), ("python3", "-m", "mine")])
def test_scripts_of_ones_own_are_refused_and_why(command: tuple[str, ...], orch: Orch) -> None:
    with pytest.raises(UsageError, match=r"--forecast measures workloads of the trainer, and `.*` is your own script"):
        Program.of(command).measuring()
    ran = orch("launch", "--forecast", "--workdir", ".", "--", *command, on=lan.lan(*THREE))
    assert ran.code == 2
    assert "→ orch launch --forecast -- gpt2" in ran.err


@pytest.mark.parametrize("other", [("--detach",), ("--resume", "r1")])
def test_what_makes_no_sense_with_it_is_refused(other: tuple[str, ...], orch: Orch) -> None:
    ran = orch("launch", "--forecast", *other, on=lan.lan(*THREE))
    assert ran.code == 2
    assert f"it does not go with {other[0]}" in ran.err


def test_the_word_is_printed_once() -> None:
    assert Program.of(("gpt2", "--forecast")).measuring() == ("gpt2", "--forecast")
    assert Program.of(("custom", "--module", "m.py:build")).measuring()[-1] == "--forecast"


def test_only_what_a_launch_made_is_removed(tmp_path: Path) -> None:
    """The node's own shell."""
    for name in ("mine", "other"):
        (tmp_path / "runs" / name / "code").mkdir(parents=True)
    (tmp_path / "runs/mine/plan.json").touch()
    for run_id in ("mine", "other", "none"):
        subprocess.run(("sh", "-c", _REMOVE, "sh", str(tmp_path), run_id), check=True)
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["other"]
