"""A plan that a node wrote is granted what this computer's record or the command line grants, by every command."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from orchestrator.cli.launching.grants import plan_to_continue
from orchestrator.fleet.runs import load_plan
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.specs.container import Mount
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.labels import LABEL_ATTEMPT
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_data
from orchestrator.specs.run import State
from orchestrator.specs.secret import Secret
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.lan import event
from tests.unit.conftest import THREE, Orch, Ran, detached

ROOT = Path(__file__).parents[2]
KEY = "PRIVATE-KEY-OF-THE-USER"
TOKEN = "TOKEN-OF-THE-USER"  # noqa: S105  # none
HOSTILE = ("HOSTILE", "evil", "/host", "LD_PRELOAD", "sha256:bad", "--privileged", KEY, TOKEN)
"""Words of the plan below. None may reach a node that beta is not."""


@dataclass
class Attack:
    """Three machines, of which beta means harm: it shows a container and a plan of its own making."""

    here: lan.Lan
    run_id: str
    plan: Plan
    files: tuple[Path, ...]
    """Files of this computer, which the plan names."""
    received: dict[str, list[bytes]] = field(default_factory=dict)
    """Input of each node, argv and stdin."""

    def reached(self) -> dict[str, list[str]]:
        """Hostile words by the node that they reached, beta's own container aside."""
        found: dict[str, list[str]] = {}
        for name, node in self.here.nodes.items():
            made = [str(spec) for spec, facts in node.engine.made.values() if facts.name != "planted"]
            for text in (*made, *map(str, node.engine.calls), *map(repr, self.received[name])):
                found.setdefault(name, []).extend(word for word in HOSTILE if word in text)
        return {name: words for name, words in found.items() if words}


def attack(here: lan.Lan, run_id: str, folder: Path, *, attempt: int, **harmless: Any) -> Attack:
    """`harmless`: what of the plan is not to be said on a command line."""
    key, code = folder / "id_ed25519", folder / "code"
    key.write_text(KEY)
    code.mkdir()
    (code / "x.py").write_text("print('of the user')")
    plan = lan.plan(
        THREE[:2],
        replace(lan.IDENTITY, run_id=run_id, attempt=attempt),
        secrets=(Secret(name="KEY", file=str(key)), Secret(name="HF_TOKEN")),
        mounts=(Mount(source="/", target="/host"),),
        command=("python", "HOSTILE.py"),
        environment={"LD_PRELOAD": "/host/evil.so", "GH_TOKEN": "x", "PATH": "/host/bin"},
        own_code=True,
        code_digest="0123456789abcdef",
        code_origin=str(code),
        data=lan.data(origin=folder),
        profile="cuda",
        min_nodes=1,
        node_timeout_s=1,
        max_restarts=9000,
        replicas=3,
        away=("gamma",),
    )
    plan = replace(plan, **harmless)
    parts = tuple(
        replace(part, folder="/home/evil", container=replace(part.container, image="sha256:bad", name="planted"))
        for part in plan.nodes
    )
    planned = replace(plan, nodes=parts)
    made = Attack(here, run_id, planned, (key, code, code / "x.py"), {name: [] for name in here.nodes})
    beta = here.nodes["beta"]
    # as a hostile machine writes it: nothing in it is left out
    text = json.dumps({**to_data(planned), "environment": dict(planned.environment)})
    beta.answers = {("sh", "-c", load_plan._READ, "*"): (0, text, ""), **beta.answers}
    beta.engine.start(beta.engine.create(parts[1].container))
    for name, node in here.nodes.items():
        noting(node, made.received[name])
    return made


def noting(node: FakeNode, received: list[bytes]) -> None:
    """Record whatever the constant scripts are sent on this node."""
    del node.answers[("sh", "-c", "*")]

    def take(argv: Sequence[str], stdin: bytes, _timeout_s: float) -> Answer:
        received.append(" ".join(argv[3:]).encode() + b"\0" + stdin)
        return 0, "", ""

    node.programs = take


WATCHED = set[str]()
OPENED = list[str]()


def note_opened(happens: str, words: tuple[Any, ...]) -> None:
    """The interpreter tells of every file and folder that is opened, whoever opens it."""
    if WATCHED and happens in ("open", "os.listdir", "os.scandir") and str(words[0]) in WATCHED:
        OPENED.append(f"{happens} {words[0]}")


sys.addaudithook(note_opened)


@contextmanager
def unopened(files: Sequence[Path]) -> Iterator[None]:
    """The test fails where one of these files and folders is opened within it."""
    WATCHED.update(map(str, files))
    try:
        yield
    finally:
        WATCHED.clear()
        opened = OPENED[:]
        OPENED.clear()
    assert opened == []


CONTINUING = {
    "resume": ("resume", "{run}", "--detach"),
    "resume --yes": ("resume", "{run}", "--detach", "--yes"),
    "resume --json": ("resume", "{run}", "--detach", "--json", "--yes"),
    "launch --resume": ("launch", "--resume", "{run}", "--detach", "--yes"),
    "restart": ("restart", "{run}", "--detach", "--yes"),
    "supervise": ("supervise", "{run}", "--out-of-sight", "1"),
    "supervise --json": ("supervise", "{run}", "--out-of-sight", "1", "--json"),
    "adopt": ("adopt", "{run}", "--detach"),
    "adopt --json": ("adopt", "{run}", "--detach", "--json"),
}


def play(attacked: Attack, words: tuple[str, ...], orch: Orch, *, terminal: bool | None) -> Ran:
    """The command, with no file of this computer opened that the plan names; what it follows comes to an end."""
    if words[0] in ("resume", "launch"):
        end_all(attacked.here)
    with unopened(attacked.files), ending_once_followed(attacked.here):
        return orch(*(word.format(run=attacked.run_id) for word in words), on=attacked.here, says=terminal)


@contextmanager
def ending_once_followed(here: lan.Lan) -> Iterator[None]:
    """End all containers as soon as the lines of one are read."""
    over = Event()

    def wait() -> None:
        while not over.wait(0.02):
            if any(call[0] == "logs" for node in here.nodes.values() for call in node.engine.calls):
                end_all(here)
                return

    thread = Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_all(here: lan.Lan) -> None:
    for node in here.nodes.values():
        for container, (_, facts) in list(node.engine.made.items()):
            if facts.state is State.RUNNING:
                node.engine.finish(container, 0)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of this computer that the plan asks for."""
    for name in ("GH_TOKEN", "HF_TOKEN", "KEY"):
        monkeypatch.setenv(name, TOKEN)


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("own_record", [True, False], ids=["launched here", "never seen here"])
@pytest.mark.parametrize("terminal", [True, None], ids=["a terminal that says yes", "no terminal"])
@pytest.mark.parametrize("words", CONTINUING.values(), ids=CONTINUING)
def test_nothing_of_a_hostile_plan_reaches_a_node_or_reads_a_file_here(
    words: tuple[str, ...], terminal: bool | None, own_record: bool, orch: Orch, state: Path, tmp_path: Path
) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    if not own_record:
        shutil.rmtree(state)
    made = attack(here, run_id, tmp_path, attempt=1)
    ran = play(made, words, orch, terminal=terminal)
    assert made.reached() == {}, ran
    own = RunRecord(run_id).plan()
    assert not any(word in str(own) for word in HOSTILE)
    if not own_record:
        assert (ran.code, own) in [(2, None), (3, None)], ran


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("words", CONTINUING.values(), ids=CONTINUING)
def test_without_a_person_to_ask_not_even_its_command_runs(
    words: tuple[str, ...], orch: Orch, state: Path, tmp_path: Path
) -> None:
    """A plan that asks for nothing of this computer: `--yes` agrees to the run, and not to what a node makes of it."""
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    shutil.rmtree(state)
    environment = {"LD_PRELOAD": "/host/evil.so", "PATH": "/host/bin"}
    made = attack(here, run_id, tmp_path, attempt=1, secrets=(), mounts=(), environment=environment)
    ran = play(made, words, orch, terminal=None)
    assert (made.reached(), RunRecord(run_id).plan()) == ({}, None)
    assert ran.code in (2, 3), ran
    if ran.code == 3:
        assert f"error: the plan of run {run_id} was read from beta and is not this computer's own" in ran.err
        assert "\n  --env LD_PRELOAD=/host/evil.so\n" in ran.err
        assert "\n  -- python HOSTILE.py\n" in ran.err


# ── what is granted ──


def left(here: lan.Lan, plan: Plan) -> None:
    """Leave a run as another computer does: its plan on every node."""
    for node in here.nodes.values():
        node.answers = {("sh", "-c", load_plan._READ, "*"): (0, json.dumps(to_data(plan)), ""), **node.answers}


LAUNCHED = {
    "command": ("gpt2", "--epochs", "7"),
    "environment": {"GREETING": "hello", "LANG": "xx_XX"},
    "max_restarts": 5,
    "node_timeout_s": 60,
    "min_nodes": 1,
}
"""Launch of another computer's user."""


def test_a_run_of_another_computer_is_resumed_after_a_look_at_all_of_it(orch: Orch) -> None:
    here = lan.lan(*THREE)
    plan = lan.plan(THREE[:2], **LAUNCHED)
    left(here, plan)
    refused = orch("resume", plan.run_id, "--detach", on=here, says=False)
    assert (refused.code, here.containers, RunRecord(plan.run_id).plan()) == (130, {}, None)
    assert refused.asked == ("Continue with this plan?",)
    assert (
        f"The plan of run {plan.run_id} was read from alpha: this computer has not made it.\n"
        "  command      gpt2 --epochs 7\n"
        "  nodes        alpha, beta\n"
        "  image        orch/orch:cpu or cuda, by the device of each node\n"
        "  environment  GREETING=hello\n"
        "  options      --max-restarts 5 --node-timeout 60 --hang-timeout 0 --min-nodes 1 --checkpoint-copies 1\n"
    ) in refused.err
    ran = orch("resume", plan.run_id, "--detach", on=here, says=True)
    assert ran.code == 0, ran.err
    assert set(here.containers) == {"alpha", "beta"}
    own = RunRecord(plan.run_id).plan()
    assert own is not None
    assert (own.attempt, own.command, own.min_nodes) == (1, ("gpt2", "--epochs", "7"), 1)
    assert own.environment["GREETING"] == "hello"
    assert own.environment.get("LANG") != "xx_XX"


def test_or_after_all_of_it_was_given_as_the_refusal_writes_it(orch: Orch) -> None:
    here = lan.lan(*THREE)
    plan = lan.plan(THREE[:2], **LAUNCHED)
    left(here, plan)
    refused = orch("resume", plan.run_id, "--detach", "--yes", on=here, says=None)
    assert (refused.code, here.containers) == (3, {})
    found = re.search(rf"orch (resume {plan.run_id} --yes .*)\n$", refused.err)
    assert found, refused.err
    words = found[1].replace(" -- ", " --detach -- ").split(" ")
    assert orch(*words, on=here, says=None).code == 0
    own = RunRecord(plan.run_id).plan()
    assert own is not None
    assert (own.command, own.max_restarts, own.node_timeout_s) == (("gpt2", "--epochs", "7"), 5, 60)


def test_secrets_and_mounts_are_never_asked_about(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_TOKEN", TOKEN)
    monkeypatch.setenv("HF_TOKEN", "of-this-computer")
    (tmp_path / "mine.pem").write_text("said-on-the-line")
    here = lan.lan(*THREE)
    run_id = detached(orch, here)
    shutil.rmtree(RunRecord(run_id).folder)
    made = attack(here, run_id, tmp_path, attempt=0, own_code=False, code_digest="", data=())
    end_all(here)
    resume = ("resume", run_id, "--detach")
    ran = orch(*resume, on=here, says=True)
    assert (ran.code, ran.asked) == (3, ())
    problems = ran.err.partition("you have not agreed to here\n")[2]
    assert problems.startswith("  --secret KEY\n  --secret HF_TOKEN\n  --env 'GH_TOKEN=…'\n  --mount /:/host\n")
    mine = ("--secret", "HF_TOKEN", "--secret", f"KEY={tmp_path / 'mine.pem'}", "--env", "GH_TOKEN=another-one")
    message = (*mine, "--mount", "/srv:/data:ro", "--nodes", "alpha", "--profile", "cpu", "--", "gpt2")
    with unopened(made.files):
        ran = orch(*resume, *message, on=here, says=True)
    assert (ran.code, ran.asked[:1]) == (0, ("Continue with this plan?",)), ran.err  # its environment, its code
    for line in (
        "command      gpt2",
        "mount        /srv:/data:ro",
        "environment  PATH=/host/bin",
    ):
        assert f"\n  {line}\n" in ran.err
    assert "HOSTILE" not in ran.err
    spec, _ = list(here.nodes["alpha"].engine.made.values())[-1]
    assert [mount.source for mount in spec.mounts if mount.target in ("/host", "/data")] == ["/srv"]
    assert (spec.environment["GH_TOKEN"], KEY in str(made.received)) == ("another-one", False)
    assert any(b"said-on-the-line" in one for one in made.received["alpha"])


@pytest.mark.parametrize(
    ("claimed", "option"),
    [
        ({"mounts": (Mount(source="/srv", target="/data"),)}, "--mount /srv:/data"),
        ({"secrets": (Secret(name="HF_TOKEN"),)}, "--secret HF_TOKEN"),
        ({"environment": {"GH_TOKEN": "x"}}, "--env 'GH_TOKEN=…'"),
        ({"environment": {"PLACE": "redis://:only-a-password@cache"}}, "--env 'PLACE=…'"),
    ],
    ids=["mount", "secret", "variable", "address"],
)
def test_each_of_them_alone_has_to_be_given(orch: Orch, claimed: dict[str, Any], option: str) -> None:
    """A person who answers yes to everything is not asked."""
    here = lan.lan(*THREE)
    plan = lan.plan(THREE[:2], **claimed)
    left(here, plan)
    ran = orch("resume", plan.run_id, "--detach", on=here, says=True)
    assert (ran.code, ran.asked, here.containers) == (3, (), {})
    assert f"\n  {option}\n" in ran.err


def test_code_and_data_come_from_the_nodes_never_from_folders_that_a_node_names(orch: Orch, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "x.py").write_text("print('of the user')")
    here = lan.lan(*THREE)
    code = {"code_digest": folder_digest(mine), "code_origin": str(mine)}
    data = lan.data(folder_digest(mine), mine)
    plan = lan.plan(THREE[:2], command=("python", "x.py"), own_code=True, **code, data=data)
    left(here, plan)
    with unopened((mine, mine / "x.py")):
        ran = orch("resume", plan.run_id, "--detach", on=here, says=True)
    assert ran.asked[:1] == ("Continue with this plan?",)
    assert (ran.code, here.containers) == (4, {})  # these nodes do not have it
    assert "lack the code that run" in ran.err


def test_a_secret_that_was_granted_is_read_where_the_own_record_says(
    orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later attempt may name another file for it."""
    monkeypatch.setenv("HF_TOKEN", "as-it-was-granted")
    here = lan.lan(*THREE)
    own = lan.plan(THREE, secrets=(Secret(name="HF_TOKEN"),), max_restarts=3)
    RunRecord(own.run_id).save_plan(own)
    key = tmp_path / "id_ed25519"
    key.write_text(KEY)
    identity = replace(lan.IDENTITY, attempt=1)
    later = lan.plan(THREE, identity, secrets=(Secret(name="HF_TOKEN", file=str(key)),), max_restarts=3)
    left(here, later)
    with unopened((key,)):
        plan = plan_to_continue(
            list(here.nodes.values()),
            Inventory(nodes=tuple(lan.spec(name) for name in THREE)),
            LaunchOptions(resume=own.run_id),
            ask=False,
            attempt=1,
        )
    assert (plan.attempt, plan.secrets) == (1, own.secrets)


def test_what_the_own_record_grants_needs_no_question(orch: Orch) -> None:
    """Another computer's supervisor continued with fewer nodes: the same words on nodes of the same run."""
    here = lan.lan(*THREE, says=(event("done", step=3),), ends_with=None)
    run_id = detached(orch, here)
    own = RunRecord(run_id).plan()
    assert own is not None
    end_all(here)
    identity = replace(lan.IDENTITY, run_id=run_id, attempt=1)
    fewer = lan.plan(THREE[:2], identity, away=("gamma",), max_restarts=own.max_restarts)
    left(here, replace(fewer, environment=dict(own.environment)))
    for part in fewer.nodes:
        engine = here.nodes[part.node].engine
        engine.start(engine.create(replace(part.container, name="next")))
    with ending_once_followed(here):
        ran = orch("supervise", run_id, on=here, says=None)
    assert (ran.code, ran.asked) == (0, ()), ran.err


def test_containers_that_another_computer_created_are_started_after_a_look(orch: Orch) -> None:
    here = lan.lan(*THREE[:2], ends_with=None)
    here.nodes["gamma"] = lan.silent("gamma")
    plan = lan.plan(THREE[:2], **LAUNCHED)
    for part in plan.nodes:
        here.nodes[part.node].engine.create(part.container)
        here.nodes[part.node].answers = {
            ("sh", "-c", load_plan._READ, "*"): (0, json.dumps(to_data(plan)), ""),
            **here.nodes[part.node].answers,
        }
    assert orch("adopt", plan.run_id, "--detach", on=here, says=None).code == 3
    ran = orch("adopt", plan.run_id, "--detach", on=here, says=True)
    assert (ran.code, ran.asked) == (0, ("Continue with this plan?",)), ran.err
    states = {facts.state for name in THREE[:2] for _, facts in here.nodes[name].engine.made.values()}
    assert states == {State.RUNNING}


def test_but_none_is_created_from_another_computers_words(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    plan = lan.plan(THREE, **LAUNCHED)
    left(here, plan)
    here.nodes["alpha"].engine.create(plan.nodes[0].container)
    ran = orch("adopt", plan.run_id, "--detach", on=here, says=True)
    assert (ran.code, set(here.containers)) == (6, {"alpha"})
    assert "was launched from another computer, and has no container yet on beta, gamma\n" in ran.err
    assert f"→ orch stop {plan.run_id}, then: orch resume {plan.run_id}\n" in ran.err


def test_an_attempt_that_one_node_alone_shows_does_not_take_a_run_over(orch: Orch, tmp_path: Path) -> None:
    here = lan.lan(*THREE, says=(event("done", step=3),), ends_with=None)
    run_id = detached(orch, here)
    made = attack(here, run_id, tmp_path, attempt=7)
    ran = play(made, ("supervise", "{run}"), orch, terminal=None)
    assert ran.code == 0, ran.err
    assert (
        "! run " + run_id + ": beta has a container (attempt 7) that is no part of the run: it is left out\n" in ran.err
    )
    assert {spec.labels[LABEL_ATTEMPT] for node in here.nodes.values() for spec, _ in node.engine.made.values()} == {
        "0",
        "7",
    }


def test_the_decision_is_made_in_one_place() -> None:
    """All readers of a run's plan ask the one function that decides what it is granted."""
    asking = [
        str(file.relative_to(ROOT))
        for file in sorted(ROOT.glob("orchestrator/**/*.py"))
        if re.search(r"\bload_plan import|runs import .*\bload_plan\b", file.read_text())
        and "fleet.runs.load_plan" in file.read_text()
    ]
    assert asking == ["orchestrator/cli/launching/grants.py"]
