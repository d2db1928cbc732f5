"""The token of an attempt's agents: on its nodes, for their user alone, and nowhere else."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from contract.run_folder import AGENTS_TOKEN
from orchestrator.fleet.runs import secrets
from orchestrator.fleet.runs.find_runs import find_runs
from orchestrator.fleet.runs.launch import adopt, launch
from orchestrator.nodes.fake import Answer
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import RunIdentity
from tests import lan

THREE = lan.NAMES[:3]
SHORTEST_BITS = 128


def plan_of(attempt: int, names: Sequence[str] = THREE) -> Plan:
    identity = RunIdentity(run_id="first", user="ana", started_at="2026-01-02T15:04:05+00:00", attempt=attempt)
    return lan.plan(names, identity)


class Keeper:
    """Machines that keep what is written to them, and how many containers of the LAN ran when it was."""

    def __init__(self, names: Sequence[str] = THREE) -> None:
        self.here = lan.lan(*names, ends_with=None)
        self.tokens: dict[str, bytes] = {}
        self.containers_then: dict[str, list[str]] = {}
        for name, node in self.here.nodes.items():
            del node.answers[("sh", "-c", "*")]
            node.programs = lambda argv, stdin, _timeout_s, name=name: self._answer(name, argv, stdin)

    def _answer(self, name: str, argv: Sequence[str], stdin: bytes) -> Answer:
        if argv[2] == secrets._PLACE_AGENTS:
            self.tokens[f"{name}:{argv[4]}/{argv[5]}"] = stdin
            self.containers_then[name] = [
                held.status for node in self.here.nodes.values() for _, held in node.engine.made.values()
            ]
        return 0, "", ""


def test_every_node_gets_the_same_once_all_are_held_and_before_one_starts() -> None:
    keeper, plan = Keeper(), plan_of(0)
    launch(keeper.here.nodes, plan)
    folder = "/home/ana/orch/orch/runs/first"
    assert sorted(keeper.tokens) == [f"{name}:{folder}/{AGENTS_TOKEN}" for name in THREE]
    (token,) = set(keeper.tokens.values())
    assert len(bytes.fromhex(token.decode())) * 8 >= SHORTEST_BITS
    assert all(states == ["created"] * 3 for states in keeper.containers_then.values())


def test_it_stands_nowhere_else(state: Path) -> None:
    keeper, plan = Keeper(), plan_of(0)
    launch(keeper.here.nodes, plan)
    (token,) = (text.decode() for text in set(keeper.tokens.values()))
    specs = [asdict(spec) for node in keeper.here.nodes.values() for spec, _ in node.engine.made.values()]
    assert token not in json.dumps(specs)
    assert token not in str([node.calls for node in keeper.here.nodes.values()])
    written = [file.read_bytes().decode(errors="replace") for file in state.rglob("*") if file.is_file()]
    assert written
    assert not [text for text in written if token in text]


def test_each_attempt_has_another() -> None:
    first, second = Keeper(), Keeper()
    launch(first.here.nodes, plan_of(0))
    launch(second.here.nodes, plan_of(1))
    assert not set(first.tokens.values()) & set(second.tokens.values())


def test_a_node_alone_has_no_other_to_know() -> None:
    keeper = Keeper(THREE[:1])
    launch(keeper.here.nodes, plan_of(0, THREE[:1]))
    assert keeper.tokens == {}


@pytest.mark.parametrize("begun", [False, True])
def test_a_launch_that_was_cut_short_gets_one_unless_nodes_have_begun_with_theirs(begun: bool) -> None:
    keeper, plan = Keeper(), plan_of(0)
    engines = [keeper.here.nodes[part.node].engine for part in plan.nodes]
    made = [engine.create(part.container) for engine, part in zip(engines, plan.nodes, strict=True)]
    if begun:
        engines[0].start(made[0])
    (run,) = find_runs(list(keeper.here.nodes.values())).runs
    adopt(keeper.here.nodes, plan, run)
    assert len(keeper.tokens) == (0 if begun else 3)


def test_its_file_is_for_the_nodes_user_alone_and_replaces_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / AGENTS_TOKEN).write_text("of the attempt before")
    nodes = [LocalNode("alpha"), LocalNode("beta")]
    parts = [(node, replace(part, folder=str(tmp_path))) for node, part in zip(nodes, plan_of(1).nodes, strict=False)]
    for placed in secrets.place_token(parts, "first"):
        placed.value()
    assert stat.S_IMODE((folder / AGENTS_TOKEN).stat().st_mode) == 0o600
    assert len((folder / AGENTS_TOKEN).read_bytes()) == 2 * secrets.TOKEN_BYTES
    assert [path.name for path in folder.iterdir()] == [AGENTS_TOKEN]


def test_a_folder_in_the_nodes_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory writes it so, where the node was not asked for its home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "orch" / "runs" / "first").mkdir(parents=True)
    nodes = [LocalNode("alpha"), LocalNode("beta")]
    parts = [(node, replace(part, folder="~/orch")) for node, part in zip(nodes, plan_of(1).nodes, strict=False)]
    for placed in secrets.place_token(parts, "first"):
        placed.value()
    assert (tmp_path / "orch" / "runs" / "first" / AGENTS_TOKEN).is_file()
