"""Progress that agents have read from the output, on the screens; and lines that ranks share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract.event_lines import encode_event
from contract.event_values import RankPosition
from contract.events import Event, GenerationStarted, LineRedrawn, OutputProgress, ResourcesSampled, StepDone
from contract.resources import ResourceUsage
from orchestrator.checks.output_progress import output_place, output_words
from orchestrator.cli.launching.view import Screen
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.rendezvous import Arrivals
from orchestrator.render.log_lines import LogPrinter, SameLines
from orchestrator.render.run_summary import key_figures
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunEvent, RunLine, Tick
from orchestrator.state.journal import Journal
from orchestrator.state.journal_entries import EndEntry, StopEntry
from orchestrator.state.line_reduce import newest_output
from orchestrator.state.run_history import OUTPUT_UNIT, RunHistory
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.run_lines import run_lines
from tests import lan
from tests.each_case import failures_of
from tests.json_output import json_data
from tests.lan import moment
from tests.unit.conftest import THREE, Orch, detached
from tests.unit.test_live_state import Watched

PROGRESS = OutputProgress(
    rank=0, generation=1, t=1767366000.0, epoch=3.0, epochs=10, step=120, steps=400, loss=2.31, loss_key="loss",
    per_s=3.1, unit="steps", remaining_s=720.0,
)  # fmt: skip
WORDS = "epoch 3/10 · step 120/400 · loss 2.31 · 3.1 steps/s · 12 min left   (read from its output)"
ENDED = "epoch 3/10 · step 120/400 · loss 2.31   (read from its output)"
SAMPLED = ResourcesSampled(
    usage=ResourceUsage(cpu_percent=40.0, cpus=2.0, ram_used_mib=1024, ram_limit_mib=4096),
    positions=(RankPosition(rank=0, step=1204, steps_per_s=3.1),),
)
NAN = replace(PROGRESS, loss=None, not_finite="nan", not_finite_since=300)


def line(what: Event | str, second: float = 0.0, *, rank: int | None = 0, node: str = "alpha") -> RunLine:
    text = what if isinstance(what, str) else encode_event(what)
    return RunLine(time=moment(int(second), int(second % 1 * 1e9)), node=node, node_rank=0, rank=rank, text=text)


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_words_name_their_source_and_what_is_known() -> None:
    assert output_words(PROGRESS, running=True) == WORDS
    assert output_words(PROGRESS, running=False) == ENDED
    assert "10 min left" in output_words(PROGRESS, running=True, age_s=120)
    assert "left" not in output_words(PROGRESS, running=True, age_s=721)
    bar = replace(PROGRESS, epochs=None, epoch=0.0, step=21, steps=100, loss=None)
    assert output_words(bar, running=False) == "epoch 0 · step 21/100 · 21% of this pass   (read from its output)"
    assert output_words(None, running=True) == output_words(OutputProgress(), running=True) == ""


def test_odd_values_make_words_as_well() -> None:
    def check(odd: dict[str, Any]) -> None:
        words = output_words(replace(PROGRESS, **odd), running=True)
        assert "\x1b" not in words
        assert len(words) < 200

    odd = ({"epoch": 1e300}, {"unit": "\x1b[31m"}, {"per_s": -1e300}, {"remaining_s": 1e300}, {"loss": -1e300},
           {"step": 10**12, "steps": 1}, {"steps": 0}, {"epochs": 0}, {"not_finite": "\x1b"})  # fmt: skip
    assert failures_of(check, odd) == []


def test_the_lowest_rank_counts_unless_it_is_silent() -> None:
    other = replace(PROGRESS, rank=2, step=7)
    assert newest_output(PROGRESS, other) == PROGRESS
    assert newest_output(replace(other, t=1767366059.0), PROGRESS) == PROGRESS
    later, restarted = replace(other, t=1767366061.0), replace(other, generation=2)
    assert newest_output(later, PROGRESS) == later
    assert newest_output(restarted, PROGRESS) == restarted


def test_the_place_on_a_curve_grows_over_epochs() -> None:
    passes = [replace(PROGRESS, epoch=float(epoch), step=step) for epoch in (1, 2) for step in (0, 399, 400)]
    places = [output_place(one) or 0.0 for one in passes]
    assert places == sorted(places)
    assert output_place(replace(PROGRESS, epoch=0.5, step=7)) == 0.5
    assert output_place(OutputProgress(step=7)) == 7


# ── Screens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_shows_it_where_the_program_reports_nothing(orch: Orch) -> None:
    here = lan.lan(*THREE, says=("[rank0]: epoch 3/10", encode_event(NAN)), ends_with=None)
    run_id = detached(orch, here)
    ran = orch("status", on=here)
    assert "epoch 3/10 · step 120/400" in ran.out
    assert "(read from its output)" in ran.out
    assert "! the loss is NaN since step 300 (read from its output)" in ran.err
    assert json_data(orch("status", "--json", on=here).out)["output"]["epochs"] == 10
    orch("logs", run_id, on=here)
    ended = orch("status", run_id, on=lan.lan(*THREE))
    assert "epoch 3/10 · step 120/400   (read from its output)" in ended.out


def test_status_and_launch_show_the_optimizer_steps_of_a_script_that_prints_nothing(
    orch: Orch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = lan.lan(*THREE, says=(encode_event(SAMPLED),), ends_with=None)
    detached(orch, here)
    assert "1,204 optimizer steps · 3.1/s\n" in orch("status", on=here).out
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "140")):
        monkeypatch.setenv(name, value)
    with Screen(lan.plan(), quiet=False) as screen:
        shown_on(screen, lan.plan())(line(SAMPLED, rank=None))
        screen.messages.print("end")
    assert "1,204 optimizer steps" in capsys.readouterr().err


def test_status_shows_the_programs_own_events_first(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(lan.event("step", step=7, loss=1.5), encode_event(PROGRESS)), ends_with=None)
    detached(orch, here)
    assert "step 7 · loss 1.500" in orch("status", on=here).out
    assert json_data(orch("status", "--json", on=here).out)["output"] is None


def test_a_monitor_shows_it_with_its_losses_and_one_warning() -> None:
    watched = Watched()
    watched.find()
    for loss in (3.0, 2.5, 2.31):
        watched.write("alpha", replace(PROGRESS, loss=loss))
    shown = watched.run.progress
    assert (shown.losses, shown.loss, shown.unit) == ((3.0, 2.5, 2.31), 2.31, "steps")
    assert shown.remaining_s == pytest.approx(720, abs=5)
    text = "\n".join(part.plain for part in run_lines(watched.shown, 120))
    assert "epoch 3/10 · step 120/400 · loss 2.31" in text
    assert "no step reported" not in text
    for _ in range(3):
        watched.write("alpha", NAN)
    assert [one.text for one in watched.run.conditions if one.code == "loss_not_finite"] == [
        "the loss is NaN since step 300 (read from its output)"
    ]
    watched.write("alpha", StepDone(step=5, loss=1.0))
    own = watched.run.progress
    assert (watched.run.output, own.step, own.loss) == ("", 5, 1.0)


def history(*lines: RunLine) -> RunHistory:
    made = RunHistory()
    for each in lines:
        made.add(each)
    return made


def test_a_report_has_its_curve_and_words() -> None:
    events = [replace(PROGRESS, step=step, loss=9.0 - step / 100) for step in (100, 200, 300)]
    report = history(*(line(one, n) for n, one in enumerate(events))).report(
        "r", journal=Journal(), forecast=None, now=0.0
    )
    curve = report.curve("train", "loss")
    assert curve
    assert (curve.x, curve.y, curve.unit) == ((1300, 1400, 1500), (8, 7, 6), OUTPUT_UNIT)
    assert report.progress == "epoch 3/10 · step 300/400 · loss 6   (read from its output)"
    assert ("Progress", report.progress) in key_figures(report)
    own = history(line(PROGRESS), line(StepDone(step=5, loss=1.0), 1), line(PROGRESS, 2)).report(
        "r", journal=Journal(), forecast=None, now=0.0
    )
    assert ([one.y for one in own.curves if one.name == "loss"], own.progress) == ([(1.0,)], "")


@pytest.mark.parametrize(
    ("end", "output", "shown"),
    [
        ("", "", "1,204 optimizer steps"),
        ("", ENDED, f"{ENDED} · 1,204 optimizer steps"),
        ("succeeded", "", "at least 1,204 optimizer steps"),
        ("succeeded", ENDED, ENDED),
    ],
)
def test_a_report_has_the_optimizer_steps_of_its_lowest_rank(end: str, output: str, shown: str) -> None:
    """A sample is older than the last step of a run that has ended."""
    beta = replace(SAMPLED, positions=(RankPosition(rank=1, step=1200, steps_per_s=3.0), RankPosition(rank=2)))
    idle = replace(SAMPLED, positions=None)
    running = GenerationStarted(generation=1), SAMPLED, beta, idle, *([PROGRESS] if output else ())
    journal = Journal(end=EndEntry(at=0.0, state=end)) if end else Journal(stop=StopEntry(at=0.0))
    lines = (line(one, n, rank=None) for n, one in enumerate(running))
    report = history(*lines).report("r", journal=journal, forecast=None, now=0.0)
    assert dict(key_figures(report))["Progress"] == shown


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def shared(*lines: RunLine) -> list[str]:
    same = SameLines()
    found = [shown for each in lines for shown in same.hear(each, context=False)]
    return [f"{one.label(('alpha', 'beta'))} {one.text}" for one in (*found, *same.rest())]


def of_ranks(text: str, *ranks: int) -> list[RunLine]:
    return [line(text.replace("RANK", str(rank)), rank / 10, rank=rank) for rank in ranks]


def test_a_line_of_several_ranks_is_one() -> None:
    assert shared(*of_ranks("hello", 0, 1, 2)) == ["[0-2] hello"]
    assert shared(*of_ranks("hello", 0, 1, 2, 5, 7, 8)) == ["[0-2,5,7-8] hello"]
    assert shared(*of_ranks("[rankRANK]: KeyError: 'x'", 0, 1)) == ["[0-1] KeyError: 'x'"]
    warning = "[W1126 10:00:0RANK.123456789 reducer.cpp:1401] Warning: find_unused_parameters=True"
    assert len(shared(*of_ranks(warning, 0, 1))) == 1
    assert len(shared(line("twice"), line("twice"))) == 2
    assert len(shared(line("late"), line("late", 2.0, rank=1))) == 2
    agents = [line("hi", rank=None, node=node) for node in ("alpha", "beta")]
    assert shared(*agents) == ["[alpha, beta] hi"]


def test_a_traceback_of_several_ranks_is_one() -> None:
    lines = ["Traceback (most recent call last):", '  File "t.py", line 3', "    x", "    x", "ValueError: no"]
    each = [line(text, rank / 10, rank=rank) for text in lines for rank in (0, 1, 2)]
    assert shared(*each) == [f"[0-2] {text}" for text in lines]


def test_a_traceback_of_processes_is_shared_although_each_node_has_a_folder_of_its_own() -> None:
    place = '  File "/srv/{}/lab/runs/1127-1213-63f9/code/train.py", line 4, in <module>'
    each = [entry for rank, node in enumerate(lan.NAMES[:3]) for entry in of_ranks(place.format(node), rank)]
    assert shared(*each) == ['[0-2]   File "train.py", line 4, in <module>']


def test_raw_logs_show_each_state_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line(LineRedrawn(bar="", text="1%")), line("10%"), line(LineRedrawn(bar="", text="12%")), line("12%")]
    printer = LogPrinter(names=("alpha",), as_json=False, raw=True)
    for each in (*lines, line("12%"), line(PROGRESS)):
        printer.print(each)
    assert capsys.readouterr().out.splitlines() == [f"[0 alpha] {text}" for text in ("1%", "10%", "12%", "12%")]
    quiet = LogPrinter(names=("alpha",), as_json=False)
    for each in lines:
        quiet.print(each)
    assert capsys.readouterr().out.splitlines() == ["[0 alpha] 10%", "[0 alpha] 12%"]


def test_raw_is_an_option_of_the_command(orch: Orch) -> None:
    says = (f"[rank0]: {encode_event(LineRedrawn(bar='', text='1%'))}", "[rank0]: 10%")
    here = lan.lan(*THREE, says=says)
    run_id = detached(orch, here)
    assert orch("logs", run_id, "-n", "alpha", on=here).out == "[0 alpha] 10%\n"
    assert orch("logs", run_id, "-n", "alpha", "--raw", on=here).out == "[0 alpha] 1%\n[0 alpha] 10%\n"
    assert orch("logs", run_id, "-n", "alpha", "--raw", "--tail", "2", on=here).out.count("\n") == 2


def shown_on(screen: Screen, plan: Plan) -> Callable[[RunEvent], None]:
    """Feeds the state of the run, and shows each event, as the supervisor does."""
    followed = FollowedRun(RunRecord(plan.run_id))
    followed.begin(plan, ())
    show = screen.showing(Arrivals({}, plan, followed.state))

    def take(event: RunEvent) -> None:
        followed.take(event)
        show(event)

    return take


def test_a_launch_draws_progress_and_bars_below_the_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "140")):
        monkeypatch.setenv(name, value)
    plan = lan.plan()
    events = [
        line(LineRedrawn(bar="b", text="45%|####"), rank=1), line(LineRedrawn(bar="b", text="44%|####"), rank=0),
        line(LineRedrawn(bar="b", text="50%|#####"), rank=1), line(PROGRESS), line("an ordinary line"), Tick(),
    ]  # fmt: skip
    with Screen(plan, quiet=False) as screen:
        show = shown_on(screen, plan)
        for each in events:
            show(each)
        screen.messages.print("end")
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "44%|####" in output
    assert "50%" not in output  # rank 0 draws this bar, too
    assert WORDS in output
    assert output.index("an ordinary line") < output.index("end")


def test_without_a_terminal_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(lan.plan(), quiet=False) as screen:
        show = shown_on(screen, lan.plan())
        for each in (line(LineRedrawn(bar="b", text="44%|####")), line(PROGRESS), *of_ranks("hello", 0, 1), Tick()):
            show(each)
    output = capsys.readouterr()
    assert "44%" not in output.out + output.err
    assert "epoch" not in output.out + output.err
    assert output.out.splitlines() == ["[0-1] hello"]
