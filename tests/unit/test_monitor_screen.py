"""The screen of `orch monitor`: what it shows at each width, its keys, and what a node's death changes in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog

from contract.events import RankFailed, StepDone
from orchestrator.fleet.monitor import FleetWatch
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.run_events import Tick
from orchestrator.state.facts import Fact, RunFound
from orchestrator.state.limits import NODE_SILENT_S, TAIL
from orchestrator.watch.terminal.feed import LiveFeed
from orchestrator.watch.terminal.screen import DetailScreen, HelpScreen, LogScreen, MonitorApp
from tests.unit.test_live_state import NAMES, Watched

Act = Callable[[MonitorApp, Pilot[int]], Awaitable[None]]


class Scene:
    """A screen of a state that the test feeds."""

    def __init__(self) -> None:
        self.watched = Watched()
        self.watched.find()
        times = {"alpha": 0.5, "beta": 0.5, "gamma": 1.5}
        for step in range(1, 6):
            self.watched.write("alpha", StepDone(step=step, loss=5.0 - step, final_step=100, per_s=640.0, unit="tokens",
                                                compute_s=times))  # fmt: skip
        self.watched.sample()
        self.feed = LiveFeed(_nothing_happens, self.watched.state)
        self.now = 0.0

    def show(self, act: Act, *, size: tuple[int, int] = (120, 30)) -> MonitorApp:
        """Run the screen while `act` uses it."""

        async def play() -> MonitorApp:
            app = MonitorApp(
                self.feed, interval_s=2.0, login=lambda *who: ("true", *map(str, who)), clock=lambda: self.now
            )
            async with app.run_test(size=size) as pilot:
                await pilot.pause()
                await act(app, pilot)
            return app

        return asyncio.run(play())

    async def refresh(self, pilot: Pilot[int], seconds: float = 0.0) -> None:
        """Let time pass until the next refresh."""
        self.now += seconds
        await pilot.pause(0.25)


class _Still:
    """A watch of the three nodes to which nothing happens."""

    names = NAMES

    def facts(self) -> Iterator[Fact | RunFound | Tick]:
        return iter(())

    def close(self) -> None: ...


@contextmanager
def _nothing_happens() -> Iterator[FleetWatch]:
    yield cast(FleetWatch, _Still())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def text_of(app: MonitorApp) -> list[str]:
    """The letters on the screen, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()  # the screen as textual draws it
    return ["".join(segment.text for segment in strip).rstrip()[:width] for strip in strips[:height]]


HEAD = """\
 run r1  running
 █··················· 5% · step 5/100 · 640 tokens/s
 loss █▇▅▃▁ 0
"""
WIDE = f"""{HEAD}\
 ! gamma takes 3.0 x the others' time for its part of a step; --shares auto gives it a smaller part
   → orch restart r1 --nodes alpha,beta   # without gamma
 #  node   state     CPU     memory  disk MiB/s  net MiB/s  part of step  note
 0  alpha  running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0         0.5 s
 1  beta   running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0         0.5 s
 2  gamma  running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0         1.5 s  ◀ compute
"""
MIDDLE = f"""{HEAD}\
 ! gamma takes 3.0 x the others' time for its part of a step; --shares auto
   gives it a smaller part
   → orch restart r1 --nodes alpha,beta   # without gamma
 #  node   state     CPU     memory  disk MiB/s  net MiB/s  note
 0  alpha  running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0
 1  beta   running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0
 2  gamma  running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0  ◀ compute
"""
NARROW = """\
 run r1  running
 step 5/100 (5%) · 640 tokens/s
 loss █▇▅▃▁ 0
 ! gamma takes 3.0 x the others' time
   for its part of a step; --shares …
   → orch restart r1 --nodes alpha,bet…
 node   state     CPU     memory
 alpha  running  40 %  1.0/4.0 G
 beta   running  40 %  1.0/4.0 G
 gamma  running  40 %  1.0/4.0 G
"""
TINY = """\
 run r1  running
 step 5/100 (5%)
 640 tokens/s
 loss █▆▄▁ 0
 ! gamma takes 3.0
   x the others' …
   → orch restart …
 node   state
 alpha  running
 beta   running
 gamma  running
"""


@pytest.mark.parametrize(("columns", "shown"), [(200, WIDE), (80, MIDDLE), (40, NARROW), (20, TINY)])
def test_the_screen(scene: Scene, columns: int, shown: str) -> None:
    async def look(app: MonitorApp, pilot: Pilot[int]) -> None:
        lines = text_of(app)
        assert lines[: shown.count("\n")] == shown.splitlines()
        assert lines[-1].startswith("q quit ? help l logs")

    scene.show(look, size=(columns, 24))


def test_it_follows_the_size_of_the_terminal(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.resize_terminal(20, 10)
        await pilot.pause()
        assert text_of(app)[5] == " node   state"  # of ten rows, half are for the nodes
        await pilot.resize_terminal(200, 24)
        await pilot.pause()
        assert text_of(app)[5] == WIDE.splitlines()[5]

    scene.show(act, size=(80, 24))


def test_a_node_that_falls_silent_is_grey_before_the_next_refresh_and_recovers(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await scene.refresh(pilot, 0.5)
        scene.watched.wait(NODE_SILENT_S + 0.1)
        scene.watched.sample("alpha", "beta")
        await scene.refresh(pilot, 0.5)  # a look every half second, a refresh every two
        row = app.table.get_row("gamma")
        assert [cell.plain for cell in row][2] == "silent 10 s"
        assert {str(cell.style) for cell in row} == {"bright_black", "bold red"}
        assert any("! gamma does not answer this computer" in line for line in text_of(app))
        scene.watched.sample("gamma")
        await scene.refresh(pilot, 0.5)
        assert [cell.plain for cell in app.table.get_row("gamma")][2] == "running"

    scene.show(act)


def test_faults_are_below(scene: Scene) -> None:
    scene.watched.write("beta", RankFailed(rank=1, error="ValueError", message="x\x1b[2J"), rank=1)

    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        assert text_of(app)[-2].endswith("rank 1 on beta: ValueError: x")

    scene.show(act)


def test_logs_of_the_chosen_node_come_live(scene: Scene) -> None:
    scene.watched.write("beta", "first \x1b[2Jline", rank=1)

    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.press("down", "l")
        await scene.refresh(pilot)
        assert isinstance(app.screen, LogScreen)
        scene.watched.write("beta", "second line", rank=1)
        await scene.refresh(pilot, 2.0)
        log = app.screen.query_one(RichLog)
        assert [line.text.split(" ", 2)[2].rstrip() for line in log.lines] == ["first line", "second line"]
        for number in range(TAIL + 50):
            scene.watched.write("beta", f"line {number}", rank=1)
        await scene.refresh(pilot, 2.0)
        assert log.lines[2].text.rstrip() == "… 50 lines not shown: orch logs shows all"
        await pilot.press("escape")
        assert app.screen is app.screen_stack[0]

    scene.show(act)


def test_details_and_help(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        assert any("memory   1.0 of 4.0 GiB" in line for line in text_of(app))
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        assert any("swapping" in line for line in text_of(app))
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.screen_stack[0]

    scene.show(act)


def test_a_filter_keeps_what_has_its_letters(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"GAM", "enter")
        await pilot.pause()
        assert [key.value for key in app.table.rows] == ["gamma"]
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.table.rows) == 3
        await pilot.press("slash", *"compute", "enter")  # the note of the straggler
        await pilot.pause()
        assert [key.value for key in app.table.rows] == ["gamma"]
        assert " 2  gamma  running  40 %  1.0/4.0 G     0.0/0.0    0.0/0.0         1.5 s  ◀ compute" in text_of(app)
        await pilot.press("slash", *"q")  # a letter of the filter, not a key
        await pilot.pause()
        assert app.screen.query_one(Input).value == "computeq"
        assert text_of(app)[-2] == " computeq"
        assert list(app.table.rows) == []
        await pilot.press("escape", "l", "d")  # no node is chosen by the time; nothing breaks

    scene.show(act)


def test_order(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        for _ in range(20):
            await pilot.press("o")
            await pilot.pause()
            if "part of step ▼" in "".join(text_of(app)):
                break
        assert next(key.value for key in app.table.rows) == "gamma"

    scene.show(act)


def test_the_cursor_stays_on_its_node_when_the_order_changes(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.press("down")
        await pilot.press("o")
        await pilot.pause()
        assert app.chosen is not None
        assert app.chosen.name == "beta"

    scene.show(act)


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
def test_the_end(scene: Scene, key: str, code: int) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.press(key)
        await pilot.pause()

    assert scene.show(act).return_value == code


def test_a_run_that_is_not_there_ends_the_screen(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        scene.feed.error = ConfigError("no run x on any node")
        await scene.refresh(pilot, 2.0)

    assert scene.show(act).return_value == ConfigError.exit_code


def test_a_shell_that_a_screen_cannot_suspend_for_is_reported(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        await pilot.press("s")  # there is no terminal here
        await pilot.pause()
        assert app.is_running

    scene.show(act)


def test_in_a_terminal_of_six_rows_a_node_can_be_chosen(scene: Scene) -> None:
    async def act(app: MonitorApp, pilot: Pilot[int]) -> None:
        assert isinstance(app.table, DataTable)
        await pilot.press(*["down"] * 2)
        assert app.chosen is not None
        assert app.chosen.name == "gamma"

    scene.show(act, size=(20, 6))
