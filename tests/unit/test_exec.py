"""`orch exec` in the containers of a run and on a node, and the command line of `orch shell`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.nodes.interface import Completed
from orchestrator.specs.errors import NodeUnreachableError
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached


@dataclass
class Commanded(lan.Actor):
    """A container that answers a command with its node and the command's words."""

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        if "-c" in argv and self.node == "beta":
            return Completed(node=self.node, argv=tuple(argv), exit_code=3, stdout="", stderr="no such thing\x1b[2J\n")
        return Completed(node=self.node, argv=tuple(argv), exit_code=0, stdout=f"here: {' '.join(argv)}\n", stderr="")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> lan.Lan:
    monkeypatch.setattr(lan, "Actor", Commanded)
    return lan.lan(*THREE, ends_with=None)


def test_all_containers_of_a_run(orch: Orch, here: lan.Lan) -> None:
    run = detached(orch, here)
    ran = orch("exec", run, "--", "ls", "-l", "a b", on=here)
    assert (ran.code, ran.out) == (
        0, "[alpha] here: ls -l a b\n[beta ] here: ls -l a b\n[gamma] here: ls -l a b\n",
    )  # fmt: skip


def test_the_container_of_one_rank(orch: Orch, here: lan.Lan) -> None:
    run = detached(orch, here)
    ran = orch("exec", run[:5], "--rank", "2", "--", "date", on=here)
    assert (ran.code, ran.out) == (0, "here: date\n")
    assert orch("exec", run, "--rank", "2", "--json", "--", "date", on=here).out.count('"node": "gamma"') == 1
    missing = orch("exec", run, "--rank", "3", "--", "date", on=here)
    assert (missing.code, f"run {run} has no running container with rank 3" in missing.err) == (3, True)


def test_the_exit_code_is_that_of_the_command(orch: Orch, here: lan.Lan) -> None:
    run = detached(orch, here)
    ran = orch("exec", run, "--", "grep", "-c", "x", on=here)
    assert ran.code == 3
    assert "[beta ] no such thing\n" in ran.err
    assert "\x1b" not in ran.err
    as_json = json_data(orch("exec", run, "--json", "--", "grep", "-c", "x", on=here).out)
    assert [one["exit_code"] for one in as_json] == [0, 3, 0]


def test_a_node_by_its_name_without_a_shell(orch: Orch, here: lan.Lan) -> None:
    here.nodes["beta"].answers[("echo", "$(id)", "; rm")] = (0, "$(id) ; rm\n", "")
    ran = orch("exec", "beta", "--", "echo", "$(id)", "; rm", on=here)
    assert (ran.code, ran.out) == (0, "$(id) ; rm\n")
    refused = orch("exec", "beta", "--rank", "0", "--", "true", on=here)
    assert (refused.code, "beta is a node: --rank needs a run" in refused.err) == (2, True)


def test_a_target_that_is_nothing(orch: Orch, here: lan.Lan) -> None:
    ran = orch("exec", "delta", "--", "true", on=here)
    assert ran.code == 3
    assert "and no node has this name: alpha, beta, gamma" in ran.err


def test_a_run_that_has_ended_points_to_its_files(orch: Orch, here: lan.Lan) -> None:
    run = detached(orch, here)
    for node in here.nodes.values():
        for container in list(node.engine.made):
            node.engine.finish(container, 0)
    ran = orch("exec", run, "--", "true", on=here)
    assert ran.code == 3
    assert f"run {run} has no running container\n  → orch status {run}; its files: orch pull {run}" in ran.err


def test_a_node_that_is_lost_meanwhile_is_named(orch: Orch, here: lan.Lan) -> None:
    run = detached(orch, here)

    def lost(container: str, argv: Sequence[str]) -> Completed:
        raise NodeUnreachableError("the connection broke", node="gamma")

    here.nodes["gamma"].engine.execute = lost  # type: ignore[method-assign]  # of this one engine
    ran = orch("exec", run, "--", "true", on=here)
    assert (ran.code, ran.out.count("here:")) == (5, 2)
    assert "gamma: the connection broke" in ran.err


@pytest.mark.parametrize(
    ("entry", "words", "argv"),
    [
        ("{address: 10.0.0.12}", (), ("ssh", "-o", "StrictHostKeyChecking=yes", "--", "10.0.0.12")),
        ("{address: 10.0.0.12, user: ana, port: 2222, jump: gate}", (),
         ("ssh", "-p", "2222", "-o", "StrictHostKeyChecking=yes", "-J", "gate", "--", "ana@10.0.0.12")),
        ("{address: 10.0.0.12, identity: /keys/a b}", ("--container",),
         ("ssh", "-t", "-o", "StrictHostKeyChecking=yes", "-i", "/keys/a b", "-o", "IdentitiesOnly=yes", "--",
          "10.0.0.12", "docker exec -it orch-run bash")),
        ("{address: 127.0.0.1, connection: local}", ("--container",), ("docker", "exec", "-it", "orch-run", "bash")),
        ("{address: 127.0.0.1, connection: local}", (), ("/bin/zsh",)),
    ],
)  # fmt: skip
def test_shell_becomes_ssh(
    orch: Orch,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    entry: str,
    words: tuple[str, ...],
    argv: tuple[str, ...],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHELL", "/bin/zsh")
    began: list[tuple[str, ...]] = []
    monkeypatch.setattr(os, "execvp", lambda file, words: began.append((file, *words)))
    Path("inventory.yaml").write_text(f"nodes:\n  beta: {entry}\n")
    ran = orch("shell", "beta", *words)
    assert (ran.code, began) == (0, [(argv[0], *argv)]), ran.err


def test_shell_knows_the_hosts_that_orch_knows(orch: Orch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "config" / "orch" / "known_hosts"
    own.parent.mkdir(parents=True)
    own.write_text("")
    began: list[tuple[str, ...]] = []
    monkeypatch.setattr(os, "execvp", lambda _file, words: began.append(tuple(words)))
    assert orch("shell", "beta").code == 0
    assert f'UserKnownHostsFile="{own}"' in began[0]


def test_shell_on_a_node_that_is_not_there(orch: Orch) -> None:
    ran = orch("shell", "delta")
    assert (ran.code, "the inventory has no node delta: alpha, beta, gamma" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("RUN", "grep", "-q", "x"), "grep -q x"),
        (("RUN", "-q", "ls", "--json", "-i"), "ls --json -i"),
        (("RUN", "--timeout", "9", "sh", "-c", "a", "--", "b"), "sh -c a -- b"),
        (("--timeout=9", "RUN", "--", "ls", "--", "-l"), "ls -- -l"),
        (("RUN", "-", "-h"), "- -h"),
    ],
)
def test_words_after_the_first_belong_to_the_command(
    orch: Orch, here: lan.Lan, words: Sequence[str], expected: str
) -> None:
    run = detached(orch, here)
    ran = orch("exec", "--rank", "0", *(run if word == "RUN" else word for word in words), on=here)
    assert (ran.code, ran.out) == (0, f"here: {expected}\n")


def test_an_unknown_option_before_the_target_is_named(orch: Orch) -> None:
    ran = orch("exec", "--no-such", "RUN", "ls", on=lan.lan(*THREE))
    assert (ran.code, "No such option: --no-such" in ran.err) == (2, True)


def test_nodes_choose_among_the_containers_of_a_run_or_are_machines(orch: Orch, here: lan.Lan) -> None:
    run = detached(orch, here)
    ran = orch("exec", run, "-n", "beta,gamma", "--", "date", on=here)
    assert (ran.code, ran.out) == (0, "[beta ] here: date\n[gamma] here: date\n")
    for node in here.nodes.values():
        node.answers[("hostname",)] = (0, f"{node.name}\n", "")
    ran = orch("exec", "-n", "beta,gamma", "--", "hostname", on=here)
    assert (ran.code, ran.out) == (0, "[beta ] beta\n[gamma] gamma\n")
    ran = orch("exec", "-n", "gamma", "--", "hostname", on=here)
    assert (ran.code, ran.out) == (0, "gamma\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("-- hostname", "no run and no node before `--`"),
        ("-n beta --rank 1 -- hostname", "--nodes beta are machines: --rank needs a run"),
        ("alpha -n beta -- hostname", "alpha is a node: --nodes needs a run"),
    ],
)
def test_what_nodes_do_not_go_with(orch: Orch, here: lan.Lan, words: str, problem: str) -> None:
    ran = orch("exec", *words.split(), on=here)
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {problem}\n  → orch exec " in ran.err
