"""Consent to changes of machines: `--yes` grants it, `--json` does not, no terminal refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from contract.data_check import DAMAGED, SUMS
from orchestrator.cli.consent import agreed, answering_by, chosen
from orchestrator.fleet.runs.launch import launch
from orchestrator.lab.state import lab_folder
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.processes.engine import ProcessEngine
from orchestrator.specs.errors import UsageError
from tests import lan
from tests.shelves import RUN, Shelves, steps_in, write_checkpoint
from tests.unit.conftest import THREE, Orch, detached
from tests.unit.test_firewall_command import Ufw
from tests.unit.test_setup import fleet
from tests.unit.test_uninstall import left_behind

Scene = tuple[Any, tuple[str, ...], Callable[[], object]]
"""A LAN, the words of a command that would change it, and what shows whether it has been changed."""


def idle(orch: Orch, tmp_path: Path) -> Scene:
    here = lan.lan(*THREE)
    return here, (), lambda: here.containers


def running(orch: Orch, tmp_path: Path) -> Scene:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    return (
        here,
        (run_id,),
        lambda: [made.status for node in here.nodes.values() for _, made in node.engine.made.values()],
    )


def another(orch: Orch, tmp_path: Path) -> Scene:
    """A run of another user."""
    here = lan.lan(*THREE, ends_with=None)
    launch(here.nodes, lan.plan(THREE, project="here"))
    return here, (lan.IDENTITY.run_id,), lambda: here.containers


def ended(orch: Orch, tmp_path: Path) -> Scene:
    here = lan.lan(*THREE)
    run_id = detached(orch, here)
    return here, (run_id,), lambda: here.containers


def bare(orch: Orch, tmp_path: Path) -> Scene:
    here = fleet()
    return here, (), lambda: list(here.commands)


def walled(orch: Orch, tmp_path: Path) -> Scene:
    machines = {name: Ufw() for name in THREE}
    here = lan.Lan({name: FakeNode(name, address=lan.address_of(name), programs=ufw) for name, ufw in machines.items()})
    return here, ("--nodes", "beta"), lambda: machines["beta"].ran


def opened(orch: Orch, tmp_path: Path) -> Scene:
    here, words, changes = walled(orch, tmp_path)
    assert orch("firewall", "apply", "--yes", on=here).code == 0
    return here, words, lambda: list(changes())  # type: ignore[call-overload]  # a list of commands


def unbuilt(orch: Orch, tmp_path: Path) -> Scene:
    here = lan.lan(*THREE)
    for node in here.nodes.values():
        node.engine.held.clear()
    return here, (), lambda: [node.engine.held for node in here.nodes.values()]


def faulty(orch: Orch, tmp_path: Path) -> Scene:
    here = unbuilt(orch, tmp_path)[0]
    return here, ("--fix",), lambda: [node.engine.held for node in here.nodes.values()]


def shelved(orch: Orch, tmp_path: Path) -> Scene:
    here = shelves(tmp_path)
    for step in (20, 40):
        write_checkpoint(here.root("alpha"), step, age_s=100 - step)
    return here, (RUN, "--keep", "1"), lambda: steps_in(here.root("alpha"))


def with_data(orch: Orch, tmp_path: Path) -> Scene:
    here = shelves(tmp_path)
    data = here.root("alpha") / "data"
    (data / lan.DIGEST).mkdir(parents=True)
    return here, (), lambda: [one.name for one in data.iterdir()]


def with_damaged_data(orch: Orch, tmp_path: Path) -> Scene:
    here, words, changes = with_data(orch, tmp_path)
    sums = here.root("alpha") / "data" / SUMS
    sums.mkdir()
    (sums / f"{lan.DIGEST}{DAMAGED}").write_text('{"a.bin": ["a.bin", "content", 0, 1, 0]}')
    return here, words, changes


def shelves(tmp_path: Path) -> Shelves:
    """Machines with disks, and their inventory in this folder."""
    here = Shelves(tmp_path / "machines")
    nodes = "".join(f"  {one.name}: {{address: {one.address}, workspace: {one.workspace}}}\n" for one in here.specs)
    Path("inventory.yaml").write_text(f"project: orch\nnodes:\n{nodes}")
    return here


def lab_with_a_model(orch: Orch, tmp_path: Path) -> Scene:
    """Processes of this computer: their disks are folders of the lab's."""
    assert orch("lab", "up", "--nodes", "3", "--engine", "process").code == 0
    disk = lab_folder() / "nodes" / "alpha" / "lab"
    for step in (20, 40):
        write_checkpoint(disk, step)
    here = lan.Lan({name: LocalNode(name, engine=ProcessEngine(name)) for name in THREE})  # type: ignore[arg-type]  # real ones
    return here, (), lambda: steps_in(disk)


def data_of_another_workload(orch: Orch, tmp_path: Path) -> Scene:
    held, text = Path("Data/manifest.json"), Path("text.txt")
    held.parent.mkdir()
    held.write_text('{"kind": "images", "format": 1}')
    text.write_text("Había una vez. " * 1000)
    return lan.lan(*THREE), ("--text", str(text)), held.read_text


def uninstalled(orch: Orch, tmp_path: Path) -> Scene:
    here = left_behind(orch, tmp_path)
    return here, ("--nodes", "3"), lambda: sorted(str(path) for path in tmp_path.glob("*/orch/**/*"))


SCENES: dict[tuple[str, ...], Callable[[Orch, Path], Scene]] = {
    ("launch",): idle,
    ("resume",): ended,
    ("runs", "rerun"): ended,
    ("restart",): running,
    ("stop",): another,
    ("build",): unbuilt,
    ("setup",): bare,
    ("firewall", "apply"): walled,
    ("firewall", "remove"): opened,
    ("doctor",): faulty,
    ("checkpoints", "prune"): shelved,
    ("data", "rm"): with_data,
    ("data", "repair"): with_damaged_data,
    ("lab", "down"): lab_with_a_model,
    ("prepare",): data_of_another_workload,
    ("uninstall",): uninstalled,
}
"""Scenes in which a command has something to change. `trust` and `init` ask a person about a key: tests/contract."""

WAYS = [(command, json) for command in SCENES for json in ((), ("--json",)) if not (json and command == ("prepare",))]
"""`prepare` makes data and has no state to report."""
each_way = pytest.mark.parametrize(("command", "as_json"), WAYS, ids=lambda words: " ".join(words) or "words")


def test_every_command_that_asks_is_in_the_table(all_options: dict[tuple[str, ...], set[str]]) -> None:
    assert {path for path, names in all_options.items() if "--yes" in names} == {*SCENES, ("trust",), ("init",)}
    assert all("-y" in names for names in all_options.values() if "--yes" in names)


@each_way
def test_without_a_terminal_nothing_is_changed_unless_it_is_granted(
    orch: Orch, tmp_path: Path, command: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    here, words, changes = SCENES[command](orch, tmp_path)
    before = json.dumps(changes(), default=str)
    ran = orch(*command, *words, *as_json, on=here, says=None)
    assert (ran.code, json.dumps(changes(), default=str)) == (2, before), ran.err
    assert "there is no terminal to ask on\n  → add --yes to agree" in ran.err
    if as_json:
        assert ran.out == ""


@each_way
def test_an_answer_of_no_is_obeyed(
    orch: Orch, tmp_path: Path, command: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    here, words, changes = SCENES[command](orch, tmp_path)
    before = json.dumps(changes(), default=str)
    ran = orch(*command, *words, *as_json, on=here, says=False)
    assert ran.asked, ran.err
    assert json.dumps(changes(), default=str) == before


@pytest.mark.parametrize("command", SCENES, ids=" ".join)
def test_ctrl_c_at_a_question_changes_nothing_and_has_one_message(
    orch: Orch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    def interrupted(_question: str) -> bool:
        raise typer.Abort

    here, words, changes = SCENES[command](orch, tmp_path)
    before = json.dumps(changes(), default=str)
    ran = orch(*command, *words, on=here, says=interrupted)
    assert (ran.code, json.dumps(changes(), default=str)) == (130, before), ran.err
    last = ran.err.rpartition("\n\n")[2].strip().splitlines()  # below the line of the question
    assert len(last) == 1, ran.err
    assert last[0].startswith(("interrupted: ", "nothing was ")), ran.err


def test_a_lab_that_holds_models_says_which_and_how_to_keep_them(orch: Orch, tmp_path: Path) -> None:
    here, _, steps = lab_with_a_model(orch, tmp_path)
    asked = orch("lab", "down", on=here, says=False)
    assert (asked.code, steps()) == (130, [20, 40])
    assert f"1 run with checkpoints on its machines: {RUN}\n" in asked.err
    assert f"→ to keep one on this computer: orch checkpoints pull {RUN}\n" in asked.err
    assert asked.asked == ("Remove the lab and everything on its machines?",)
    gone = orch("lab", "down", "--yes", on=here, says=None)
    assert (gone.code, lab_folder().exists()) == (0, False)


def test_a_lab_without_models_goes_without_a_question(orch: Orch) -> None:
    assert orch("lab", "up", "--nodes", "3", "--engine", "process").code == 0
    here = lan.Lan({name: LocalNode(name, engine=ProcessEngine(name)) for name in THREE})  # type: ignore[arg-type]  # real ones
    gone = orch("lab", "down", on=here, says=None)
    assert (gone.code, gone.asked, lab_folder().exists()) == (0, (), False)


def test_a_machine_of_the_lab_that_does_not_answer_may_hold_one(orch: Orch) -> None:
    assert orch("lab", "up", "--nodes", "1", "--engine", "process").code == 0
    gone = orch("lab", "down", on=lan.Lan({"alpha": lan.silent("alpha")}), says=None)
    assert (gone.code, lab_folder().exists()) == (2, True)
    assert "whether alpha holds checkpoints is unknown: no answer" in gone.err


def test_it_is_granted_without_a_question() -> None:
    assert agreed("Do it?", yes=True)
    with answering_by(lambda _question, default: default):
        assert (agreed("Do it?", yes=False), agreed("Do it?", yes=False, default=True)) == (False, True)
    with pytest.raises(UsageError, match="no terminal"):
        agreed("Do it?", yes=False)


@pytest.mark.parametrize(
    ("answers", "names"),
    [
        ((True,), "a b c"),
        ((False,), ""),
        (("a,c",), "a c"),
        (("!b",), "a c"),
        (("2",), "a b"),
        (("aa", "b,", "[c-a]", "b"), "b"),  # not understood, and asked again
    ],
)
def test_a_question_about_several_can_be_answered_by_names(
    answers: tuple[bool | str, ...], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left = list(answers)
    with answering_by(lambda _question, _default: left.pop(0)):
        assert " ".join(chosen("These?", ("a", "b", "c"), yes=False)) == names
    assert left == []
    assert capsys.readouterr().err.count("not understood: ") == len(answers) - 1
    assert chosen("These?", ("a", "b"), yes=True) == ("a", "b")
