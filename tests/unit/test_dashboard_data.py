"""Data of the page: runs, curves, logs, causes, checkpoints, findings; hostile text; the two clicks of an action."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from threading import Event
from typing import Any

import pytest
from starlette.testclient import TestClient

from contract.event_lines import encode_event
from contract.events import StepDone
from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.runs.launch import launch
from orchestrator.render.findings import DoctorReport, doctor_data
from orchestrator.specs.errors import ConflictError, NodeUnreachableError
from orchestrator.specs.finding import Finding
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.plain import as_json as page_json
from orchestrator.watch.plain import shown
from orchestrator.watch.server import logs as web_logs
from orchestrator.watch.server.actions import MAX_ACTIONS
from orchestrator.watch.server.address import web_address
from orchestrator.watch.server.app import WebParts, web_app
from orchestrator.watch.server.fleet import Refreshed, WatchedFleet
from orchestrator.watch.server.logs import LinesWanted, log_page, search_page
from orchestrator.watch.server.runs import RunCurves, RunList
from orchestrator.watch.server.serving import web_parts
from tests import lan
from tests.page_scene import RUN, TRACEBACK, PlayedWatch, played_parts, record_run

BASE = "http://127.0.0.1:8642"
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\x07\u202e\x00\r"
Ask = Callable[..., Any]


class Performed:
    """Commands that the page starts, which end when they are let."""

    def __init__(self) -> None:
        self.words: list[tuple[str, ...]] = []
        self.may_end = Event()
        self.may_end.set()
        self.output, self.code = "", 0

    def __call__(self, words: Sequence[str], hear: Callable[[str], object]) -> tuple[int, str]:
        self.words.append(tuple(words))
        hear(f"stopping \x1b[1m{words[-1]}")
        assert self.may_end.wait(20)
        return self.code, self.output


@pytest.fixture
def performed() -> Performed:
    return Performed()


@pytest.fixture
def parts(performed: Performed) -> WebParts:
    return played_parts(PlayedWatch(lan.NAMES[:2]), performed)


@pytest.fixture
def client(parts: WebParts) -> Iterator[TestClient]:
    with TestClient(web_app(parts, web_address("127.0.0.1", 8642, None, None), "t"), base_url=BASE) as client:
        client.get("/?token=t")
        client.headers["origin"] = BASE
        yield client


def until(ask: Callable[[], Any], true: Callable[[Any], object]) -> Any:
    deadline = time.monotonic() + 20
    while not true(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def curves(client: TestClient, *runs: str, **parameters: str) -> list[dict[str, Any]]:
    def ask() -> list[dict[str, Any]]:
        answer = client.get("/api/curves", params={"run": list(runs), **parameters})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["runs"]
        return found

    found: list[dict[str, Any]] = until(ask, lambda found: not any(run["reading"] for run in found))
    return found


# ── Runs and curves ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_runs_newest_first_with_their_newest_figures(client: TestClient) -> None:
    record_run("old-1", lan.NAMES[:2], points=40, began=time.time() - 9000, outcome=("failed", HOSTILE))
    record_run("new-1", lan.NAMES[:2], points=20)
    (RunRecord("cut-1").folder).mkdir(parents=True)
    (RunRecord("cut-1").folder / "record.jsonl").touch()
    (RunRecord("cut-1").folder / "plan-0.json").write_text('{"half": ')
    found = client.get("/api/runs").json()
    rows = {row["run_id"]: row for row in found["runs"]}
    assert list(rows) == ["new-1", "old-1", "cut-1"]
    assert (rows["new-1"]["step"], rows["new-1"]["final_step"], rows["new-1"]["state"]) == (20, 20, "succeeded")
    assert rows["new-1"]["loss"] > 1
    assert rows["old-1"]["reason"] == "<img src=x onerror=alert(1)>"
    assert "cannot be read" in rows["cut-1"]["reason"] or rows["cut-1"]["reason"]


def test_no_run_at_all(client: TestClient) -> None:
    assert client.get("/api/runs").json()["runs"] == []
    assert client.get("/api/search", params={"words": "x"}).json()["results"] == []


def test_curves_of_several_runs_side_by_side(client: TestClient) -> None:
    for seed, name in enumerate(("one-1", "two-1")):
        record_run(name, lan.NAMES[:2], points=900, seed=seed)
    first, second = curves(client, "one-1", "two-1", group="train,validation", name="loss")
    assert (first["run_id"], second["run_id"]) == ("one-1", "two-1")
    assert [(one["group"], one["name"]) for one in first["curves"]] == [("train", "loss"), ("validation", "loss")]
    loss = first["curves"][0]
    assert (loss["x"][0], loss["x"][-1], loss["recorded"]) == (1, 900, 900)
    assert len(loss["x"]) == len(loss["y"]) <= 240
    assert {"loss", "lr", "per_s", "grad_norm"} <= set(first["figures"])
    assert {one["node"] for one in curves(client, "one-1", group="resources")[0]["curves"]} == {"alpha", "beta"}


def test_the_steps_of_an_active_run_are_added(client: TestClient) -> None:
    record = record_run(RUN, lan.NAMES[:2], points=30, outcome=None)
    assert curves(client, RUN, name="loss")[0]["steps"] == 30
    text = encode_event(StepDone(rank=0, step=31, loss=0.5))
    with record.open_log("alpha", "c0") as log:
        log.add(RunLine(time="2026-11-25T09:00:00Z", node="alpha", node_rank=0, rank=0, text=text))
    until(lambda: curves(client, RUN, name="loss")[0], lambda run: run["steps"] == 31)


def test_a_run_that_is_not_there(client: TestClient) -> None:
    for path in ("/api/curves?run=none", "/api/logs?run=none", "/api/runs/none/why", "/api/logs?run=../../etc"):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "on record on this computer" in answer.json()["error"]
    assert client.get("/api/curves").status_code == 400
    assert client.get("/api/curves", params={"run": [f"r{n}" for n in range(11)]}).status_code == 400


def test_a_record_that_is_removed_while_it_is_shown(client: TestClient) -> None:
    record = record_run("one-1", lan.NAMES[:2], points=30)
    curves(client, "one-1")

    def removed() -> bool:
        shutil.rmtree(record.folder, ignore_errors=True)  # its index may be written meanwhile
        return not record.folder.exists()

    until(removed, bool)
    assert client.get("/api/curves?run=one-1").status_code == 404
    assert client.get("/api/runs").json()["runs"] == []


def test_the_answers_are_small_whatever_was_recorded() -> None:
    record = record_run("big-1", lan.NAMES, points=3000)
    (view,) = RunCurves().runs([record])
    assert len(page_json(view)) < 350_000
    assert max(len(one["x"]) for one in view["curves"]) <= 240


def test_an_answer_begins_no_further_run_after_its_time() -> None:
    records = [record_run(name, lan.NAMES[:2], points=20) for name in ("one-1", "two-1")]
    seconds = count(step=0.7)
    board = RunCurves(clock=lambda: next(seconds))
    assert [view["reading"] for view in board.runs(records)] == [False, True]
    assert [view["reading"] for view in board.runs(reversed(records))] == [False, False]


def test_a_record_that_cannot_be_read_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole = (record_run(name, lan.NAMES[:2], points=20) for name in ("one-1", "two-1"))
    monkeypatch.setattr(broken, "new_events", lambda _cursor: 1 / 0)
    first, second = RunCurves().runs([broken, whole])
    assert (first["state"], second["state"]) == ("unknown", "succeeded")
    assert first["reason"].startswith("the record cannot be read: ")


def test_a_row_of_the_run_that_is_watched_has_its_state() -> None:
    record_run(RUN, lan.NAMES[:2], points=20, outcome=None)
    parts = played_parts(PlayedWatch(lan.NAMES[:2]))
    parts.feed.start()
    live = until(parts.feed.view, lambda view: view.run)
    parts.feed.close()
    (row,) = RunList().data(None, live.run)["runs"]
    assert (row["state"], row["active"]) == ("running", True)


def test_the_cause_of_a_failure(client: TestClient) -> None:
    record_run("bad-1", lan.NAMES[:2], points=60, outcome=("failed", "rank 1"), tail=TRACEBACK)
    why = client.get("/api/runs/bad-1/why").json()
    assert why["failure"]["cause"]["id"] == "gpu.memory"
    assert why["headline"].startswith("rank 1 on beta: torch.OutOfMemoryError")
    assert why["owner"]
    record_run("good-1", lan.NAMES[:2], points=20)
    assert client.get("/api/runs/good-1/why").json()["failure"] is None


# ── Logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(record: RunRecord, *texts: str, node: str = "alpha", second: int = 0) -> None:
    with record.open_log(node, "c1") as log:
        for n, text in enumerate(texts):
            log.add(RunLine(time=lan.moment(second, n), node=node, node_rank=0, rank=n % 2, text=text))


def texts(page: dict[str, Any]) -> list[str]:
    return [line["text"] for line in page["lines"]]


def test_lines_by_node_rank_level_and_words(client: TestClient) -> None:
    record = record_run("one-1", lan.NAMES[:2], points=30, tail=TRACEBACK)
    page = client.get("/api/logs?run=one-1").json()
    assert texts(page)[-4:] == list(TRACEBACK)
    assert page["nodes"] == ["alpha", "beta"]
    assert not any("@orch" in text for text in texts(page))
    assert texts(client.get("/api/logs?run=one-1&level=error").json()) == list(TRACEBACK)
    assert {line["level"] for line in page["lines"]} == {"info", "error"}
    assert texts(client.get("/api/logs?run=one-1&words=MEMORY cuda").json()) == [TRACEBACK[3]]
    assert all("step" in text for text in texts(client.get("/api/logs?run=one-1&node=alpha").json()))
    assert texts(client.get("/api/logs?run=one-1&rank=7").json()) == []
    assert client.get("/api/logs?run=one-1&rank=x").status_code == 400
    assert client.get("/api/logs?run=one-1&level=loud").status_code == 400
    newest = client.get("/api/logs?run=one-1&number=2").json()
    assert texts(newest) == list(TRACEBACK[2:])
    older = log_page(record, LinesWanted(until=newest["reached"], number=3))
    assert texts(older)[-1] == TRACEBACK[2]


def test_hostile_lines_are_text_without_controls(client: TestClient) -> None:
    record = record_run("one-1", lan.NAMES[:2], points=10)
    write(record, HOSTILE + "end", "\x1b]0;title\x07plain", "x" * 100_000, node="beta", second=59)
    found = client.get("/api/logs?run=one-1&node=beta").json()
    assert texts(found)[:2] == ["end", "plain"]  # of a line with a carriage return, what it showed last
    assert len(texts(found)[2]) == web_logs.LONGEST
    assert not any(ord(letter) < 32 for text in texts(found) for letter in text)


def large_record(name: str) -> RunRecord:
    """A record of several blocks for each of two nodes, with one line at its beginning that others do not resemble."""
    record = RunRecord(name)
    write(record, "the needle", second=0)
    for second in range(1, 40):
        for node in lan.NAMES[:2]:
            write(record, *(f"line {n} of {second} {'x' * 200}" for n in range(200)), node=node, second=second)
    return record


def test_a_search_in_a_large_log_ends_in_time_and_continues() -> None:
    record, ticks = large_record("big-1"), count()

    def slow() -> float:
        return next(ticks) * web_logs.BUDGET_S  # time for one block, or for two

    page = log_page(record, LinesWanted(words="zz"), slow)  # too short for the letters of blocks: all lines are read
    assert page["lines"] == []
    assert lan.moment(1) < page["reached"] < lan.moment(40)
    found, reached = list[str](), ""
    for _ in range(60):
        page = log_page(record, LinesWanted(words="77", until=reached, number=500), slow)
        found = texts(page) + found
        if not (before := page["reached"]):
            break
        assert not reached or before < reached
        reached = before
    assert not page["reached"]
    whole = log_page(record, LinesWanted(words="77", number=500), lambda: 0.0)
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(texts(whole)))
    assert len(texts(whole)) > 20
    assert texts(log_page(record, LinesWanted(words="needle"), lambda: 0.0)) == ["the needle"]


def test_a_search_in_all_runs(client: TestClient) -> None:
    record_run("one-1", lan.NAMES[:2], points=10, tail=TRACEBACK)
    record_run("two-1", lan.NAMES[:2], points=10, tail=(HOSTILE + "out of memory",))
    found = client.get("/api/search", params={"words": "of memory"}).json()
    assert {result["run_id"] for result in found["results"]} == {"one-1", "two-1"}
    assert found["complete"]
    assert client.get("/api/search?words=").status_code == 400


def test_a_search_in_all_runs_ends_in_time() -> None:
    large_record("one-1")
    ticks = count()
    assert search_page("zz", lambda: float(next(ticks))) == {"results": [], "complete": False}


def test_plain_data() -> None:
    assert json.loads(page_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": "\u2028</script>"})) == {
        "a": None, "b": [None, 1.5], "c": "\u2028</script>",
    }  # fmt: skip
    assert shown({"a\x1b[1m": ("x\x00", 1, None)}) == {"a": ["x", 1, None]}


# ── Nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoints_and_runs_of_the_nodes() -> None:
    here = lan.lan(*lan.NAMES[:3], ends_with=None)
    launch(here.nodes, lan.plan(lan.NAMES[:3]))
    lan.keep_checkpoint(here.nodes["alpha"], "first-1", 40)
    looked = Event()

    def no_answer(*_: object) -> Any:
        assert looked.wait(60)
        raise NodeUnreachableError("no answer in 5 s", node="gamma")

    here.nodes["gamma"].answers, here.nodes["gamma"].programs = {}, no_answer
    fleet = WatchedFleet([lan.spec(name) for name in lan.NAMES[:3]], "orch", None)
    with connecting_by(here.connect), fleet.watching():
        assert fleet.checkpoints()["asked"] is False
        looked.set()
        found = until(fleet.checkpoints, lambda found: found["asked"])
        runs = until(fleet.runs.newest, lambda runs: runs)
    (one,) = found["checkpoints"]
    assert (one["run_id"], one["step"], one["node"], one["copies"]) == ("first-1", 40, "alpha", 1)
    assert found["unreachable"] == {"gamma": "no answer in 5 s"}
    (row,) = RunList().data(runs)["runs"]
    assert (row["run_id"], row["state"], row["active"]) == (lan.IDENTITY.run_id, "running", True)
    assert row["nodes"] == list(lan.NAMES[:3])


def test_ranks_on_nodes_that_were_not_chosen_are_not_lost() -> None:
    here = lan.lan(*lan.NAMES[:3], ends_with=None)
    launch(here.nodes, lan.plan(lan.NAMES[:3]))
    parts = web_parts([lan.spec("alpha")], None, project="orch", inventory=None, some=True)
    with connecting_by(here.connect), parts.fleet.watching() as watch:
        found = until(parts.fleet.runs.newest, lambda runs: runs)
        assert watch._some
    (row,) = RunList().data(found)["runs"]
    assert (row["state"], row["nodes"]) == ("running", ["alpha"])


def test_machines_are_shown_after_a_run_on_a_cluster() -> None:
    here = lan.lan(*lan.NAMES[:2])
    RunRecord(lan.IDENTITY.run_id).save_plan(replace(lan.plan(lan.NAMES[:2]), cluster="uni"))
    fleet = WatchedFleet([lan.spec(name) for name in lan.NAMES[:2]], "orch", None)
    with connecting_by(here.connect), fleet.watching():
        assert [node.name for node in fleet._nodes] == list(lan.NAMES[:2])


def test_an_answer_that_fails_keeps_the_last_one() -> None:
    now, answers = [0.0], [1]

    def ask() -> int:
        return 10 // answers[0]

    def later() -> int | None:
        now[0] += 20.0
        return asked.newest()

    asked = Refreshed(ask, 10.0, clock=lambda: now[0])
    assert asked.answer is None
    until(asked.newest, lambda answer: answer == 10)
    answers[0] = 0
    until(lambda: (later(), asked.problem)[1], lambda problem: problem.startswith("ZeroDivisionError"))
    assert asked.answer == 10
    answers[0] = 2
    until(later, lambda answer: answer == 5)
    assert asked.problem == ""


# ── Actions ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ended(parts: WebParts) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = until(
        parts.actions.data, lambda actions: all(one["code"] is not None for one in actions)
    )
    return found


@pytest.mark.parametrize(
    ("verb", "words"), [("stop", ("stop", RUN, "--yes")), ("restart", ("restart", RUN, "--yes", "--detach"))]
)
def test_an_action_runs_the_command_of_its_name(
    client: TestClient, parts: WebParts, performed: Performed, verb: str, words: tuple[str, ...]
) -> None:
    assert client.post(f"/api/runs/{RUN}/{verb}", json={}).status_code == 202
    (action,) = ended(parts)
    assert performed.words == [words]
    assert (action["verb"], action["run_id"], action["code"]) == (verb, RUN, 0)
    assert action["lines"] == [f"stopping {words[-1]}"]


@pytest.mark.parametrize(
    "path", ["/api/runs/--all/stop", "/api/runs/x%20y/stop", f"/api/runs/{RUN}/delete", "/api/runs/.x/stop"]
)
def test_400_for_what_is_no_run_or_no_action(client: TestClient, path: str) -> None:
    assert client.post(path, json={}).status_code == 400


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'"x"'])
def test_400_for_a_body_that_is_no_object(client: TestClient, body: bytes) -> None:
    answer = client.post(f"/api/runs/{RUN}/stop", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert client.post(f"/api/runs/{RUN}/stop", data={"x": "y"}).status_code == 400


def test_one_action_on_a_run_at_a_time(client: TestClient, parts: WebParts, performed: Performed) -> None:
    performed.may_end.clear()
    assert client.post(f"/api/runs/{RUN}/stop", json={}).status_code == 202
    busy = client.post(f"/api/runs/{RUN}/stop", json={})
    assert (busy.status_code, "another action" in busy.json()["error"]) == (409, True)
    performed.may_end.set()
    ended(parts)
    assert len(performed.words) == 1


def test_an_action_that_is_running_is_never_forgotten(parts: WebParts, performed: Performed) -> None:
    performed.may_end.clear()
    actions = parts.actions
    for number in range(MAX_ACTIONS + 2):
        actions.begin("stop", f"r-{number}")
    with pytest.raises(ConflictError, match="another action on r-0 is running"):
        actions.begin("stop", "r-0")
    performed.may_end.set()
    assert len(ended(parts)) == MAX_ACTIONS + 2
    actions.examine()
    assert [one["number"] for one in ended(parts)] == list(range(4, MAX_ACTIONS + 4))


def test_the_check_of_the_machines(client: TestClient, parts: WebParts, performed: Performed) -> None:
    sleep = [Finding.of("power.sleep", name, why="a laptop", targets=("sleep.target",)) for name in ("laptop", "beta")]
    skew = Finding.of("clock.skew", "beta", case="far", off="47 s behind")
    report = DoctorReport(
        at=datetime.now(UTC), nodes=(), findings={"power": tuple(sleep), "clock": (skew,)}, not_checked={},
        area_seconds={}, seconds=1.0, stage_seconds={},
    )  # fmt: skip
    performed.output = json.dumps({"data": doctor_data(report)})
    folded = [
        {"id": "clock.skew", "severity": "error", "sentence": skew.message, "cause": skew.cause, "fix": skew.fix},
        {"id": "power.sleep", "severity": "warning", "sentence": f"laptop, beta: {sleep[0].message}",
         "cause": sleep[0].cause, "fix": sleep[0].fix},
    ]  # fmt: skip
    assert client.get("/api/findings").json() == {"findings": None}
    assert client.post("/api/findings", json={}).status_code == 202
    ended(parts)
    assert performed.words == [("doctor", "--json")]
    assert client.get("/api/findings").json()["findings"]["findings"] == folded
    performed.output, performed.code = "no JSON", 4
    client.post("/api/findings", json={})
    assert ended(parts)[-1]["code"] == 4
    assert client.get("/api/findings").json()["findings"]["findings"] == folded  # the last one that was made
