"""Claims of an attempt on the nodes: the script in real shells, the rules for nodes that disagree, and the duel of two
supervisors."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier

import pytest

from orchestrator.fleet.runs.claims import CLAIM, LOOKS, RELEASE, STOPPED, TAKEN, claim_on
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.supervise.replan import NodePool, claim_next, start_next_attempt
from orchestrator.nodes.fake import FakeNode
from orchestrator.specs.errors import ConflictError, NodeUnreachableError, OrchError, PreflightError
from orchestrator.specs.labels import LABEL_ATTEMPT, LABEL_CLAIM
from orchestrator.specs.plan import Plan
from orchestrator.state.journal_entries import ClaimEntry
from orchestrator.store.run_record import RunRecord, recording_in
from tests import lan
from tests.each_case import failures_of

THREE = lan.NAMES[:3]
RUN = lan.IDENTITY.run_id
SHELLS = [name for name in ("sh", "dash", "bash", "busybox") if shutil.which(name)]
"""The last one has programs of its own."""


def played(script: str, *words: str, shell: str = "sh", home: Path = Path("/nonexistent")) -> tuple[int, str]:
    variables = {**os.environ, "HOME": str(home)}
    argv = (shell, *(["sh"] if shell == "busybox" else []), "-c", script, "sh", *words)
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=variables)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


@dataclass
class Folder:
    """The project's folder of a node, and a shell."""

    place: Path
    shell: str = "sh"

    def claim(self, attempt: int, id: str, mode: str = "auto", *look: str, owner: str = "ana@desk") -> tuple[int, str]:
        words = (str(self.place), "r1", str(attempt), id, owner, mode, *look)
        return played(CLAIM, *words, shell=self.shell)

    def release(self, attempt: int, id: str) -> None:
        assert played(RELEASE, str(self.place), "r1", str(attempt), id, shell=self.shell)[0] == 0


# ── The script ──


@pytest.mark.parametrize("shell", SHELLS)
def test_an_attempt_is_claimed_once_and_a_later_one_fences_it(shell: str, tmp_path: Path) -> None:
    node = Folder(tmp_path / "a folder; touch x", shell)
    assert node.claim(1, "ours") == (0, "")
    assert node.claim(1, "ours") == (0, "")
    assert node.claim(1, "theirs", owner="eve@desk") == (TAKEN, "attempt 1 by ana@desk\n")
    assert node.claim(3, "theirs", owner="eve@desk") == (0, "")
    assert node.claim(1, "ours") == (TAKEN, "attempt 3 by eve@desk\n")
    assert node.claim(2, "ours", "user") == (TAKEN, "attempt 3 by eve@desk\n")
    node.release(3, "ours")
    assert node.claim(2, "ours")[0] == TAKEN
    node.release(3, "theirs")
    assert node.claim(2, "ours") == (0, "")
    attempts = node.place / "runs/r1/attempts"
    assert sorted(path.name for path in attempts.iterdir()) == ["1", "2"]
    assert attempts.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("shell", SHELLS)
def test_looking_claims_nothing(shell: str, tmp_path: Path) -> None:
    node = Folder(tmp_path, shell)
    assert node.claim(1, "ours", "auto", "look") == (0, "")
    assert not (tmp_path / "runs").exists()
    node.claim(1, "theirs", owner="eve@desk")
    assert node.claim(1, "ours", "auto", "look") == (TAKEN, "attempt 1 by eve@desk\n")
    assert node.claim(1, "theirs", "auto", "look") == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_only_a_person_continues_a_stopped_run(shell: str, tmp_path: Path) -> None:
    node, mark = Folder(tmp_path, shell), tmp_path / "runs/r1/stopped"
    mark.parent.mkdir(parents=True)
    mark.write_text("stopped by bea@lap\n")
    assert node.claim(1, "ours") == (STOPPED, "stopped by bea@lap\n")
    assert node.claim(1, "ours", "user", "look") == (0, "")
    assert mark.exists()
    assert node.claim(1, "ours", "user") == (0, "")
    assert not mark.exists()
    mark.write_text("stopped by bea@lap\n")
    assert node.claim(1, "theirs", "user")[0] == TAKEN
    assert mark.exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_strange_names_and_long_texts_do_no_harm(shell: str, tmp_path: Path) -> None:
    node, attempts = Folder(tmp_path, shell), tmp_path / "runs/r1/attempts"
    for name in ("x", "7x", "-7", ".9.id", "99999999999999999999", "*"):
        (attempts / name).mkdir(parents=True)
    assert node.claim(1, "ours") == (0, "")
    (attempts / "5").mkdir()
    (attempts / "5/owner").write_bytes(b"\x1b[2J" * 100_000)
    code, text = node.claim(1, "ours")
    assert code == TAKEN
    assert len(text) < 250


@pytest.mark.parametrize("shell", SHELLS)
def test_of_racing_claimants_one_wins(shell: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for number in range(10):
            node = Folder(tmp_path / str(number), shell)
            node.claim(0, "first")
            codes = list(pool.map(lambda id, node=node: node.claim(1, id)[0], "abcd"))
            assert sorted(codes) == [0, TAKEN, TAKEN, TAKEN]
            attempts = node.place / "runs/r1/attempts"
            assert (attempts / "1/id").read_text() == f"{'abcd'[codes.index(0)]}\n"
            assert sorted(path.name for path in attempts.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "busybox"])
def test_a_connection_that_is_cut_in_the_middle_leaves_no_claim_without_its_id(shell: str, tmp_path: Path) -> None:
    """The same claimant would be refused by it, and the node left out."""
    cut, node = tmp_path / "cut", Folder(tmp_path / "node", shell)
    cut.mkdir()
    (cut / "mv").write_text("#!/bin/sh\nkill -9 0\n")
    (cut / "mv").chmod(0o755)
    words = (str(node.place), "r1", "1", "ours", "ana@desk", "auto")
    argv = (shell, "-c", CLAIM, "sh", *words)
    variables = {**os.environ, "PATH": f"{cut}:{os.environ['PATH']}"}
    ran = subprocess.run(argv, env=variables, capture_output=True, start_new_session=True, check=False)
    assert ran.returncode < 0
    assert node.claim(1, "theirs", "auto", "look") == (0, "")
    assert node.claim(1, "ours") == (0, "")
    assert node.claim(1, "theirs")[0] == TAKEN


@pytest.mark.parametrize("shell", SHELLS)
def test_nodes_that_share_a_folder_may_claim_at_once(shell: str, tmp_path: Path) -> None:
    node = Folder(tmp_path / "node", shell)
    node.claim(0, "first")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: node.claim(1, "ours"), range(8))) == [(0, "")] * 8


def test_a_folder_that_cannot_be_made_is_an_error_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in its place")
    argv = ("sh", "-c", CLAIM, "sh", str(tmp_path), "r1", "1", "ours", "ana@desk", "auto")
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 1


# ── Nodes that disagree ──


@dataclass
class Asked:
    """Nodes that answer the script as the test says; the folders that they would make."""

    codes: dict[str, int | OrchError]
    held: dict[str, str] = field(default_factory=dict)
    paused: list[float] = field(default_factory=list)

    def nodes(self) -> list[FakeNode]:
        def node(name: str) -> FakeNode:
            def answer(argv: Sequence[str], _stdin: bytes, _timeout_s: float) -> tuple[int, str, str]:
                code = self.codes[name]
                if isinstance(code, OrchError):
                    raise code
                if argv[2] == RELEASE:
                    self.held.pop(name, None)
                elif code == 0 and argv[-1] != "look":
                    self.held[name] = argv[7]
                return (0, "", "") if argv[2] == RELEASE else (code, f"attempt 7 by eve on {name}\n", "")

            return FakeNode(name, programs=answer)

        return [node(name) for name in self.codes]

    def claim(self) -> tuple[list[str], list[str], list[str]]:
        claim = ClaimEntry(attempt=1, id="ours", base=0, why="replan")
        places = {name: f"/home/{name}" for name in self.codes}
        done = claim_on(self.nodes(), places, "r1", claim, rest=self.paused.append)
        return [*done.held], [*done.left_out], [*done.failed]


OFF = NodeUnreachableError("no answer in 5 s", node="x")


def test_one_node_that_speaks_of_another_claim_is_left_out_and_two_are_believed() -> None:
    def check(codes: dict[str, int | OrchError], expected: tuple[str, str, str] | None) -> None:
        asked = Asked(codes)
        if expected is None:
            with pytest.raises(ConflictError, match="attempt 1 of run r1 cannot start: attempt 7 by eve on"):
                asked.claim()
            assert asked.held == {}
        else:
            assert asked.claim() == tuple(names.split() for names in expected)
            assert sorted(asked.held) == expected[0].split()

    cases = [
        ({"a": 0, "b": 0, "c": 0}, ("a b c", "", "")),
        ({"a": 0, "b": TAKEN, "c": 0}, ("a c", "b", "")),
        ({"a": TAKEN, "b": 0, "c": 0}, ("b c", "a", "")),
        ({"a": 0, "b": STOPPED, "c": 0}, ("a c", "b", "")),
        ({"a": TAKEN, "b": 0}, ("b", "a", "")),
        ({"a": OFF, "b": 0, "c": TAKEN}, ("b", "c", "a")),
        ({"a": 1, "b": 0, "c": 0}, ("b c", "", "a")),
        ({"a": TAKEN, "b": 0, "c": TAKEN}, None),
        ({"a": 0, "b": TAKEN, "c": STOPPED}, None),
        ({"a": 0, "b": 0, "c": TAKEN, "d": TAKEN, "e": 0}, None),
        ({"a": TAKEN}, None),
        ({"a": STOPPED}, None),
        ({"a": TAKEN, "b": OFF, "c": OFF}, None),
    ]
    assert failures_of(check, cases) == []


def test_the_claims_of_another_are_waited_for_where_the_first_node_has_one() -> None:
    asked = Asked({"a": TAKEN, "b": 0, "c": 0})
    asked.claim()
    assert len(asked.paused) == LOOKS


# ── Two supervisors ──


def with_claims(here: lan.Lan, root: Path) -> None:
    """Let the machines keep claims as real ones do."""
    for name, node in here.nodes.items():
        home = root / name

        def answer(argv: Sequence[str], stdin: bytes, timeout_s: float, home: Path = home) -> tuple[int, str, str]:
            if argv[:2] == ("sh", "-c") or list(argv[:2]) == ["sh", "-c"]:
                if argv[2] not in (CLAIM, RELEASE):
                    return 0, "", ""
                words = [argv[4].replace("/home/ana", "~", 1), *argv[5:]]
                return (*played(argv[2], *words, home=home), "")
            return lan.on_the_host(argv, stdin, timeout_s)

        del node.answers["sh", "-c", "*"]
        node.programs = answer


@dataclass
class Duel:
    """A run of three nodes of which one is lost, and two computers that know it."""

    tmp_path: Path
    here: lan.Lan
    plan: Plan

    @classmethod
    def begin(cls, tmp_path: Path) -> Duel:
        here = lan.lan(*THREE, ends_with=None)
        with_claims(here, tmp_path / "machines")
        plan = lan.plan(THREE, replace(lan.IDENTITY, claim="first"), min_nodes=2)
        with recording_in(tmp_path / "A"):
            launch(here.nodes, plan)
        shutil.copytree(tmp_path / "A", tmp_path / "B")
        return cls(tmp_path, here, plan)

    def continue_at(self, computer: str, ready: Barrier | None = None, names: Sequence[str] = ("alpha", "beta")) -> str:
        """The words of the error; empty for the computer that continues the run."""
        pool = NodePool(nodes=self.here.nodes, request=lan.request(THREE, min_nodes=2))
        with recording_in(self.tmp_path / computer):
            if ready:
                ready.wait()
            try:
                claim = claim_next(pool, self.plan, names, "replan")
                start_next_attempt(pool, self.plan, claim, lambda _node, _progress: None)
            except ConflictError as error:
                return str(error)
        return ""

    def attempts(self) -> list[str]:
        engines = [self.here.nodes[name].engine for name in ("alpha", "beta")]
        running = [facts for engine in engines for _, facts in engine.made.values() if facts.status == "running"]
        assert {facts.labels[LABEL_ATTEMPT] for facts in running} == {"1"}
        return [facts.labels[LABEL_CLAIM] for facts in running]

    def claims(self, computer: str) -> list[str]:
        with recording_in(self.tmp_path / computer):
            return [one.claim.id for one in RunRecord(RUN).journal.attempts if one.started and one.number == 1]


def test_a_supervisor_that_comes_later_stops_nothing(tmp_path: Path) -> None:
    duel = Duel.begin(tmp_path)
    assert duel.continue_at("A") == ""
    before = duel.attempts()
    assert f"attempt 1 of run {RUN} cannot start: attempt 1 by " in duel.continue_at("B")
    assert duel.attempts() == before == duel.claims("A") * 2
    with recording_in(tmp_path / "B"):
        journal = RunRecord(RUN).journal
        assert journal.current is not None
        assert (journal.current.number, journal.pending) == (0, None)


def test_a_node_that_is_off_is_asked_once(tmp_path: Path) -> None:
    """A node that is off costs its time limit each time."""
    duel, asked = Duel.begin(tmp_path), list[str]()

    def off(argv: Sequence[str], _stdin: bytes, _timeout_s: float) -> tuple[int, str, str]:
        asked.append(argv[2] if argv[0] == "sh" else argv[0])
        raise OFF

    duel.here.nodes["gamma"].programs = off
    assert duel.continue_at("A", names=THREE) == ""
    assert asked.count(CLAIM) == 1
    assert duel.attempts() == duel.claims("A") * 2


@pytest.mark.parametrize(("own", "started"), [(True, False), (True, True), (False, False)])
def test_what_a_start_that_was_cut_short_has_created_is_removed(own: bool, started: bool, tmp_path: Path) -> None:
    """Such a container holds the node's lock. What runs, or has another claim, stays, and the node is left out."""
    duel = Duel.begin(tmp_path)
    pool = NodePool(nodes=duel.here.nodes, request=lan.request(THREE, min_nodes=2))
    with recording_in(tmp_path / "A"):
        claimed = claim_next(pool, duel.plan, ("alpha", "beta"), "replan")
        engine = duel.here.nodes["alpha"].engine
        (spec,) = [spec for spec, _ in engine.made.values()]
        engine.finish(next(iter(engine.made)), 1)
        labels = {**spec.labels, LABEL_ATTEMPT: "1", LABEL_CLAIM: claimed.claim.id if own else "other"}
        id = engine.create(replace(spec, name="planted", labels=labels))
        if started:
            engine.start(id)
        if own and not started:
            start_next_attempt(pool, duel.plan, claimed, lambda _node, _progress: None)
            assert id not in engine.made
            assert duel.attempts() == [claimed.claim.id] * 2
            return
        with pytest.raises(PreflightError, match="alpha: it runs a container of attempt 1, which this computer did"):
            start_next_attempt(pool, duel.plan, claimed, lambda _node, _progress: None)
        assert id in engine.made


def test_of_two_supervisors_one_continues_the_run(tmp_path: Path) -> None:
    """Fifty times, both at the same moment: the attempt that runs is whole, and no one has touched it."""
    for number in range(50):
        duel = Duel.begin(tmp_path / str(number))
        ready = Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            words = list(pool.map(lambda name, duel=duel, ready=ready: duel.continue_at(name, ready), "AB"))
        assert words.count("") == 1, words
        (winner,) = duel.claims("AB"[words.index("")])
        assert duel.claims("BA"[words.index("")]) == []
        assert duel.attempts() == [winner, winner]
