"""A snapshot of machines and their run for people, at any width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from contract.resources import GpuUsage, ResourceUsage
from orchestrator.render.bars import sparkline
from orchestrator.state.phase import Phase
from orchestrator.state.progress import RunProgress
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.node_table import COLUMNS, detail_lines, fitting, node_cells, node_table, ordered, orders
from orchestrator.watch.run_lines import fault_lines, run_lines
from orchestrator.watch.timeline import TimelineEntry
from orchestrator.watch.views import ConditionView, NodeView, RunView
from tests.unit.test_live_state import AT, Watched

GPU = GpuUsage(
    index=0, name="RTX 3050", utilization_percent=97, memory_used_mib=3584, memory_total_mib=4096, temperature_c=84,
    power_w=34.6, clock_mhz=1200,
)  # fmt: skip


def usage(**changes: Any) -> ResourceUsage:
    values: dict[str, Any] = {
        "cpu_percent": 51.4, "cpus": 4.0, "ram_used_mib": 3277, "ram_limit_mib": 8192, "disk_free_mib": 20480,
        "disk_read_mib_s": 0.12, "disk_write_mib_s": 2.0, "network_in_mib_s": 11.26, "network_out_mib_s": 10.9,
    }  # fmt: skip
    return ResourceUsage(**{**values, **changes})


def nodes() -> tuple[NodeView, ...]:
    values: list[dict[str, Any]] = [
        {"name": "alpha", "node_rank": 0, "answered_s": 0.5, "usage": usage(gpus=(GPU,)), "compute_s": 0.5},
        {"name": "beta", "node_rank": 1, "answered_s": 1.0, "usage": usage(cpu_percent=99.0), "compute_s": 1.25,
         "slow": "compute"},
        {"name": "gamma", "node_rank": 2, "answered_s": 7.0, "silent": True, "usage": usage(), "usage_age_s": 7.0},
        {"name": "delta", "state": "idle", "answered_s": 0.5, "usage": usage(swap_used_mib=2048)},
        {"name": "epsilon", "state": "no answer", "silent": True, "problem": "no answer in 5 s"},
    ]  # fmt: skip
    return tuple(NodeView(**{"state": "running", **one}) for one in values)


FIGURES: dict[str, Any] = {
    "step": 1240, "final_step": 10000, "remaining_s": 7200.0, "loss": 2.345678,
    "losses": tuple(4.0 - n / 100 for n in range(200)), "per_s": 12345.6, "unit": "tokens", "of_forecast": 0.97,
    "waiting": 0.12, "exchanging": 0.31, "age_s": 2.0,
}  # fmt: skip
SLOW = ConditionView(
    code="slow_compute", severity="warning", node="beta", text="beta takes 2.5 x the others' time",
    command="orch doctor --nodes beta",
)  # fmt: skip


def run(figures: dict[str, Any] | None = None, **changes: Any) -> RunView:
    given = dict(figures or {})
    values: dict[str, Any] = {
        "run_id": "gpt2-a3f9", "phase": Phase.RUNNING, "severity": "ok", "conditions": (), "nodes": (),
        "timeline": (), "output": given.pop("output", ""), "progress": RunProgress(**given),
    }  # fmt: skip
    return RunView(**{**values, **changes})


def view(**changes: Any) -> FleetView:
    values: dict[str, Any] = {
        "at": AT, "run": run(FIGURES, attempt=2, severity="warning", conditions=(SLOW,)), "looked": True,
        "nodes": nodes(),
        "faults": (TimelineEntry(at=AT - 60, node="gamma", text="gamma does not answer this computer: cut"),),
    }  # fmt: skip
    return FleetView(**{**values, **changes})


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def rows(shown: FleetView, width: int) -> list[list[str]]:
    columns = fitting(width, shown.nodes)
    return [[one.title for one in columns], *([c.plain for c in node_cells(n, columns)] for n in shown.nodes)]


def test_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    lines = plain(run_lines(view(), 200))
    assert lines[0] == "run gpt2-a3f9  running  attempt 2"
    assert lines[1].startswith("██▌················· 12% · step 1,240/10,000 · 2.0 h left, until ")
    assert lines[1].endswith(" · 12,346 tokens/s (97% of the forecast) · 12% waiting for data · 31% exchanging")
    assert lines[2] == f"loss {sparkline(FIGURES['losses'], 60)} 2.346"
    assert lines[3:5] == ["! beta takes 2.5 x the others' time", "  → orch doctor --nodes beta"]


@pytest.mark.parametrize(("width", "lines"), [(120, 1), (60, 2), (20, 2)])
def test_a_long_sentence_is_wrapped_and_cut(width: int, lines: int) -> None:
    text = "rank 1 on beta has been idle at train.py:80 for 61 s; rank 0 is waiting for it in all_reduce"
    condition = ConditionView(code="rank_stuck", severity="error", text=text, command="orch why r")
    shown = plain(run_lines(view(run=run(severity="error", conditions=(condition,)), nodes=()), width))
    begins = next(number for number, line in enumerate(shown) if line.startswith("! rank 1"))
    assert shown[begins + lines] == "  → orch why r"
    assert max(map(len, shown)) <= width


def test_of_many_conditions_the_most_severe_are_shown() -> None:
    found = tuple(ConditionView(code="node_silent", severity="warning", node=f"n{n}", text=f"n{n} …") for n in range(9))
    shown = plain(run_lines(view(run=run(severity="warning", conditions=found), nodes=()), 80))
    assert shown[-1] == "· 6 more: orch status"


def test_the_nodes_on_a_wide_terminal() -> None:
    titles, alpha, beta, gamma, delta, epsilon = rows(view(), 200)
    assert titles == [one.title for one in COLUMNS]
    assert dict(zip(titles, alpha, strict=True)) == {
        "#": "0", "node": "alpha", "state": "running", "CPU": "51 %", "memory": "3.2/8.0 G", "GPU": "97 %",
        "GPU mem": "3.5/4.0 G", "temp": "84 °C", "power": "35 W", "clock": "1200 MHz", "swap": "",
        "disk MiB/s": "0.1/2.0",
        "net MiB/s": "11.3/10.9", "part of step": "0.5 s", "note": "",
    }  # fmt: skip
    assert (beta[2], beta[-1]) == ("running", "◀ compute")
    assert gamma[2] == "silent 7 s"
    assert (delta[0], delta[2], delta[-1]) == ("", "idle", "swapping")
    assert (epsilon[2], epsilon[3], epsilon[-1]) == ("no answer", "", "no answer in 5 s")


def test_a_silent_row_is_grey_and_its_state_red() -> None:
    shown = view()
    columns = fitting(200, shown.nodes)
    cells = node_cells(shown.nodes[2], columns)
    assert {str(cell.style) for cell, one in zip(cells, columns, strict=True) if one.title != "state"} == {
        "bright_black"
    }
    assert str(cells[2].style) == "bold red"


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (20, ["node", "state"]),
        (40, ["node", "state", "CPU", "memory"]),
        (80, ["#", "node", "state", "CPU", "memory", "GPU", "GPU mem", "note"]),
    ],
)
def test_narrow_terminals_have_the_columns_that_matter_most(width: int, titles: list[str]) -> None:
    assert rows(view(), width)[0] == titles


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    idle = view(run=None, nodes=(NodeView(name="a", state="connecting"), NodeView(name="b", state="connecting")))
    assert rows(idle, 200) == [["node", "state"], ["a", "connecting"], ["b", "connecting"]]


@pytest.mark.parametrize("width", [1, 5, 20, 40, 80, 200])
def test_no_line_about_the_run_is_wider_than_the_terminal(width: int) -> None:
    strange = run({"step": 10**12, "losses": (1e308, -1e308, 5.0)}, run_id="r" * 100, reason="x" * 500)
    for shown in (view(), view(run=None), view(run=strange)):
        assert [line for line in plain(run_lines(shown, width)) if cell_len(line) > width] == []


def test_what_is_not_known_is_shown_as_such() -> None:
    def second(phase: Phase = Phase.RUNNING, **figures: Any) -> str:
        return plain(run_lines(view(run=run(figures, phase=phase), nodes=()), 80))[1]

    assert second() == "no step reported yet"
    assert second(Phase.FAILED) == "no step reported"
    assert second(step=5, age_s=180.0) == "step 5 · last progress 3.0 min ago"
    assert second(step=5, is_before_restart=True) == "step 5 · before the restart"
    assert second(step=5, remaining_s=1e300) == "step 5"
    assert second(optimizer_steps=1204, steps_per_s=3.1) == "1,204 optimizer steps · 3.1/s"
    assert second(output="epoch 3/10   (read from its output)", optimizer_steps=7) == (
        "epoch 3/10   (read from its output) · 7 optimizer steps"
    )
    assert plain(run_lines(view(run=None, looked=False), 80))[0] == "looking for a run  3 of 5 nodes answer"
    assert plain(run_lines(view(run=None), 80))[0] == "no run  3 of 5 nodes answer"
    past = run({"step": 5}, phase=Phase.FAILED, severity="error", reason="rank 1: ValueError", is_on_nodes=False)
    assert plain(run_lines(view(run=past, nodes=()), 80)) == [
        "run gpt2-a3f9  failed  from the record on this computer", "step 5", "! failed: rank 1: ValueError",
        "  → orch why gpt2-a3f9",
    ]  # fmt: skip


def test_control_characters_reach_no_terminal() -> None:
    bad = "\x1b[2J\x1b]0;x\x07\u202e"
    gpu = GpuUsage(index=0, name=f"{bad}card", utilization_percent=5, slowed_by=f"{bad}heat")
    watched = Watched()
    watched.find(command=f"{bad}x")
    watched.write("alpha", f"{bad}a line")
    watched.lose("beta", f"{bad}why")
    node = NodeView(name="alpha", state="running", node_rank=0, answered_s=0.0, usage=usage(gpus=(gpu,)))
    shown = watched.shown
    lines = [*run_lines(shown, 80), *detail_lines(node, 80), *fault_lines(shown, 9)]
    text = "".join([*plain(lines), *(cell for row in rows(shown, 200) for cell in row), node.note, str(shown.data())])
    assert {letter for letter in bad if letter in text} <= set("[2J]0;x")
    assert "card" in text
    assert "slowed: heat" in text


@pytest.mark.parametrize(
    ("order", "first"),
    [("node", "alpha"), ("CPU", "beta"), ("swap", "delta"), ("GPU", "alpha"), ("part of step", "beta")],
)
def test_orders(order: str, first: str) -> None:
    assert order in orders()
    assert ordered(view().nodes, order)[0].name == first


def test_several_gpus_in_one_row_and_each_in_the_details() -> None:
    slow = GpuUsage(
        index=1, name="RTX 3050", utilization_percent=3, temperature_c=90, power_w=5.0, slowed_by="temperature"
    )
    node = NodeView(name="alpha", state="running", node_rank=0, answered_s=0.1, usage=usage(gpus=(GPU, slow)),
                    cpu_history=(10.0, 90.0), gpu_history=(50.0,), compute_s=0.25)  # fmt: skip
    shown = view(run=None, nodes=(node,))
    titles, cells = rows(shown, 200)
    row = dict(zip(titles, cells, strict=True))
    assert (row["GPU"], row["temp"], row["power"], row["note"]) == (
        "2x 50 %",
        "90 °C",
        "40 W",
        "GPU slowed: temperature",
    )
    assert plain(detail_lines(node, 80)) == [
        "alpha  running",
        "CPU      51 % of 4  ▁█",
        "memory   3.2 of 8.0 GiB, swap 0.0 GiB",
        "disk     0.1 read, 2.0 written MiB/s, 20.0 GiB free",
        "network  11.3 in, 10.9 out MiB/s",
        "step     0.25 s for its part",
        "GPU 0    RTX 3050, 97 %, 3.5 of 4.0 GiB, 84 °C, 35 W, 1200 MHz",
        "GPU 1    RTX 3050, 3 %, 90 °C, 5 W, slowed by temperature",
        "GPUs     ▅",
    ]


def test_details_of_a_silent_node_are_old() -> None:
    shown = view()
    assert plain(detail_lines(shown.nodes[2], 80))[-1] == "as of 7 s ago"
    assert plain(detail_lines(shown.nodes[4], 80)) == [
        "epsilon  no answer", "no answer in 5 s", "its resources are not known yet",
    ]  # fmt: skip


def test_the_table_of_plain_lines_has_the_same_cells() -> None:
    table = node_table(view().nodes, 80)
    assert [column.title for column in table.columns] == rows(view(), 80)[0]


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ((), 5, ""), ((1.0,), 5, "▁"), ((0.0, 7.0), 5, "▁█"), (tuple(range(8)), 8, "▁▂▃▄▅▆▇█"),
        ((3.0, 3.0, 3.0), 2, "▁▁"), ((1.0, 2.0), 0, ""),
        (tuple(range(100)), 4, "▁▃▆█"), ((1.0, float("nan"), 2.0), 9, "▁█"), ((float("inf"),), 9, ""),
    ],
)  # fmt: skip
def test_sparkline(values: tuple[float, ...], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


def test_sparkline_of_other_encodings_and_scales() -> None:
    draw: Callable[..., str] = sparkline
    assert draw((0.0, 1.0, 2.0), 5, ascii_only=True).isascii()
    assert draw((50.0, 150.0, -5.0), 5, scale=(0.0, 100.0)) == "▅█▁"
