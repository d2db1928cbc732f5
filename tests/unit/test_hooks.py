"""Commands of the user when a run ends, fails or loses a node: their environment, their failures, once per event."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from orchestrator.checks.failure import Failure
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.hooks import (
    LOG,
    LONGEST,
    OUTPUT_BYTES,
    Hooks,
    as_variable,
    grant,
    hooks_digest,
    is_granted,
    named_files,
    run_hook,
)
from orchestrator.nodes.fake import FakeNode
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.inventory import HookSpec
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_schema import inventory_schema
from orchestrator.specs.run_events import NodeBack, NodeLost, RunLine
from orchestrator.state.phase import Phase
from orchestrator.state.recovery import Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.unit.conftest import INVENTORY, THREE, Orch, detached

HOSTILE = "'; touch owned; echo \"$(touch owned)` touch owned`\n\x1b[2J\x00 \u202e"
SAY = 'printf "%s|%s|%s|%s|%s\\n" "$ORCH_EVENT" "$ORCH_RUN" "$ORCH_STATE" "$ORCH_NODE" "$ORCH_REASON" >> happened'


def happened(folder: Path) -> list[list[str]]:
    file = folder / "happened"
    return [line.split("|") for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return fresh(tmp_path)


def fresh(folder: Path, **spec: object) -> Hooks:
    """The hooks of a supervisor that has just been started."""
    plan = lan.plan(THREE)
    record = RunRecord(plan.run_id)
    if record.plan() is None:
        record.save_plan(plan)
    message = HookSpec.model_validate({"ended": SAY, "failed": SAY, "node_lost": SAY, **spec})
    followed = FollowedRun(record)
    grant(hooks_digest(message, folder), folder)
    nodes = [FakeNode(part.node) for part in plan.nodes]
    followed.begin(plan, [RunningContainer(node=node, node_rank=0, id="c") for node in nodes])
    return Hooks(spec=message, plan=plan, followed=followed, folder=folder, timeout_s=20.0)


def lost(node: str = "beta", reason: str = "no answer in 5 s") -> Update:
    return NodeLost(node=node, node_rank=1, error=NodeUnreachableError(reason, node=node))


DONE = RunOutcome(phase=Phase.SUCCEEDED, state=RunState(run_id="r"))
FAILED = replace(DONE, phase=Phase.FAILED, failure=Failure(node="beta", rank=1, exit_code=1, reason=HOSTILE, lines=()))


def test_values_reach_the_command_as_printable_variables_and_nothing_of_them_is_executed(tmp_path: Path) -> None:
    ran = run_hook("ended", SAY, {"EVENT": "ended", "RUN": "r-1", "STATE": "failed", "REASON": HOSTILE}, tmp_path)
    assert (ran.problem, ran.output) == ("", "")
    ((event, run, state, node, reason),) = happened(tmp_path)
    assert (event, run, state, node) == ("ended", "r-1", "failed", "")
    assert reason.isprintable()
    assert reason.startswith("'; touch owned; echo \"$(touch owned)`")
    assert not (tmp_path / "owned").exists()
    assert len(as_variable("x" * 5000)) == LONGEST
    words = run_hook("ended", ("printf", "%s", "$ORCH_RUN;", "*"), {"RUN": "r-1"}, tmp_path)
    assert words.output == "$ORCH_RUN;*"  # no shell reads a list


def is_alive(stat: Path) -> bool:
    """Return whether the process has neither ended nor waits for its parent to notice."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo out; echo err >&2; exit 3", "exit code 3"),
        (("./no-such-program",), "it could not be started: [Errno 2]"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_a_command_that_fails_is_described(tmp_path: Path, command: str | tuple[str, ...], problem: str) -> None:
    ran = run_hook("ended", command, {}, tmp_path)
    assert ran.problem.startswith(problem)
    assert ran.output == ("out\nerr\n" if "echo" in ran.text else "")


def test_a_command_without_an_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    ran = run_hook("ended", "sleep 60 & echo $!; sleep 60", {}, tmp_path, timeout_s=0.5)
    assert ran.problem == "no end after 0 s: it was killed"
    stat, deadline = Path(f"/proc/{int(ran.output)}/stat"), time.monotonic() + 10
    while is_alive(stat):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_left_in_the_background_is_not_waited_for_and_output_is_bounded(tmp_path: Path) -> None:
    ran = run_hook("ended", "sleep 60 & head -c 100000 /dev/zero | tr '\\0' x; echo; echo end; echo $! ", {}, tmp_path)
    assert is_alive(Path(f"/proc/{int(ran.output.split()[-1])}/stat"))
    assert len(ran.output) == OUTPUT_BYTES
    os.kill(int(ran.output.split()[-1]), 9)


def test_ended_and_failed_once_each_also_after_a_restart_of_the_supervisor(hooks: Hooks, tmp_path: Path) -> None:
    hooks.end(FAILED)
    assert {result.name for result in hooks.results(wait=True)} == {"failed", "ended"}
    again = fresh(tmp_path)
    again.end(FAILED)
    assert again.results(wait=True) == []
    assert sorted(event for event, *_ in happened(tmp_path)) == ["ended", "failed"]
    log = (hooks.record.folder / LOG).read_text()
    assert "failed: printf" in log
    assert ": done" in log


def test_the_next_attempt_ends_on_its_own(hooks: Hooks, tmp_path: Path) -> None:
    hooks.end(DONE)
    hooks.results(wait=True)
    hooks.record.save_plan(replace(hooks.plan, attempt=1))
    resumed = fresh(tmp_path)
    resumed.end(replace(DONE, phase=Phase.STOPPED))
    resumed.results(wait=True)
    assert [(event, state) for event, _, state, _, _ in happened(tmp_path)] == [
        ("ended", "succeeded"), ("ended", "stopped"),
    ]  # fmt: skip


def test_each_loss_of_a_node_once(hooks: Hooks, tmp_path: Path) -> None:
    def hear(one: Hooks, *updates: Update) -> None:
        for update in updates:
            one.hear(update)
        one.results(wait=True)

    hear(hooks, lost(), lost(), lost("gamma"))
    assert sorted(node for _, _, _, node, _ in happened(tmp_path)) == ["beta", "gamma"]
    after = fresh(tmp_path)  # still away, as the next supervisor finds it
    hear(after, lost())
    assert len(happened(tmp_path)) == 2
    hear(after, NodeBack(node="beta", node_rank=1), lost())
    assert len(happened(tmp_path)) == 3
    line = RunLine(time="", node="beta", node_rank=1, rank=1, text="here")
    hear(fresh(tmp_path), line, lost())  # it came back while no process supervised
    assert len(happened(tmp_path)) == 4
    assert happened(tmp_path)[-1] == ["node_lost", hooks.plan.run_id, "running", "beta", "no answer in 5 s"]


def test_the_loss_of_a_node_has_the_newest_step(tmp_path: Path) -> None:
    hooks = fresh(tmp_path, node_lost="echo step $ORCH_STEP, > step")
    events = (lan.event("step", step=6), lan.event("step", step=7), lan.event("checkpoint", step=6, verified=True))
    texts = [*(text.partition(": ")[2] for text in events), "no event"]
    for number, text in enumerate(texts):
        hooks.followed.take(RunLine(time=lan.moment(number), node="alpha", node_rank=0, rank=0, text=text))
    hooks.hear(lost())
    assert [result.problem for result in hooks.results(wait=True)] == [""]
    assert (tmp_path / "step").read_text() == "step 7,\n"


def test_a_mark_that_cannot_be_written_is_no_reason_for_silence(hooks: Hooks, tmp_path: Path) -> None:
    (hooks.record.folder / "record.jsonl").unlink()
    (hooks.record.folder / "record.jsonl").mkdir()  # a folder in its place
    hooks.end(DONE)
    assert [result.problem for result in hooks.results(wait=True)] == [""]
    assert len(happened(tmp_path)) == 1


# ── By the commands ───────────────────────────────────────────────────────────────────────────────────────────────────


def with_hooks(text: str, *, granted: bool = True) -> str:
    """Write an inventory; the digest of its hooks, which are granted."""
    Path("inventory.yaml").write_text(INVENTORY + "hooks:\n" + text)
    spec = parse_inventory(Path("inventory.yaml").read_text(), filename="inventory.yaml").hooks
    digest = hooks_digest(spec, Path())
    if granted:
        grant(digest, Path())
    return digest


def test_a_followed_run_that_ends(orch: Orch) -> None:
    with_hooks(f"  ended: {json.dumps(SAY + '; echo told')}\n  failed: exit 1\n")
    ran = orch("launch", "-y", on=lan.lan(*THREE))
    assert ran.code == 0
    assert "\nended: told\n" in ran.err
    ((event, run, state, _, _),) = happened(Path())
    assert (event, state, RunRecord(run).outcome()) == ("ended", "succeeded", ("succeeded", ""))


def test_a_hook_that_fails_is_named_and_changes_nothing(orch: Orch) -> None:
    with_hooks("  ended: [no-such-program, x]\n  failed: echo why >&2; exit 7\n")
    ran = orch("launch", "-y", on=lan.lan(*THREE, ends_with=1))
    assert ran.code == 1
    assert "note: hook failed: exit code 7\n  its command: echo why >&2; exit 7" in ran.err
    assert "failed: why" in ran.err
    assert "its command: no-such-program x" in ran.err
    assert "✗ run" in ran.err


def test_a_detached_run_is_reported_by_its_supervisor_once(orch: Orch, supervisors: list[tuple[str, ...]]) -> None:
    with_hooks(f"  ended: {json.dumps(SAY)}\n")
    here = lan.lan(*THREE)
    run = detached(orch, here)
    assert happened(Path()) == []
    assert supervisors[0][supervisors[0].index("-i") + 1] == str(Path("inventory.yaml").absolute())
    folder = Path.cwd()
    os.chdir("/")
    try:
        for _ in range(2):
            assert orch("supervise", run, "-i", str(folder / "inventory.yaml"), on=here).code == 0
    finally:
        os.chdir(folder)
    assert [(event, run_id) for event, run_id, *_ in happened(folder)] == [("ended", run)]


def test_wait_notifies(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=1)
    run = orch("launch", "-y", on=here)
    assert run.code == 1
    ran = orch("wait", "--notify", SAY + "; echo told; exit 2", on=here)
    assert ran.code == 1
    assert "--notify: told" in ran.err
    assert "note: hook --notify: exit code 2" in ran.err
    ((event, _, state, _, reason),) = happened(Path())
    assert (event, state) == ("ended", "failed")
    assert reason


# ── Granted once ──────────────────────────────────────────────────────────────────────────────────────────────────────


QUESTION = "Let them run, until they change?"


def test_new_hooks_are_shown_and_asked_about_once(orch: Orch) -> None:
    Path("hook.sh").write_text(f"{SAY}\n")
    with_hooks("  ended: sh hook.sh\n", granted=False)
    refused = orch("launch", on=lan.lan(*THREE), says=lambda question: question != QUESTION)
    assert (refused.code, refused.asked) == (130, (QUESTION,))
    here = Path.cwd()
    assert f"  ended: sh hook.sh\n  and the file {here}/hook.sh\nnothing was started;" in refused.err
    ran = orch("launch", on=lan.lan(*THREE))
    assert (ran.code, ran.asked[0], len(happened(here))) == (0, QUESTION, 1), ran.err
    again = orch("launch", on=lan.lan(*THREE))
    assert (again.code, QUESTION in again.asked, len(happened(here))) == (0, False, 2)
    Path("hook.sh").write_text(f"{SAY}\n# changed\n")  # as a pull of the repository does
    assert QUESTION in orch("launch", on=lan.lan(*THREE), says=lambda question: question != QUESTION).asked
    with_hooks("  ended: sh hook.sh; true\n", granted=False)
    assert QUESTION in orch("launch", on=lan.lan(*THREE), says=lambda question: question != QUESTION).asked
    assert len(happened(here)) == 2


@pytest.mark.parametrize("words", [("launch", "--yes"), ("launch", "--yes", "--json"), ("launch", "--yes", "--detach")])
@pytest.mark.parametrize("terminal", [True, None], ids=["terminal", "no terminal"])
def test_yes_grants_nothing_that_was_not_shown(orch: Orch, words: tuple[str, ...], terminal: bool | None) -> None:
    digest = with_hooks(f"  ended: {json.dumps(SAY)}\n", granted=False)
    here = lan.lan(*THREE)
    refused = orch(*words, on=here, says=terminal)
    assert (refused.code, refused.asked, here.containers) == (3, (), {})
    assert f"  ended: {SAY}\n" in refused.err
    assert f"→ orch trust --hooks {digest[:16]}   # " in refused.err
    assert orch("trust", "--hooks", digest[:16], says=None).code == 0
    assert orch(*words, on=here, says=terminal).code == 0


def test_a_digest_is_that_of_what_is_there(orch: Orch) -> None:
    digest = with_hooks("  ended: echo x\n", granted=False)
    for given in ("", digest[:15], "0" * 16, digest + "0"):
        refused = orch("trust", "--hooks", given)
        assert (refused.code, f"→ orch trust --hooks {digest[:16]}" in refused.err) == (3, True), given
    assert not is_granted(digest, Path())
    Path("inventory.yaml").write_text(INVENTORY)
    assert "inventory.yaml has no hooks" in orch("trust", "--hooks", digest).err


def test_a_grant_is_for_one_folder(tmp_path: Path) -> None:
    """`make notify` is another command elsewhere."""
    digest = hooks_digest(HookSpec(ended="make notify"), tmp_path)
    grant(digest, tmp_path)
    grant(digest, tmp_path)
    assert is_granted(digest, tmp_path)
    assert not is_granted(digest, tmp_path / "other")


def test_each_file_that_a_hook_names_counts(tmp_path: Path) -> None:
    spec = HookSpec(ended='sh ./a.sh "b c.sh"', failed=("./d.py", "x" * 4000), node_lost="(sh e.sh;a.sh) 2>log >>f.sh")
    seen = {hooks_digest(spec, tmp_path)}
    for name in ("f.sh", "log"):
        (tmp_path / name).write_text("written by the hook")
    assert seen == {hooks_digest(spec, tmp_path)}
    for name in ("a.sh", "b c.sh", "d.py", "e.sh"):
        for text in ("one", "two"):
            (tmp_path / name).write_text(text)
            seen.add(hooks_digest(spec, tmp_path))
    assert len(seen) == 9
    assert hooks_digest(HookSpec(), tmp_path) == ""
    assert named_files(spec, tmp_path) == ("./a.sh", "b c.sh", "./d.py", "e.sh", "a.sh")
    for text in ("sh a.sh 'without an end", '"$(sh a.sh)"', "`sh a.sh`", "x#y; sh a.sh", "A=a.sh", "sh a.sh >a.sh"):
        assert named_files(HookSpec(ended=text), tmp_path) == ("a.sh",), text


@pytest.mark.parametrize(
    "words", [("launch", "--dry-run"), ("runs",), ("doctor",), ("inventory", "list"), ("plan", "--", "gpt2")]
)
def test_a_command_that_looks_does_not_ask(orch: Orch, words: tuple[str, ...]) -> None:
    with_hooks("  ended: echo x\n", granted=False)
    ran = orch(*words, on=lan.lan(*THREE))
    assert QUESTION not in ran.asked
    assert "hooks" not in ran.err


def test_a_restart_is_refused_before_the_stop(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run = detached(orch, here)
    with_hooks("  ended: echo x\n", granted=False)
    before = dict(here.containers)
    assert orch("restart", run, "--yes", on=here).code == 3
    assert here.containers == before


def test_hooks_that_have_changed_since_the_launch_do_not_run(orch: Orch) -> None:
    Path("hook.sh").write_text(f"{SAY}\n")
    with_hooks("  ended: sh hook.sh\n")
    here = lan.lan(*THREE)
    run = detached(orch, here)
    Path("hook.sh").write_text("touch changed\n")
    ran = orch("supervise", run, on=here)
    assert "note: hook ended: it was not run: you have not agreed to the hooks as they are now" in ran.err
    assert (Path("changed").exists(), happened(Path())) == (False, [])


# ── In the inventory ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_hooks_of_an_inventory() -> None:
    read = parse_inventory(INVENTORY + "hooks:\n  ended: mail -s x me\n  node_lost: [say, 'a b']\n", filename="i.yaml")
    assert read.hooks == HookSpec(ended="mail -s x me", node_lost=("say", "a b"))
    assert parse_inventory(INVENTORY, filename="i.yaml").hooks == HookSpec()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hooks:\n  endet: x\n", "i.yaml:6: unknown key 'endet' in hooks (did you mean 'ended'?)"),
        ("hooks:\n  ended: 3\n", "i.yaml:6: hooks.ended is 3; expected a command: a text for /bin/sh, or a list"),
        ("hooks:\n  failed: []\n", "i.yaml:6: hooks.failed is a list; expected a command"),
        ("hooks:\n  failed: [a, 3]\n", "i.yaml:6: hooks.failed is a list; expected a command"),
        ("hooks:\n  failed: ''\n", "i.yaml:6: hooks.failed is ''; expected a command"),
        ("hooks: echo\n", "i.yaml:5: hooks is 'echo'; expected a mapping of ended, failed and node_lost"),
        ("hooks:\n  ended: a\n  ended: b\n", "i.yaml:7: key 'ended' in hooks appears twice (first on line 6)"),
    ],
)
def test_hooks_that_are_not_valid(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_inventory(INVENTORY + text, filename="i.yaml")
    assert [one[: len(problem)] for one in caught.value.problems] == [problem]


@pytest.mark.parametrize(
    ("hooks", "valid"), [({"ended": "echo"}, True), ({"failed": ["a", "b"]}, True), ({"failed": []}, False),
                         ({"other": "x"}, False), ({"ended": 3}, False)],
)  # fmt: skip
def test_the_schema_for_editors_agrees(hooks: object, valid: bool) -> None:
    file = {"nodes": {"alpha": {"address": "10.0.0.1"}}, "hooks": hooks}
    assert jsonschema.Draft202012Validator(inventory_schema()).is_valid(file) == valid
