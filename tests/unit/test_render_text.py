"""Display of other machines' text: safe, padded, coloured by rank on a terminal alone."""

from __future__ import annotations

import io
import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from contract.event_lines import encode_event
from contract.events import Event, StepDone
from contract.log_lines import EVENT_MARK
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.render.console import COLOURS, colour_of
from orchestrator.render.log_lines import LogPrinter, has_several_ranks, log_json, log_line
from orchestrator.render.phases import JOINED, MASTER, STEP, Phases
from orchestrator.render.printable import printable
from orchestrator.render.runs import run_data, run_table, runs_table
from orchestrator.render.table import Column, Table
from orchestrator.specs.run import ContainerFacts, Member, Run, State
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import LineRead, NodeAnswered, RunSeen
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from tests import lan


def line_of(text: str, *, node: str = "beta", node_rank: int = 1, rank: int | None = 1) -> RunLine:
    return RunLine(time=lan.moment(1), node=node, node_rank=node_rank, rank=rank, text=text)


def shown(what: RenderableType, *, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=terminal, color_system="standard" if terminal else None, width=200).print(what)
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain ñ 🏖️\ttab", "plain ñ 🏖️\ttab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hhome", "home"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x9b31mred", "31mred"),
        ("be\x07ll\x00", "bell"),
        ("back\x08\x08", "back"),
        ("10%\r50%\r100%", "100%"),
        ("10%\r100%\r", "100%"),
        ("\r", ""),
        ("\x1bc", "c"),
        ("safe\u202egpj.exe", "safegpj.exe"),
        ("\u2066a\u2069 \u200eb\u200f \u061cc", "a b c"),
        ("\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629"),
    ],
)
def test_printable(text: str, left: str) -> None:
    assert printable(text) == left


TURNS = {"LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Classes of Unicode's signs that turn the direction of what follows."""


@given(st.text() | st.text("ab\u202e\u2066\x1b[]0;m\x07"))
def test_nothing_that_moves_the_cursor_is_left(text: str) -> None:
    left = printable(text)
    assert not any((ord(sign) < 32 and sign not in "\t\n") or 127 <= ord(sign) < 160 for sign in left)
    assert not any(unicodedata.bidirectional(sign) in TURNS for sign in left)
    assert printable(left) == left


def test_a_line_is_padded_to_the_longest_name() -> None:
    assert log_line(line_of("step 1"), width=7).plain == "[1 beta   ] step 1"
    assert log_line(line_of("step 1", node="epsilon", node_rank=4), width=7).plain == "[4 epsilon] step 1"


def test_the_rank_is_shown_where_nodes_have_several() -> None:
    assert log_line(line_of("a", rank=3), width=4, several_ranks=True).plain == "[1 beta r3] a"
    assert log_line(line_of("a", rank=None), width=4, several_ranks=True).plain == "[1 beta   ] a"


def test_words_of_a_node_are_no_markup() -> None:
    assert shown(log_line(line_of("[/b] [red]x[/red] :smile:"), width=4)) == "[1 beta] [/b] [red]x[/red] :smile:\n"


def test_colour_is_by_rank_and_for_terminals_alone() -> None:
    line = log_line(line_of("step 1"), width=4)
    assert "\x1b[" not in shown(line)
    assert shown(line, terminal=True).startswith("\x1b[32m[1 beta]\x1b[0m")
    assert [colour_of(rank) for rank in (0, 1, 8)] == [COLOURS[0], COLOURS[1], COLOURS[0]]


def test_no_colour_where_the_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(log_line(line_of("step 1"), width=4), terminal=True)


def test_events_are_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    event = line_of(f'{EVENT_MARK}{{"event": "step", "step": 3}}')
    for as_json in (False, True):
        printer = LogPrinter(names=["beta"], as_json=as_json)
        printer.print(event)
        printer.print(line_of("talk"))
    people, *programs = capsys.readouterr().out.splitlines()
    assert people == "[1 beta] talk"
    assert [json.loads(line).get("event") for line in programs] == [{"kind": "step", "rank": 1, "step": 3}, None]


@given(st.text())
def test_a_line_as_json_keeps_its_text_and_is_one_line(text: str) -> None:
    line = log_json(line_of(text))
    assert json.loads(line)["text"] == text
    assert "\n" not in line


def event(kind: str, node: str, **values: object) -> RunLine:
    rank = lan.NAMES.index(node)
    return line_of(f"{EVENT_MARK}{json.dumps({'event': kind, **values})}", node=node, node_rank=rank, rank=rank)


def test_phases_from_the_first_container_to_the_first_step() -> None:
    now = iter(range(100))
    phases = Phases(plan=lan.plan(lan.NAMES[:3]), clock=lambda: float(next(now)))
    assert phases.reach("alpha", "image checked")
    assert not phases.reach("alpha", "image checked")
    assert phases.waiting() == "waiting for beta, gamma: not yet image checked"

    state = RunState(run_id="r1")

    def after(line: RunLine) -> list[tuple[str, str]]:
        apply(state, LineRead(seen=0.0, line=line))
        return list(phases.shown(state))

    assert after(event("generation", "beta")) == []
    assert after(event("started", "beta")) == [("beta", MASTER)]
    assert after(event("joined", "beta")) == [("beta", MASTER), ("beta", JOINED)]
    for node, phase in phases.shown(state):
        phases.reach(node, phase)
    assert "1/3 joined" in phases.line("alpha").plain
    assert not phases.complete

    for node, phase in after(event("step", "alpha", step=1)):
        phases.reach(node, phase)
    assert phases.complete
    assert [line.count("✓") for line in phases.table().plain.splitlines()] == [4, 3, 3]
    assert phases.table().plain.splitlines()[1].startswith("[1 beta ]  · image checked")
    assert "✓ 3/3 joined  ✓ first step" in phases.line("gamma").plain
    assert STEP in phases.reached["gamma"]


def test_a_program_that_reports_nothing_has_joined_and_trained_once_its_optimizer_steps_are_counted() -> None:
    phases = Phases(plan=lan.plan(lan.NAMES[:3]))
    position: dict[str, object] = {"rank": 1, "step": 4, "steps_per_s": 2.0, "collectives_per_step": 0.0}

    def after(**changes: object) -> set[tuple[str, str]]:
        state = RunState(run_id="r1")
        used = {"cpu_percent": 1.0, "cpus": 2.0, "ram_used_mib": 1, "ram_limit_mib": 2}
        line = replace(event("resources", "beta", **used, positions=[{**position, **changes}]), rank=None)
        apply(state, LineRead(seen=0.0, line=line))
        return set(phases.shown(state))

    assert after(step=0) == {("beta", MASTER)}
    assert after() == {("beta", MASTER), ("beta", STEP)}  # it trains without the others
    everyone = {(node, phase) for node in phases.reached for phase in (MASTER, JOINED, STEP)}
    assert after(collectives_per_step=1.0) == everyone


def test_no_line_waits_where_all_are_level() -> None:
    assert Phases(plan=lan.plan()).waiting() == ""


AT = 1767366245.0
"""2026-01-02 15:04:05 UTC."""
NASTY = "gpt2 --prompt '[/b]' \x1b[2J"
HELD = ContainerFacts(
    id="c1", name="orch-run", image="sha256:1a", labels={}, status="exited", exit_code=137,
    started_at="2026-01-02T15:04:05.9Z", error="OCI runtime: exec: [/usr/bin/torchrun]: not found \x1b[31m", restarts=2,
)  # fmt: skip
RUN = Run(
    run_id="r1", project="orch", attempt=0, user="[/x]", started_at="2026-01-02T15:04:05+00:00", nnodes=3,
    command=NASTY, master="alpha",
    members=(
        Member(node="alpha", node_rank=0, state=State.FAILED, container=HELD),
        Member(node="?", node_rank=1, state=State.LOST, reason="no node holds its container"),
    ),
)  # fmt: skip


def held(run: Run, *events: Event) -> RunState:
    """The state of a run by its containers and the lines of alpha."""
    state = RunState(run_id=run.run_id)
    apply(state, RunSeen(seen=AT, run=run))
    for number, event in enumerate(events):
        line = RunLine(time=f"2026-01-02T15:04:0{number}Z", node="alpha", node_rank=0, rank=0, text=encode_event(event))
        apply(state, LineRead(seen=AT, line=line))
    return state


def table_of(state: RunState) -> str:
    return shown(run_table(state, verdict(state, AT), AT))


@pytest.mark.parametrize(
    ("state", "remaining_s", "shown_after"),
    [
        ("running", 3605.0, "· 60 min left, until 16:04"),
        ("running", 100.0, "· 1.6 min left, until 15:05"),
        ("running", 1e300, ""),
        ("running", -5.0, ""),
        ("running", None, ""),
        ("failed", 3605.0, ""),
    ],
)
def test_a_running_run_has_its_remaining_time(state: str, remaining_s: float | None, shown_after: str) -> None:
    last = StepDone(rank=0, step=160, final_step=3000, remaining_s=remaining_s, loss=1.5)
    facts = HELD if state == "failed" else replace(HELD, status="running", exit_code=None)
    members = (Member(node="alpha", node_rank=0, state=facts.state, container=facts),)
    title = table_of(held(replace(RUN, members=members), last)).splitlines()[0].rstrip()
    assert title == f"run r1  {state}  step 160/3,000 (5%) · loss 1.500 {shown_after}".rstrip()


def test_a_run_is_shown_with_what_its_nodes_use() -> None:
    gpu = GpuUsage(
        index=0, name="GeForce", utilization_percent=97, memory_used_mib=3584, memory_total_mib=4096, temperature_c=84,
        slowed_by="temperature \x1b[2J",
    )  # fmt: skip
    usage = ResourceUsage(
        cpu_percent=148.6, cpus=2.0, ram_used_mib=3072, ram_limit_mib=4096, swap_used_mib=1536, gpus=(gpu, gpu)
    )
    running = replace(HELD, status="running", error="")
    members = (replace(RUN.members[0], state=State.RUNNING, container=running), RUN.members[1])
    state = held(replace(RUN, members=members))
    apply(state, NodeAnswered(seen=AT, node="alpha", usage=usage))
    title, head, first, second, other, *_ = table_of(state).splitlines()
    assert head.split()[4:7] == ["CPU", "memory", "GPU"]
    assert "149 %  3.0/4.0 GiB + 1.5 swap  97 %, 3.5/4.0 GiB, 84 °C, slowed by temperature" in first
    assert second.strip() == "97 %, 3.5/4.0 GiB, 84 °C, slowed by temperature"
    assert "GiB" not in title + other
    data = json.loads(json.dumps(run_data(state, verdict(state, AT), AT)))["members"]
    assert (data[0]["resources"]["t"], data[0]["resources"]["gpus"][1]["temperature_c"]) == (AT, 84)
    assert data[1]["resources"] is None


def test_a_run_is_shown_with_what_each_node_says_and_nothing_of_it_is_markup() -> None:
    last = StepDone(rank=0, step=12, loss=1.23456, per_s=4567.8, unit="tokens")
    text = table_of(held(RUN, last))
    assert "run r1  failed  step 12 · loss 1.235 · 4,568 tokens/s" in text
    assert "[/usr/bin/torchrun]: not found" in text
    assert "137  2026-01-02 15:04" in text
    assert "no node holds its container" in text
    assert "\x1b" not in text


def test_runs_are_shown_a_line_each() -> None:
    listed = [(RUN, verdict(held(RUN), AT))]
    text = shown(runs_table(listed))
    assert "r1   failed  3      [/x]  2026-01-02  gpt2 --prompt '[/b]'" in text
    assert "2026-01-02 15:04" in shown(runs_table(listed, wide=True))
    assert "\x1b" not in text


def test_a_run_for_programs() -> None:
    state = held(RUN)
    data = json.loads(json.dumps(run_data(state, verdict(state, AT), AT)))
    assert (data["state"], data["last_event"], data["command"]) == ("failed", None, NASTY)
    assert [(member["node"], member["exit_code"]) for member in data["members"]] == [("alpha", 137), ("?", None)]


def test_the_rank_is_shown_where_a_node_has_several() -> None:
    lines = [RunLine(time="1", node="alpha", node_rank=0, rank=rank, text="hi") for rank in (0, 1, None)]
    assert has_several_ranks(lines)
    assert not has_several_ranks([lines[0], lines[2]])
    assert log_line(lines[1], width=5, several_ranks=True).plain == "[0 alpha r1] hi"


def drawn(width: int, *, wide: bool = False) -> list[str]:
    """A table on a terminal of this width."""
    columns = (Column("node"), Column("state", 1), Column("by", 2), Column("why", wraps=True), Column("id", wide=True))
    rows = [("alpha", "failed", "ana", "the disk of this node has no space left", "c1"), ("beta", "up", "", "", "c2")]
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True).print(Table(columns=columns, rows=rows, wide=wide))
    return out.getvalue().splitlines()


def test_a_narrow_table_drops_columns_in_their_order_and_wraps_between_words() -> None:
    assert drawn(80)[0].split() == ["node", "state", "by", "why"]
    assert drawn(40)[:2] == ["node   state   by   why", "alpha  failed  ana  the disk of this"]
    assert drawn(36)[0].split() == ["node", "state", "why"]
    assert drawn(27) == ["node   why", "alpha  the disk of this", "       node has no space", "       left", "beta"]


def test_a_table_too_narrow_for_its_first_columns_is_a_block_for_each_row() -> None:
    assert drawn(24)[:3] == ["node   alpha", "state  failed", "by     ana"]
    assert drawn(24)[-3:] == ["", "node   beta", "state  up"]


def test_a_wide_table_has_all_columns_at_any_width() -> None:
    assert drawn(24, wide=True)[0].split() == ["node", "state", "by", "why", "id"]
