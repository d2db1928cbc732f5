"""Lines that are proposed name the inventory that `-i` gave: pasted without it, they would use another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.report import Invocation, invocation, with_inventory
from tests import lan
from tests.unit.conftest import INVENTORY, THREE, Orch

COMMANDS = ("build", "launch", "logs")


@pytest.mark.parametrize(
    ("line", "pasted"),
    [
        ("orch build", "orch -i 'my hosts.ini' build"),
        ("→ orch build   orch logs", "→ orch -i 'my hosts.ini' build   orch -i 'my hosts.ini' logs"),
        ("sudo x; or orch logs 1", "sudo x; or orch -i 'my hosts.ini' logs 1"),
        ("orch build -i other.yaml", "orch build -i other.yaml"),
        ("orch explain image.missing", "orch explain image.missing"),
        ("~/orch build", "~/orch build"),
        ("orch then asks Ansible", "orch then asks Ansible"),
    ],
)
def test_commands_get_the_inventory(line: str, pasted: str) -> None:
    with invocation(Invocation(commands=COMMANDS)):
        assert with_inventory(line) == line
    with invocation(Invocation(commands=COMMANDS, inventory=Path("my hosts.ini"))):
        assert with_inventory(line) == pasted


def test_hints_of_a_command_name_it(orch: Orch) -> None:
    Path("other.yaml").write_text(INVENTORY)
    for words in (("runs", "-i", "other.yaml"), ("-i", "other.yaml", "runs")):
        assert orch(*words, on=lan.lan(*THREE)).err == "no runs yet\n  → orch -i other.yaml launch\n"
    assert orch("runs", on=lan.lan(*THREE)).err == "no runs yet\n  → orch launch\n"


def test_a_launch_names_the_file_without_the_node(orch: Orch) -> None:
    Path("other.yaml").write_text(INVENTORY)
    ran = orch("launch", "--yes", "-n", "room=lab", "-i", "other.yaml", on=lan.lan(*THREE))
    assert (ran.code, "error: not in other.yaml: room=lab\n" in ran.err) == (3, True)


def test_fixes_of_doctor_name_it(orch: Orch) -> None:
    Path("other.yaml").write_text(INVENTORY)
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.held.clear()
    assert "fix:   orch -i other.yaml build\n" in orch("doctor", "-i", "other.yaml", on=here).out
