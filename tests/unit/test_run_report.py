"""`orch report`: everything from the record alone, in one file that loads nothing, as text and as JSON."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.log_lines import EVENT_MARK
from orchestrator.specs.curve import MOST_POINTS, CurvePoints
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import Journal
from orchestrator.state.journal_entries import EndEntry
from orchestrator.state.run_history import MOST_CURVES, MOST_MOMENTS, LinesOnRecord, RunHistory
from orchestrator.state.run_report import RunReport
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.report_file import report_html
from orchestrator.watch.run_view import cause_view
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import Orch

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[31m\x00\u202e\ud800&lt;"


def line_of(second: float, words: str, node: str = "alpha", rank: int | None = 0) -> RunLine:
    return RunLine(time=lan.moment(second, round(second % 1 * 1e9)), node=node, node_rank=0, rank=rank, text=words)


def event(second: float, kind: str, node: str = "alpha", rank: int | None = 0, **values: object) -> RunLine:
    words = EVENT_MARK + json.dumps({"event": kind, "node": node, "rank": rank, **values})
    return line_of(second, words, node, rank)


def step(number: int, at: float = 0.0, **figures: object) -> RunLine:
    values = {"loss": 10.0 / number, "per_s": 100.0, "unit": "tokens", "lr": 0.001, "grad_norm": 1.0, **figures}
    return event(at or 20 + number, "step", step=number, final_step=30, **values)


USAGE = {"cpu_percent": 91.0, "cpus": 4, "ram_used_mib": 3000, "ram_limit_mib": 8000}


def whole_run() -> list[RunLine]:
    """A run of two nodes with a restart."""
    return [
        event(6, "generation", rank=None, generation=1),
        event(8, "started", device="cpu", torch="2.11.0", precision="fp32", threads=2),
        event(8, "started", node="beta", rank=1, device="cuda:0", torch="2.11.0"),
        event(9, "joined", world_size=2, backend="gloo"),
        event(10, "forecast", **lan.forecast()),
        event(10.5, "rebalanced", shares={"alpha": 0.75, "beta": 0.25}),
        event(11, "options", options=[["lr", "0.001", "conf.yaml:3"], ["seed", "1337", "default"]]),
        *(step(number) for number in range(1, 11)),
        event(30.5, "evaluation", step=10, loss=1.5, perplexity=4.5),
        event(30.6, "checkpoint", step=10, path="x", verified=True, seconds=1.0),
        event(31, "resources", rank=None, **USAGE),
        step(11), step(12),
        event(33, "restarting", rank=1, node="beta", outcome="infrastructure", reason="lost", generation=1),
        event(34, "generation", rank=None, generation=2),
        event(35, "joined", world_size=2, backend="gloo"),
        event(36, "resumed", step=10),
        *(step(number, at=36 + number / 100, loss=2.0) for number in range(11, 16)),
        event(37, "sample", text="Once upon"),
        line_of(38, "an ordinary line"),
        event(38, "done", step=15, loss=2.0, seconds=20.0),
        event(39, "finished", rank=None, outcome="done"),
    ]  # fmt: skip


def recorded(outcome: tuple[str, str] | None) -> Journal:
    return Journal(end=EndEntry(state=outcome[0], reason=outcome[1]) if outcome else None)


def report_of(lines: list[RunLine], outcome: tuple[str, str] | None = ("succeeded", "")) -> RunReport:
    history = RunHistory(replace(lan.plan(), started_at=lan.moment(0)))
    for line in lines:
        history.add(line)
    ordinary = tuple(line for line in lines if line.event is None)
    on_record = LinesOnRecord(evidence=tuple(lines), last=ordinary, number=len(lines))
    return history.report("r1", journal=recorded(outcome), forecast=None, now=0.0, lines=on_record)


EMPTY = RunHistory().report("empty-1", journal=Journal(), forecast=None, now=0.0)


def keep(run_id: str, lines: list[RunLine]) -> RunRecord:
    record = RunRecord(run_id)
    record.save_plan(replace(lan.plan(), run_id=run_id))
    for line in lines:
        with record.open_log(line.node) as log:
            log.add(line)
    return record


# ── Data ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_report_has_what_the_record_tells() -> None:
    made = report_of(whole_run())
    assert (made.state, made.steps, made.final_step, made.sync, made.backend) == ("succeeded", 15, 30, "int4", "gloo")
    loss = made.curve("train", "loss")
    assert loss is not None
    assert loss.x == tuple(range(1, 16))  # the steps after the restart replace those before it
    assert loss.y[10:] == (2.0,) * 5
    assert [(one.name, one.value, one.origin) for one in made.options] == [
        ("lr", "0.001", "conf.yaml:3"), ("seed", "1337", "default")
    ]  # fmt: skip
    assert [one.name for one in made.phases] == ["launch", "start", "measure", "train", "restart", "start", "measure",
                                                 "train"]  # fmt: skip
    assert [one.text for one in made.moments if one.kind == "fault"] == ["all ranks restart: lost"]
    assert made.samples[0].text == "Once upon"
    assert [words for _, _, words in made.last_lines] == ["an ordinary line"]
    alpha, beta = made.machines
    assert (alpha.torch, alpha.link_mbit_s, alpha.share, alpha.ranks) == ("2.11.0", 941.0, 0.75, (0, 0))
    assert beta.device == "cuda:0"
    assert next(one for one in made.curves if one.name == "memory").y == (37.5,)


@pytest.mark.parametrize(("ended_at", "begin_s"), [(1000.0, 12.0), (1008.5, 20.5), (1009.0, 21.0), (0.0, 9.0)])
def test_training_begins_when_the_first_step_ends_however_late_it_is_reported(ended_at: float, begin_s: float) -> None:
    lines = [
        event(6, "generation", rank=None, generation=1),
        event(9, "joined"),
        step(1, 21, t=1009.0, ended_at=ended_at),
    ]
    made = report_of([line_of(0, "begin"), *lines, line_of(30, "end")])
    assert made.phases[-1].name == "train"
    assert made.phases[-1].begin_s == pytest.approx(begin_s)


def test_it_is_json() -> None:
    made = asdict(report_of(whole_run()))
    assert json.loads(json.dumps(made, allow_nan=False))["curves"][0]["name"] == "loss"


def test_secrets_of_the_launch_are_hidden() -> None:
    plan = lan.plan(environment={"HF_TOKEN": "hf_abcdefgh", "MODE": "fast"})
    made = RunHistory(plan).report("r1", journal=Journal(), forecast=None, now=0.0)
    assert "hf_abcdefgh" not in json.dumps(asdict(made))
    assert "fast" in next(one.value for one in made.options if one.name == "env")


def test_a_failure_has_its_cause() -> None:
    lines = [
        *whole_run()[:12],
        line_of(40, "Traceback (most recent call last):", "beta", 1),
        line_of(40, "KeyError: 'x'", "beta", 1),
        event(40, "failed", "beta", 1, error="KeyError", message="'x'", owner="user", frame="train.py:3 in main"),
    ]
    made = report_of(lines, ("failed", "exit code 1"))
    assert made.state == "failed"
    cause = cause_view(made.postmortem)
    assert cause["headline"].startswith("rank 1 on beta")
    assert cause["failure"]["cause"]["frame"] == "train.py:3 in main"


def test_memory_is_bounded_by_names_and_moments() -> None:
    lines = [step(1, **{f"figure {n}": 1.0 for n in range(2 * MOST_CURVES)})]
    lines += [event(30 + n / 100, "checkpoint", step=n) for n in range(2 * MOST_MOMENTS)]
    made = report_of(lines)
    assert len(made.curves) == MOST_CURVES
    assert made.curves_left_out
    assert len(made.moments) == MOST_MOMENTS
    assert made.moments_left_out == MOST_MOMENTS
    assert (made.moments[0].step, made.moments[-1].step) == (0, 2 * MOST_MOMENTS - 1)


@given(st.lists(st.floats(-1e29, 1e29), min_size=1, max_size=3000))
def test_a_curve_keeps_its_ends_and_extremes(values: list[float]) -> None:
    points = CurvePoints()
    for x, y in enumerate(values):
        points.add(x, y)
    made = points.curve(group="train", name="loss")
    assert made is not None
    assert len(made.x) <= MOST_POINTS + 4
    assert (min(made.y), max(made.y), made.y[0], made.last) == (min(values), max(values), values[0], values[-1])
    assert list(made.x) == sorted(set(made.x))
    assert made.recorded == len(values)
    thin = made.thinned(50)
    assert len(thin) <= 50 or len(made.x) <= 50
    assert {min(made.y), max(made.y)} <= {y for _, y in thin}


# ── HTML ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Elements(HTMLParser):
    """Names and attributes of all elements of a page, and the content of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.scripts += [""] if tag == "script" else []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def hostile_run() -> list[RunLine]:
    """A run in which every text that a node chooses is HTML."""
    gpu = {"index": 0, "name": HOSTILE, "utilization_percent": 5}
    return [
        event(6, "started", HOSTILE, device=HOSTILE, torch=HOSTILE, precision=HOSTILE),
        event(7, "options", options=[[HOSTILE, HOSTILE, HOSTILE]]),
        event(8, "forecast", **lan.forecast(unit=HOSTILE, warnings=[HOSTILE], sync=HOSTILE)),
        step(1, **{HOSTILE: 2.0}, unit=HOSTILE),
        event(30, "evaluation", step=1, loss=1.0, **{HOSTILE: 1.0}),
        event(31, "resources", HOSTILE, None, **USAGE, gpus=[gpu]),
        event(32, "sample", text=HOSTILE),
        event(33, "left_out", HOSTILE, why=HOSTILE),
        line_of(34, HOSTILE),
        line_of(35, HOSTILE, HOSTILE),
        event(36, "failed", HOSTILE, error=HOSTILE, message=HOSTILE, frame=HOSTILE),
        event(37, "finished", HOSTILE, outcome="user", reason=HOSTILE),
    ]


def test_text_of_nodes_never_becomes_html() -> None:
    made = replace(report_of(hostile_run(), ("failed", HOSTILE)), command=HOSTILE, user=HOSTILE, notes=(HOSTILE,))
    for page in (report_html([made], made_at="", version=""), report_html([made, made], made_at="", version="")):
        page.encode("utf-8")
        elements = Elements(page)
        names = [name for name, _ in elements.found]
        assert set(names) & {"img", "iframe", "object", "link", "form", "base"} == set()
        assert names.count("script") == 3  # the data, uPlot, and those of the page
        keys = {key for _, attributes in elements.found for key in attributes}
        assert not [key for key in keys if key.startswith("on") or key in ("src", "style", "srcset", "href")]
        data = elements.scripts[0]
        shown = json.dumps(json.loads(data), ensure_ascii=False) + page.replace(data, "")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
        assert "alert(1)" in shown  # it is there, as text


@given(st.text())
def test_data_cannot_end_its_element(words: str) -> None:
    made = report_html([replace(EMPTY, command=words, user=f"{words}</script><!--<script>")], made_at="", version="")
    elements = Elements(made)
    assert len(elements.scripts) == 3
    assert json.loads(elements.scripts[0])["runs"][0]["user"].endswith("</script><!--<script>")


def test_the_policy_of_a_file_allows_its_own_scripts_and_style_alone() -> None:
    page = report_html([report_of(whole_run())], made_at="now", version="1")
    elements = Elements(page)
    policy = str(next(each["content"] for name, each in elements.found if "http-equiv" in each))
    style = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    hashes = [base64.b64encode(sha256(text.encode()).digest()).decode() for text in (*elements.scripts[1:], *style)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; style-src 'sha256-{hashes[2]}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    loading = re.findall(r"https?:\S+|url\(|@import|^import|fetch\(|innerHTML", page, re.MULTILINE)
    assert set(loading) == {'http://www.w3.org/2000/svg";', "https://github.com/leeoniya/uPlot"}


def test_key_figures_without_scripts() -> None:
    page = report_html([report_of(whole_run())], made_at="now", version="1")
    noscript = page.partition("<noscript")[2].partition("</noscript>")[0]
    for words in (
        "Run r1: succeeded",
        "<dt>Step</dt><dd>15 of 30</dd>",
        "<th>loss</th><td>10</td><td>1 at 10</td><td>2</td>",
    ):
        assert words in noscript
    assert "<th>lr</th><td>0.001</td><td>0.001 to 0.001</td>" in noscript


# ── Command ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_for_the_newest_run_or_several(orch: Orch) -> None:
    keep("r1", whole_run())
    keep("r2", whole_run())
    ran = orch("report", "r1")
    assert (ran.code, ran.out) == (0, "")
    assert "<title>Run r1</title>" in Path("r1.html").read_text()
    assert orch("report", "r1", "r2", "--to", "both/page.html").code == 0
    both = Path("both/page.html").read_text()
    assert "<title>Runs r1, r2</title>" in both
    assert [run["run_id"] for run in json.loads(Elements(both).scripts[0])["runs"]] == ["r1", "r2"]


def test_json(orch: Orch) -> None:
    keep("r1", whole_run())
    data = json_data(orch("report", "-o", "json").out)
    assert data["runs"][0]["run_id"] == "r1"
    assert json_data(orch("report", "--format", "json").out) == data
    assert not list(Path().glob("*.html"))


def test_text(orch: Orch) -> None:
    keep("r1", [*whole_run(), line_of(41, HOSTILE)])
    keep("r2", whole_run()[:12])
    out = orch("report", "r1", "--format", "text").out
    assert out.startswith("run r1   succeeded\n")
    assert re.search(r"^  Step +15 of 30$", out, re.MULTILINE)
    assert re.search(r"^  loss +10 +1 at 10 +2$", out, re.MULTILINE)
    assert "\x1b" not in out
    both = orch("report", "r1", "r2", "--format", "text").out
    assert re.search(r"^ +r1 +r2$", both, re.MULTILINE)
    assert re.search(r"^Step +15 of 30 +5 of 30$", both, re.MULTILINE)
    assert orch("report", "--format", "text", "--to", "x").code == 2


def test_refusals(orch: Orch) -> None:
    ran = orch("report")
    assert (ran.code, ran.err) == (3, "error: this computer has no record of any run\n  → orch launch\n")
    keep("r1", [])
    keep("r12", [])
    assert orch("report", "r9").code == 3
    assert "note: r12, the newer of 2\n" in orch("report", "r").err
    assert orch("report", "r1", "--to", "/proc/no/such/file").code == 3
    assert orch("report", *["r1"] * 9).code == 2


def test_an_empty_record_and_a_damaged_plan(orch: Orch) -> None:
    record = keep("r1", [])
    assert orch("report").code == 0
    (record.folder / "plan-0.json").write_text("{")
    keep("r2", [])
    (RunRecord("r2").folder / "plan-0.json").write_text("{")
    ran = orch("report", "r2")
    assert ran.code == 0, ran.err
    assert "is not a plan of this version" in Path("r2.html").read_text()
