"""Forecast of a trainer: read, stored, shown while the run continues and when it has ended."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from contract.cost_model.forecast import Forecast, read_forecast
from contract.event_lines import decode_event
from contract.events import Event
from contract.log_lines import EVENT_MARK
from orchestrator.fleet.runs.load_state import LOOK_AHEAD
from orchestrator.render.forecast import forecast_line, forecast_view
from orchestrator.render.phases import Phases
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import LineRead
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord, recorded_runs
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached


def forecast(**changes: object) -> Forecast:
    return read_forecast(lan.forecast(**changes))


def decoded(values: dict[str, object]) -> Event | None:
    return decode_event(EVENT_MARK + json.dumps({"event": "forecast", **values}))


def shown(known: Forecast, *, unproven: bool = True) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=160).print(forecast_view(known, unproven=unproven))
    return [line.rstrip() for line in out.getvalue().splitlines()]


# ── understood ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_is_read_and_what_is_new_in_it_ignored() -> None:
    known = forecast(t=1.0, rank=0, mood="good")
    assert (known.chosen.sync, known.chosen.nodes, known.chosen.per_s) == ("int4", ("alpha", "beta"), 1216.4)
    assert [out.node for out in known.left_out] == ["gamma"]


@pytest.mark.parametrize(
    "changes", [{"rows": []}, {"rows": None}, {"unit": 3}, {"link_mbit_s": []}, {"rows": [{"chosen": True}]}]
)
def test_what_is_no_forecast_is_an_ordinary_line(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w+: .+"):
        read_forecast(lan.forecast(**changes))
    assert decoded(lan.forecast(**changes)) is None


@given(
    st.dictionaries(
        st.sampled_from(sorted(lan.forecast())), st.none() | st.integers() | st.text() | st.lists(st.text())
    )
)
def test_no_event_of_a_node_raises(values: dict[str, object]) -> None:
    assert decoded(values) is None
    decoded({**lan.forecast(), **values})


def test_who_leads_is_the_first_that_trains() -> None:
    assert [forecast().led_by(node) for node in THREE] == [True, False, False]
    rows = [{**lan.forecast()["rows"][2], "nodes": ["beta.1", "gamma.0"]}]
    assert [forecast(rows=rows).led_by(node) for node in THREE] == [False, True, False]


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_marks_the_choice_and_says_what_to_know() -> None:
    lines = shown(forecast())
    assert lines[0].split() == ["sync", "nodes", "step", "compute", "exchange", "sent", "tokens/s", "x", "alpha"]
    assert lines[1].split() == ["alone", "alpha", "0.40", "s", "0.40", "s", "–", "–", "640", "1.00"]
    assert lines[3].split() == [
        "▶", "int4", "alpha,", "beta", "0.21", "s", "0.20", "s", "0.010", "s", "5.9", "MB", "1,216", "1.90",
    ]  # fmt: skip
    assert lines[4].split()[:4] == ["diloco", "?", "all", "3"]
    assert lines[5:] == [
        "? its loss is not known to stay within 0.5 % of fp32's: taken only where asked for",
        "links, Mbit/s: alpha 941, beta 941, gamma 94; 0.5 ms a round",
        "· left out: gamma: its link carries 94 Mbit/s, the others' 941 Mbit/s",
        "! gamma's link carries 94 Mbit/s: a cable instead of Wi-Fi would help",
    ]


def test_a_method_that_is_taken_only_where_asked_for_is_left_out_of_a_launch_unless_it_is_the_choice() -> None:
    lines = shown(forecast(), unproven=False)
    assert not [line for line in lines if "?" in line]
    assert [line.split()[0] for line in lines[1:4]] == ["alone", "fp32", "▶"]
    rows = [{**row, "chosen": row["sync"] == "diloco"} for row in lan.forecast()["rows"]]
    lines = shown(forecast(rows=rows), unproven=False)
    assert next(line.split()[:3] for line in lines if "?" in line) == ["▶", "diloco", "?"]


def test_no_line_of_the_table_is_broken_by_a_narrow_terminal() -> None:
    names = ("a-workstation-with-a-long-name", "and-another-one")
    rows = [{**lan.forecast()["rows"][2], "nodes": names}]
    out = io.StringIO()
    Console(file=out, width=80, soft_wrap=True).print(forecast_view(forecast(rows=rows)))
    assert ", ".join(names) in out.getvalue()
    out.truncate(0)
    Console(file=out, width=40, soft_wrap=True).print(forecast_view(forecast(rows=rows)))
    assert "workstation" not in out.getvalue()  # the column is dropped


def test_many_nodes_are_counted_and_words_of_a_node_are_no_markup() -> None:
    names = [f"n{number}" for number in range(7)]
    rows = [{**lan.forecast()["rows"][2], "nodes": names[:6]}]
    known = forecast(
        rows=rows, unit="[b]", link_mbit_s=dict.fromkeys(names, 941.0), warnings=["[/b] \x1b[2J"], best_node="[red]"
    )
    text = "\n".join(shown(known))
    assert "6 nodes" in text
    assert "! [/b]" in text
    assert "[b]/s  x [red]" in text
    assert "\x1b" not in text


def test_one_line_of_it_and_what_is_achieved() -> None:
    assert forecast_line(forecast()) == "forecast 1,216 tokens/s (1.9x alpha alone)"
    assert forecast_line(forecast(), 0.968) == "forecast 1,216 tokens/s (1.9x alpha alone), achieved 97 %"
    rows = [{**lan.forecast()["rows"][0], "chosen": True}]
    assert forecast_line(forecast(rows=rows), None) == "forecast 640 tokens/s (alpha alone)"


def line_of(node: str, rank: int, kind: str, **values: object) -> RunLine:
    text = f"{EVENT_MARK}{json.dumps({'event': kind, 'rank': rank, **values})}"
    return RunLine(time=lan.moment(1), node=node, node_rank=lan.NAMES.index(node), rank=rank, text=text)


def state_of(*lines: RunLine) -> RunState:
    state = RunState(run_id="r1")
    for line in lines:
        apply(state, LineRead(seen=0.0, line=line))
    return state


def test_a_node_that_is_left_out_waits_and_delays_no_other() -> None:
    phases = Phases(plan=lan.plan(THREE), clock=lambda: 1.0)
    state = state_of(line_of("gamma", 2, "left_out", why="its link is slow \x1b[2J"))
    assert phases.leave_out(state) == ["gamma"]
    assert phases.leave_out(state) == []
    state = state_of(line_of("alpha", 0, "step", step=1))
    assert phases.leave_out(state) == []
    assert {node for node, _ in phases.shown(state)} == {"alpha", "beta"}
    for node, phase in list(phases.shown(state)):
        phases.reach(node, phase)
    assert phases.complete
    assert phases.waiting() == ""
    assert phases.line("gamma").plain.endswith("joined  left out: its link is slow ")
    assert phases.line("beta").plain.endswith("✓ first step")


def test_a_node_is_left_out_when_all_its_ranks_are() -> None:
    plan = lan.plan_of(lan.spec("alpha"), lan.spec("beta", nproc_per_node=2))
    phases = Phases(plan=plan)
    one, other = (line_of("beta", rank, "left_out", why="slow") for rank in (1, 2))
    assert phases.leave_out(state_of(one)) == []
    assert phases.training == ["alpha", "beta"]
    assert phases.leave_out(state_of(one, other)) == ["beta"]
    assert phases.training == ["alpha"]


# ── kept, and told of a run ─────────────────────────────────────────────────────────────────────────────────────────

REPORTED = event("forecast", **lan.forecast())
STEP = event("step", step=3, loss=1.5, per_s=1180.0, unit="tokens", of_forecast=0.97)
ENDS = event("done", step=3, of_forecast=0.98)


def test_a_record_keeps_the_forecast_of_this_attempt() -> None:
    record = RunRecord("r1")
    assert record.forecast() is None
    record.save_forecast(forecast())
    assert record.forecast() == forecast()
    record.save_plan(lan.plan())
    assert record.forecast() is None
    record.save_forecast(forecast())
    whole = (record.folder / "record.jsonl").read_bytes()
    (record.folder / "record.jsonl").write_bytes(whole[:-9])
    assert record.forecast() is None


def test_a_launch_shows_keeps_and_compares_it(orch: Orch) -> None:
    """All ranks tell it, and rank 0's is shown; no word of it is cut where no terminal wraps it."""
    long = "a cable instead of Wi-Fi " * 9
    reported = lan.forecast(warnings=["gamma's link carries 94 Mbit/s", long])
    here = lan.lan("alpha", says=(event("forecast", **reported), STEP, ENDS))
    here.add("beta", says=(event("forecast", rank=1, **reported),))
    here.add("gamma", says=(event("left_out", rank=2, why="its link is slow"), event("done", rank=2, step=3)))
    ran = orch("launch", on=here)
    assert ran.code == 0
    assert ran.err.count("▶  int4") == 1
    assert f"! gamma's link carries 94 Mbit/s\n! {long}\n" in ran.err
    assert "left out: its link is slow" in ran.err
    assert "forecast 1,216 tokens/s (1.9x alpha alone), achieved 98 %\n  checkpoints  alpha:" in ran.err
    (record,) = recorded_runs()
    known = record.forecast()
    assert known is not None
    assert known.sync == "int4"


def test_json_of_a_launch_holds_it_and_shows_no_table(orch: Orch) -> None:
    ran = orch("launch", "--json", on=lan.lan(*THREE, says=(REPORTED, STEP, ENDS)))
    assert json_data(ran.out)["forecast"]["best_node"] == "alpha"
    assert "int4" not in ran.err


def test_status_compares_while_the_run_continues(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(REPORTED, STEP), ends_with=None)
    run_id = detached(orch, here)  # no command followed it: the controller has stored nothing
    assert RunRecord(run_id).forecast() is None
    text = orch("status", on=here).out
    assert "step 3 · loss 1.500 · 1,180 tokens/s\nforecast 1,216 tokens/s (1.9x alpha alone), achieved 97 %\n" in text
    assert "left out: its link" in " ".join(text.split())
    data = json_data(orch("status", "--json", on=here).out)
    assert (data["forecast"]["sync"], data["of_forecast"]) == ("int4", 0.97)


def test_status_of_a_run_that_is_done_still_compares(orch: Orch) -> None:
    """Its last event tells no speed."""
    here = lan.lan(
        *THREE, says=(REPORTED, STEP, event("checkpoint", step=3), event("done", step=3, loss=1.4)), ends_with=None
    )
    detached(orch, here)
    text = orch("status", on=here).out
    assert "step 3 · loss 1.400\nforecast 1,216 tokens/s (1.9x alpha alone), achieved 97 %\n" in text


def test_status_without_a_forecast_says_nothing_of_one(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(event("step", step=3),), ends_with=None)
    detached(orch, here)
    assert "forecast" not in orch("status", on=here).out
    data = json_data(orch("status", "--json", on=here).out)
    assert (data["forecast"], data["of_forecast"]) == (None, None)


def test_where_rank_0_is_left_out_the_first_that_trains_speaks(orch: Orch) -> None:
    rows = [{**lan.forecast()["rows"][2], "nodes": ["beta", "gamma"]}]
    here = lan.lan("alpha", says=(event("forecast", **lan.forecast(rows=rows, left_out=[])),))
    here.add("beta", says=(STEP, ENDS))
    here.add("gamma", says=())
    ran = orch("launch", on=here)
    assert "checkpoints  beta:" in ran.err
    status = json_data(orch("status", "--json", on=here).out)
    assert (status["last_event"]["kind"], status["of_forecast"]) == ("done", 0.98)


def test_no_log_is_searched_to_its_end_for_a_forecast(orch: Orch) -> None:
    here = lan.lan(
        *THREE, says=("[rank0]: talk",) * (LOOK_AHEAD + 1) + (REPORTED,) + ("[rank0]: talk",) * 400, ends_with=None
    )
    detached(orch, here)
    assert json_data(orch("status", "--json", on=here).out)["forecast"] is None
