"""Ctrl-C: every command says what continues and what has stopped, and exits with 130."""

from __future__ import annotations

import pytest

from orchestrator.cli import main
from orchestrator.cli.interrupted import AFTER_INTERRUPT, after_interrupt
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import FakeNode
from orchestrator.specs.inventory import NodeSpec
from tests.unit.conftest import Orch

LINES = (
    "build --yes", "check-gpus", "checkpoints ls", "checkpoints verify", "clean", "doctor",
    "exec --nodes alpha -- true", "launch --yes", "logs", "logs -f", "pull", "bench", "resume --yes r", "restart --yes",
    "setup --yes", "status", "status --watch", "stop --yes", "supervise", "test", "uninstall --yes", "wait", "why",
)  # fmt: skip


def test_every_command_has_its_words(all_options: dict[tuple[str, ...], set[str]]) -> None:
    names = {" ".join(words) for words in all_options}
    assert {name for name in names if not after_interrupt(name)} == set()
    groups = {name.partition(" ")[0] for name in names}
    assert {name for name in AFTER_INTERRUPT if name not in names | groups} == set()


@pytest.mark.parametrize("line", LINES)
def test_an_interrupt_while_nodes_are_asked(orch: Orch, capsys: pytest.CaptureFixture[str], line: str) -> None:
    """`orch` is for its folder with an inventory."""

    def interrupted(_spec: NodeSpec) -> FakeNode:
        raise KeyboardInterrupt

    with connecting_by(interrupted):
        assert main(line.split()) == 130
    first, second, *_ = [*line.split(), ""]
    command = f"{first} {second}" if first == "checkpoints" else first
    assert capsys.readouterr().err.splitlines()[-1] == f"interrupted: {after_interrupt(command)}"
