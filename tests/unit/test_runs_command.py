"""`orch runs`: the list and its conditions, the comparison of two runs, and a run that is started again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.cost_model.forecast import read_forecast
from contract.log_lines import EVENT_MARK
from orchestrator.fleet.runs.artifacts import ProjectDir, artifacts_of
from orchestrator.fleet.runs.bring_artifacts import fetch
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.load_state import samples_per_step_of
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.run_events import RunLine
from orchestrator.specs.secret import Secret
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.compare import facts_of
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached
from tests.unit.test_artifacts import Place

NOW = datetime.now(UTC)


def recorded(run_id: str, *, hours: float = 1.0, state: str = "succeeded", user: str = "ana", words: str = "gpt2",
             reason: str = "", **changes: object) -> RunRecord:  # fmt: skip
    """A run that ended, on record alone."""
    at = (NOW - timedelta(hours=hours)).isoformat(timespec="seconds")
    plan = lan.plan(THREE, replace(lan.IDENTITY, run_id=run_id, user=user, started_at=at))
    record = RunRecord(run_id)
    record.save_plan(replace(plan, command=tuple(words.split()), **changes))  # type: ignore[arg-type]  # by name
    record.save_outcome(state, reason)
    return record


@pytest.fixture
def four() -> None:
    recorded("old-1", hours=100, state="failed", words="gpt2 --epochs 5", reason="exit code 1")
    recorded("old-2", hours=50, user="eva", words="vision --epochs 5")
    recorded("mine-3", hours=3, state="stopped", words="python train.py")
    recorded("mine-4", hours=0.2, state="lost")


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "mine-4 mine-3 old-2 old-1"),
        ("--state succeeded", "old-2"),
        ("--state failed,lost", "mine-4 old-1"),
        ("--state failed --state stopped", "mine-3 old-1"),
        ("--user eva", "old-2"),
        ("--since 2d", "mine-4 mine-3"),
        ("--until 2d", "old-2 old-1"),
        ("--since SIXTY_HOURS_AGO --until 1h", "mine-3 old-2"),
        ("--name mine-*", "mine-4 mine-3"),
        ("--grep epochs.5", "old-2 old-1"),
        ("--grep ^mine", "mine-4 mine-3"),
        ("--limit 1", "mine-4"),
        ("--user stranger", ""),
    ],
)
def test_conditions_hold_for_runs_on_record(orch: Orch, words: str, expected: str) -> None:
    words = words.replace("SIXTY_HOURS_AGO", (NOW - timedelta(hours=60)).isoformat())
    names = orch("runs", "-o", "name", *words.split(), on=lan.lan(*THREE))
    assert (names.code, names.out.split()) == (0, expected.split())
    found = json_data(orch("runs", "--json", *words.split(), on=lan.lan(*THREE)).out)
    assert [one["run_id"] for one in found["history"]] == expected.split()
    assert found["more"] == (3 if "limit" in words else 0)
    for one in found["history"]:
        assert datetime.fromisoformat(one["started_at"]).utcoffset() is not None


@pytest.mark.usefixtures("four")
def test_conditions_hold_for_runs_that_nodes_show(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run_id = detached(orch, here)
    for words, listed in (
        (("--state", "running"), True), (("--state", "failed,done"), False), (("--since", "10m"), True),
        (("--until", "10m"), False), (("--grep", "^gpt2$"), True), (("--name", "first-????"), True),
    ):  # fmt: skip
        assert (run_id in orch("runs", "-o", "name", *words, on=here).out.split()) == listed


def test_runs_on_nodes_and_on_record_are_in_one_order(orch: Orch) -> None:
    """A run that a node shows may be older than one of which the record alone is left."""
    recorded("before", hours=30)
    here = lan.lan(*THREE, ends_with=0)
    on_nodes = detached(orch, here)
    recorded("after", hours=-0.5)
    assert orch("runs", "-o", "name", on=here).out.split() == ["after", on_nodes, "before"]
    rows = [line.split()[0] for line in orch("runs", on=here).out.splitlines()[1:]]
    assert rows == ["after", on_nodes, "before"]
    assert orch("runs", "--limit", "1", "-o", "name", on=here).out.split() == ["after"]
    two = orch("runs", "--limit", "2", on=here)
    assert [line.split()[0] for line in two.out.splitlines()[1:]] == ["after", on_nodes]
    assert "1 older run not shown" in two.err


def test_a_table_has_the_newest_and_says_how_many_more(orch: Orch) -> None:
    for number in range(25):
        recorded(f"r-{number:02}", hours=25 - number)
    shown = orch("runs", on=lan.lan(*THREE))
    assert len(shown.out.splitlines()) == 21
    assert "r-24" in shown.out
    assert "5 older runs not shown\n  → orch runs --limit 0" in shown.err
    assert re.search(r"r-24 .* 60 min ago|1 h ago", shown.out)
    assert len(orch("runs", "--limit", "0", on=lan.lan(*THREE)).out.splitlines()) == 26
    assert "no run matches" in orch("runs", "--user", "stranger", on=lan.lan(*THREE)).err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--state finished", "expected one of queued, launching, starting"),
        ("--since yesterday", "--since yesterday: expected 10m, 2h"),
        ("--until 9x", "--until 9x: expected"),
        ("--grep (", "not a regular expression"),
        ("--limit 3 diff a b", "--limit before `diff`"),
        ("-o json diff a b", "--output before `diff`"),
    ],
)
def test_conditions_that_cannot_be_understood(orch: Orch, words: str, says: str) -> None:
    ran = orch("runs", *words.split(), on=lan.lan(*THREE))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


# ── diff ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def say(record: RunRecord, *texts: str, node: str = "alpha") -> None:
    rank = lan.NAMES.index(node)
    with record.open_log(node) as log:
        for second, text in enumerate(texts):
            log.add(RunLine(time=lan.moment(second), node=node, node_rank=rank, rank=rank, text=text))


def happening(kind: str, **values: object) -> str:
    return EVENT_MARK + json.dumps({"event": kind, "rank": 0, **values})


def two(**changes: Any) -> tuple[RunRecord, RunRecord]:
    a = recorded("a-1", words="gpt2 --lr 1e-3")
    b = recorded("b-2", state="failed", reason="NaN", words="gpt2 --lr 1e-2", code_digest="", **changes)
    given = [["lr", "0.001", "command line"], ["seq-len", "128", "small.yaml:3"], ["seed", "1", "default"]]
    say(a, happening("options", options=given),
        happening("started", torch="2.13.0", device="cpu"), happening("joined", samples_per_step=48),
        happening("step", step=1, loss=5.0, per_s=100.0, unit="tokens", final_step=4),
        happening("step", step=4, loss=2.0, per_s=120.0, unit="tokens", final_step=4),
        happening("evaluation", step=2, loss=2.5), happening("evaluation", step=4, loss=2.75),
        happening("checkpoint", step=4, verified=True))  # fmt: skip
    restart = (
        happening("generation", generation=1),
        happening("restarting", outcome="infrastructure", generation=1),
        happening("generation", generation=2),
    )
    for node in ("beta", "gamma"):
        say(b, *restart, node=node)
    say(b, *restart, happening("options", options=[["lr", "0.01", "command line"], ["seed", "1", "default"]]),
        happening("started", torch="2.12.0", device="cpu"),
        happening("step", step=1, loss=6.0, per_s=90.0, unit="tokens", final_step=4),
        happening("stalled", nodes=["beta"], seconds=4.0),
        happening("failed", owner="user", cause="code.assertion", error="ValueError"))  # fmt: skip
    return a, b


def test_two_runs_differ_in_what_was_launched_and_in_how_it_went(orch: Orch) -> None:
    a, _ = two(environment={"LR_TOKEN": "s3cr3t-value", "MODE": "x"}, secrets=(Secret(name="HF_TOKEN", file="/k"),))
    a.save_forecast(read_forecast(lan.forecast()))
    ran = orch("runs", "diff", "a-1", "b", "-o", "json")
    found = json_data(ran.out)
    values = {(one["section"], one["name"]): (one["a"], one["b"]) for one in found["differences"]}
    assert (found["a"], found["b"]) == ("a-1", "b-2")
    assert values["command", "--lr"] == ("0.001", "0.01")
    assert values["command", "--seq-len"] == ("128 (small.yaml:3)", None)
    assert values["versions", "torch on alpha"] == ("2.13.0", "2.12.0")
    assert values["environment", "MODE"] == (None, "x")
    assert values["environment", "LR_TOKEN"] == values["environment", "secret HF_TOKEN"] == (None, "***")
    assert values["forecast", "sync method"] == ("int4", None)
    assert values["outcome", "state"] == ("succeeded", "failed")
    assert values["outcome", "step"] == (4, 1)
    assert values["outcome", "final loss"] == (2.0, 6.0)
    assert values["outcome", "best validation loss"] == (2.5, None)
    assert values["outcome", "final validation loss"] == (2.75, None)
    assert values["outcome", "tokens/s (mean)"] == (110.0, 90.0)
    assert values["outcome", "cause"] == (None, "code.assertion")
    assert values["outcome", "restarts of the ranks"] == values["outcome", "silences of beta"] == (None, 1)
    assert ("nodes", "alpha") not in values
    assert "s3cr3t" not in ran.out + orch("runs", "diff", "a-1", "b-2", "--all").out


def test_the_table_of_a_comparison(orch: Orch) -> None:
    two()
    shown = orch("runs", "diff", "a-1", "b-2").out
    assert re.search(r"--lr +0.001 +0.01\n", shown)
    assert re.search(r"reason +– +NaN\n", shown)
    assert "alpha" not in shown.replace("torch on alpha", "").replace("device on alpha", "")
    assert "cpu x 1" in orch("runs", "diff", "a-1", "b-2", "--all").out
    same = orch("runs", "diff", "a-1", "a-1")
    assert "nothing that was launched differs" in same.err
    assert "final loss" in same.out


def test_an_own_scripts_words_are_compared() -> None:
    facts = facts_of(recorded("s-1", words="python train.py --lr 1e-3 --flag --size=3 out"))
    assert facts["command"] == {"words": "python train.py", "--lr": "1e-3", "--flag": "given", "--size": "3"} | {
        "words": "python train.py out"
    }


def test_runs_that_are_not_on_record(orch: Orch) -> None:
    recorded("gpt2-aa")
    recorded("gpt2-bb")
    assert "no run gpt3-aa on record on this computer (did you mean gpt2-aa?)" in orch(
        "runs", "diff", "gpt3-aa", "gpt2-aa").err  # fmt: skip
    assert "note: gpt2-bb, the newer of 2\n" in orch("runs", "diff", "gpt2", "gpt2-aa").err


def test_a_damaged_record_is_compared_as_far_as_it_goes(orch: Orch) -> None:
    two()
    (RunRecord("b-2").folder / "plan-0.json").write_text('{"run_id": "b-')
    with next(RunRecord("b-2").folder.glob("lines/*.jsonl")).open("a") as log:
        log.write('{"time": "2026\x00')
    ran = orch("runs", "diff", "a-1", "b-2", "--json")
    assert ran.code == 0
    assert "note: the plan of run b-2 is left out" in ran.err
    outcome = {one["name"]: one["b"] for one in json_data(ran.out)["values"] if one["section"] == "outcome"}
    assert (outcome["state"], outcome["step"]) == ("failed", 1)


# ── rerun ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def environments(here: lan.Lan) -> dict[str, dict[str, str]]:
    """Variables of the newest container of each node."""
    return {name: dict(list(node.engine.made.values())[-1][0].environment)
            for name, node in here.nodes.items() if node.engine.made}  # fmt: skip


def test_a_run_is_started_again_as_it_was(orch: Orch) -> None:
    here = lan.lan(*THREE)
    words = ("-y", "-d", "--name", "first", "-n", "alpha,gamma", "--master", "gamma", "--env", "MODE=fast",
             "--max-restarts", "7", "--", "gpt2", "--epochs", "2")  # fmt: skip
    first = orch("launch", *words, on=here).out.strip()
    ran = orch("runs", "rerun", first[:7], "--name", "second", "--detach", on=here)
    assert ran.code == 0, ran.err
    assert ran.asked == ("Start it?",)
    second = ran.out.strip()
    assert re.fullmatch(RUN_ID, second)
    assert second.startswith("second-")
    a, b = RunRecord(first).plan(), RunRecord(second).plan()
    assert a
    assert b
    assert (b.command, b.settings(), b.master) == (a.command, a.settings(), "gamma")
    assert [part.node for part in b.nodes] == [part.node for part in a.nodes]
    assert b.attempt == 0
    assert "not as in run" not in ran.err
    again = orch("runs", "rerun", second, "-y", "-d", "--env", "MODE=slow", on=here)
    assert f"not as in run {second}: environment: MODE: slow (was fast)" in again.err


def test_a_dry_run_and_a_no_start_nothing(orch: Orch) -> None:
    here = lan.lan(*THREE)
    first = detached(orch, here)
    held = here.containers
    dry = orch("runs", "rerun", first, "--dry-run", on=here)
    assert (dry.code, here.containers) == (0, held)
    assert "docker" in dry.out
    refused = orch("runs", "rerun", first, on=here, says=False)
    assert (refused.code, here.containers) == (130, held)
    assert "nothing was started" in refused.err


def test_a_node_that_is_gone_is_left_out_and_a_step_keeps_its_samples(orch: Orch) -> None:
    record = recorded("old-9", words="gpt2 --grad-accum 2")
    say(record, happening("joined", samples_per_step=48))
    Path("inventory.yaml").write_text(
        "nodes:\n" + "".join(f"  {n}: {{address: {lan.address_of(n)}}}\n" for n in THREE[:2])
    )
    ran = orch("runs", "rerun", "old-9", "-y", "-d", on=lan.lan(*THREE[:2]))
    assert ran.code == 0, ran.err
    assert "note: gamma: not in inventory.yaml any more, left out; a step keeps its number of samples" in ran.err
    plan = RunRecord(ran.out.strip()).plan()
    assert plan
    assert plan.command == ("gpt2", "--global-batch-size", "48")
    assert [part.node for part in plan.nodes] == ["alpha", "beta"]
    Path("inventory.yaml").write_text("nodes:\n  other: {address: 10.0.0.99}\n")
    gone = orch("runs", "rerun", "old-9", "-y")
    assert (gone.code, "no node of run old-9 is in inventory.yaml: alpha, beta, gamma" in gone.err) == (3, True)


def test_a_step_keeps_its_samples_where_the_last_attempt_did_not_start() -> None:
    record = recorded("old-9")
    say(record, happening("joined", samples_per_step=48), happening("joined"))
    plan = record.plan()
    assert plan
    record.save_plan(replace(plan, attempt=1), {name: f"{name}-1" for name in THREE})
    assert samples_per_step_of(record) == 48
    assert facts_of(record)["outcome"]["samples per step"] == 48


def test_an_image_that_was_built_again_is_named(orch: Orch) -> None:
    here = lan.lan(*THREE)
    first = detached(orch, here)
    newer = replace(lan.IMAGE, id="sha256:" + "2b" * 32)
    for node in here.nodes.values():
        node.engine.held.clear()
        node.engine.held[newer.id] = newer
    ran = orch("runs", "rerun", first, "-y", "-d", on=here)
    assert ran.code == 0, ran.err
    assert f"not as in run {first}: image: id (cpu): {'2b' * 6} (was {'1a' * 6})" in ran.err


def test_a_value_that_no_plan_holds_is_taken_from_the_environment_or_refused(
    orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lan.lan(*THREE)
    first = orch("launch", "-y", "-d", "--env", "MY_TOKEN=abc-123-xyz", on=here).out.strip()
    refused = orch("runs", "rerun", first, "-y", "-d", on=here)
    assert refused.code != 0
    assert "MY_TOKEN" in refused.err
    monkeypatch.setenv("MY_TOKEN", "other-value-1")
    assert orch("runs", "rerun", first, "-y", "-d", on=here).code == 0
    assert {one["MY_TOKEN"] for one in environments(here).values()} == {"other-value-1"}


def test_code_that_has_changed_is_fetched_from_a_node_or_refused(orch: Orch) -> None:
    here = lan.lan(*THREE)
    mine = Path("mine")
    mine.mkdir()
    (mine / "train.py").write_text("print(1)\n")
    launched = orch("launch", "-y", "-d", "--workdir", "mine", "--", "python", "train.py", on=here)
    first = launched.out.strip()
    same = orch("runs", "rerun", first, "-y", "-d", on=here)
    assert same.code == 0, same.err
    assert f"code: {mine.resolve()}, as run {first} had it" in same.err
    (mine / "train.py").write_text("print(2)\n")
    changed = orch("runs", "rerun", first, "-y", "-d", on=here)  # these nodes' archives are empty
    assert changed.code == 3, changed.err
    assert f"the code of run {first} is not kept" in changed.err
    assert f"→ with the code as it is now: orch runs rerun {first} --workdir {mine.resolve()}" in changed.err
    taken = orch("runs", "rerun", first, "-y", "-d", "--workdir", "mine", on=here)
    assert taken.code == 0
    assert f"not as in run {first}: code: content:" in taken.err


def test_data_that_is_nowhere_any_more_is_refused_before_anything_starts(orch: Orch) -> None:
    recorded("d-1", data=lan.data("0" * 16, "/nowhere/Data"))
    here = lan.lan(*THREE)
    for node in here.nodes.values():
        node.answers[("sh", "-c", "*")] = (1, "", "")
    ran = orch("runs", "rerun", "d-1", "-y", on=here)
    assert (ran.code, here.containers) == (3, {})
    assert "/nowhere/Data is not here any more, and no node that answers has the data of run d-1" in ran.err
    assert "orch runs rerun d-1 --data FOLDER" in ran.err


def test_code_comes_from_a_node_without_what_the_run_wrote_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    code = next(one for one in artifacts_of(place.first) if one.is_code)
    source = ProjectDir(node=place.nodes["alpha"], folder=place.first.nodes[0].folder)
    saved = Path(code.place(source))
    (saved / "output.bin").write_bytes(b"x" * 1000)
    fetch(code, source, tmp_path / "fetched")
    assert folder_digest(tmp_path / "fetched") == code.digest
    assert not (tmp_path / "fetched" / "output.bin").exists()
    (saved / "train.py").write_text("print('another')\n")
    with pytest.raises(PreflightError, match="has changed since run"):
        fetch(code, source, tmp_path / "again")
