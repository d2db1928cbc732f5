"""The screen of `orch monitor`. Imported only where it is shown: textual takes a third of a second."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from signal import SIGHUP, SIGTERM
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from orchestrator.render.printable import printable
from orchestrator.render.times import stamp
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.node_table import NodeColumn, detail_lines, fitting, node_cells, ordered, orders
from orchestrator.watch.run_lines import fault_lines, run_lines
from orchestrator.watch.terminal.feed import LiveFeed
from orchestrator.watch.views import NodeView

TICK_S = 0.5
"""Seconds between two looks for a node that has become silent, or has come back: it is shown at once."""
FIRST_S = 0.1
"""Seconds between two refreshes until every node has answered."""
FAULTS, NODE_ROWS = 4, 3
"""Rows for the newest faults at most, and for nodes at least, where as many are there."""
MARK = " ▼"
"""Mark after the title of the column that orders the nodes."""

HELP = """\
[b]Keys[/b]
up, down  choose a node
l         its log lines, as they come
d, Enter  details: each GPU, disk, network
s         a shell on it; the screen returns after it
S         a shell in its container
/         show only nodes whose name, state or note has these letters
o         order by the next column
q         quit; the run continues
Escape    back

[b]Columns[/b]
state     of its container; idle: no part of this run; silent: nothing was heard of it for this long, and its row is old
CPU       share of what it may use
memory    in use, and the limit, in GiB
GPU       mean utilization; GPU mem: of all GPUs; temp: the hottest; power: the sum; clock: the lowest
swap      in use, in GiB
disk, net read/written, received/sent, in MiB/s
part of step  seconds for its part of a step, without waiting for others
note      [b]◀[/b] the others wait for this node, and why: compute, data, link, throttled, swapping

More: orch docs monitor\
"""


class MonitorApp(App[int]):
    """The run above, the nodes below it, then what went wrong."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #run, #faults { height: auto; padding: 0 1; }
    #faults { max-height: 5; }
    #nodes { height: 1fr; overflow-x: hidden; scrollbar-size-horizontal: 0; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.shown { display: block; }
    HelpScreen, DetailScreen { align: center middle; }
    .panel { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $primary; padding: 0 1; }
    .panel Static { height: auto; }
    #title { height: 1; padding: 0 1; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "quit"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("l", "logs", "logs"),
        Binding("s", "shell(False)", "shell"),
        Binding("S", "shell(True)", "shell in the container", show=False),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("o", "order", "order"),
        Binding("d", "details", "details"),
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True),
        Binding("escape", "clear", "all nodes", show=False),
    ]

    def __init__(
        self,
        feed: LiveFeed,
        *,
        interval_s: float,
        login: Callable[[str, bool], tuple[str, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`login`: the command line of a shell on a node, or in its container."""
        super().__init__(ansi_color=True)
        self._feed, self._interval_s, self._login, self._clock = feed, interval_s, login, clock
        self._columns: list[NodeColumn] = []
        self._widths: list[int] = []
        self._rows: dict[str, list[Text]] = {}
        self._order = orders()[0]
        self._wanted = ""
        self._due, self._silent = 0.0, frozenset[str]()
        self.shown: FleetView = feed.view()

    def compose(self) -> ComposeResult:
        yield Static(id="run")
        table: DataTable[Text] = DataTable(id="nodes", cursor_type="row", cell_padding=1)
        yield table
        yield Static(id="faults")
        yield Input(id="filter", placeholder="letters of a name, state or note", compact=True, select_on_focus=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (SIGTERM, SIGHUP):
            with suppress(ValueError, RuntimeError):  # not the main thread: a test
                loop.add_signal_handler(number, self.action_interrupt)
        self.table.focus()
        self.refresh_view()
        self.call_after_refresh(self._feed.start)  # a first screen comes before what takes longer
        self.set_interval(FIRST_S, self._tick)

    @property
    def table(self) -> DataTable[Text]:
        return self.screen_stack[0].query_one("#nodes", DataTable)

    # ── What is shown ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _tick(self) -> None:
        """Refresh when it is due: at first often, later at each interval, and when a node falls silent or is back."""
        if self._feed.error:
            self.exit(self._feed.error.exit_code)
            return
        now = self._clock()
        if now < self._due:
            return
        settled, silent = self._feed.settled, self._feed.silent()
        self._due = now + (TICK_S if settled else FIRST_S)
        if not settled or silent != self._silent or now - self._refreshed >= self._interval_s:
            self._silent = silent
            self.refresh_view()

    _refreshed = 0.0

    def refresh_view(self) -> None:
        """Show the newest view."""
        self._refreshed = self._clock()
        self.shown = shown = self._feed.view()
        width = max(1, self.size.width - 2)
        base = self.screen_stack[0]
        rows = self.size.height - min(len(shown.nodes), NODE_ROWS) - 2  # the titles of the columns, and the keys
        above = run_lines(shown, width)[: max(1, rows)]
        base.query_one("#run", Static).update(Text("\n").join(above))
        faults = base.query_one("#faults", Static)
        room = self.size.height - len(above) - len(shown.nodes) - 2  # the titles of the columns, and the keys
        lines = fault_lines(shown, max(1, min(FAULTS, room)))
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        faults.update(Text("\n").join(lines))
        faults.display = bool(lines)
        self._show_nodes(shown)
        if isinstance(self.screen, NodeScreen):
            self.screen.show(shown)

    def _show_nodes(self, shown: FleetView) -> None:
        columns = fitting(max(1, self.size.width - 1), shown.nodes)
        nodes = [node for node in ordered(shown.nodes, self._order) if self._passes(node)]
        rows = {node.name: node_cells(node, columns) for node in nodes}
        same = [one.title for one in columns] == [one.title for one in self._columns] and list(rows) == list(self._rows)
        widths = [
            max([len(self._title(one)), *(cells[n].cell_len for cells in rows.values())])
            for n, one in enumerate(columns)
        ]
        if same:  # a column does not shrink: its neighbours would move at each refresh
            widths = [max(pair) for pair in zip(widths, self._widths, strict=True)]
        if not same or widths != self._widths:
            self._columns, self._widths, chosen = columns, widths, self.chosen
            self._rebuild(self.table, rows, chosen.name if chosen else "")
        else:
            for name, cells in rows.items():
                for column, cell, old in zip(columns, cells, self._rows[name], strict=True):
                    if cell != old or cell.style != old.style:
                        self.table.update_cell(name, column.title, _aligned(cell, column))
        self._rows = rows

    def _rebuild(self, table: DataTable[Text], rows: dict[str, list[Text]], chosen: str) -> None:
        table.clear(columns=True)
        for column, width in zip(self._columns, self._widths, strict=True):
            title = Text(self._title(column), "bold", justify=_justify(column))
            table.add_column(title, key=column.title, width=width)
        for name, cells in rows.items():
            aligned = [_aligned(cell, column) for cell, column in zip(cells, self._columns, strict=True)]
            table.add_row(*aligned, key=name)
        if chosen in rows:
            table.move_cursor(row=list(rows).index(chosen))

    def _title(self, column: NodeColumn) -> str:
        return column.title + (MARK if column.title == self._order and column.key else "")

    def _passes(self, node: NodeView) -> bool:
        if not self._wanted:
            return True
        columns = [one for one in fitting(10**6, [node]) if one.title in ("node", "state", "note")]
        cells = node_cells(node, columns)
        return self._wanted.lower() in " ".join(cell.plain for cell in cells).lower()

    @property
    def chosen(self) -> NodeView | None:
        """The node under the cursor."""
        names = list(self._rows)
        row = self.table.cursor_row
        name = names[row] if 0 <= row < len(names) else ""
        return next((node for node in self.shown.nodes if node.name == name), None)

    def on_resize(self, _event: Resize) -> None:
        self.call_after_refresh(self.refresh_view)

    # ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def action_leave(self) -> None:
        self.exit(EXIT_OK)

    def action_interrupt(self) -> None:
        self.exit(EXIT_INTERRUPTED)

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_logs(self) -> None:
        if (node := self.chosen) and not isinstance(self.screen, NodeScreen):
            self.push_screen(LogScreen(self._feed, node.name))

    def action_details(self) -> None:
        if (node := self.chosen) and not isinstance(self.screen, NodeScreen):
            self.push_screen(DetailScreen(node.name))

    def on_data_table_row_selected(self) -> None:
        self.action_details()

    def action_order(self) -> None:
        words = orders()
        self._order = words[(words.index(self._order) + 1) % len(words)]
        self._columns = []
        self.refresh_view()
        self.notify(f"order: {self._order}", timeout=2)

    def action_filter(self) -> None:
        entry = self.screen_stack[0].query_one("#filter", Input)
        entry.add_class("shown")
        entry.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self.refresh_view()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not event.value:
            event.input.remove_class("shown")
        self.table.focus()

    def action_clear(self) -> None:
        entry = self.screen_stack[0].query_one("#filter", Input)
        entry.value = ""
        entry.remove_class("shown")
        self.table.focus()

    def action_shell(self, container: bool) -> None:
        """Give the terminal to a shell; the watching continues meanwhile."""
        node = self.chosen
        if node is None:
            return
        try:
            with self.suspend():
                ended = subprocess.run(self._login(node.name, container), check=False)
        except (SuspendNotSupported, OSError) as error:
            self.notify(f"no shell here: {error}", severity="error")
            return
        self.refresh_view()
        if ended.returncode:
            self.notify(f"the shell on {printable(node.name)} has ended with {ended.returncode}", severity="warning")


class NodeScreen(Screen[None]):
    """A screen about one node."""

    def show(self, _shown: FleetView) -> None:
        """Show what a new view says."""


class LogScreen(NodeScreen):
    """The log lines of a node, as they come."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,l", "app.pop_screen", "back", key_display="Esc"),
        Binding("q", "app.leave", "quit"),
    ]

    def __init__(self, feed: LiveFeed, name: str) -> None:
        super().__init__()
        self._feed, self._subject, self._last = feed, name, 0

    def compose(self) -> ComposeResult:
        yield Static(Text(f"log of {printable(self._subject)}"), id="title")
        yield RichLog(max_lines=5000, wrap=True, min_width=1, id="log")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.query_one(RichLog).focus()
        self.call_after_refresh(self._write)

    def show(self, _shown: FleetView) -> None:
        self._write()

    def _write(self) -> None:
        log = self.query_one(RichLog)
        lines = self._feed.tail(self._subject, self._last)
        if lines and self._last and lines[0].number > self._last + 1:
            log.write(Text(f"… {lines[0].number - self._last - 1:,} lines not shown: orch logs shows all", "yellow"))
        for line in lines:
            rank = "" if line.rank is None else f"r{line.rank} "
            log.write(Text.assemble((f"{printable(stamp(line.time))[11:19]} {rank}", "bright_black"), line.text))
        if lines:
            self._last = lines[-1].number
        elif not self._last and not log.lines:
            log.write(Text("no line yet", "bright_black"))


class DetailScreen(ModalScreen[None], NodeScreen):
    """All that is known of a node, each GPU on a line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,d,enter", "app.pop_screen", "back"),
        Binding("q", "app.leave", "quit"),
    ]

    def __init__(self, name: str) -> None:
        super().__init__()
        self._subject = name

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="panel"):
            yield Static(id="details")

    def on_mount(self) -> None:
        app = self.app
        if isinstance(app, MonitorApp):
            self.show(app.shown)

    def show(self, _shown: FleetView) -> None:
        if node := next((node for node in _shown.nodes if node.name == self._subject), None):
            width = max(10, min(96, int(self.app.size.width * 0.9) - 4))
            self.query_one("#details", Static).update(Text("\n").join(detail_lines(node, width)))


class HelpScreen(ModalScreen[None]):
    """Keys and columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter", "app.pop_screen", "back"),
        Binding("q", "app.leave", "quit"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="panel"):
            yield Static(Text.from_markup(HELP))


def _justify(column: NodeColumn) -> Literal["left", "right"]:
    return "right" if column.right else "left"


def _aligned(cell: Text, column: NodeColumn) -> Text:
    aligned = cell.copy()
    aligned.justify = _justify(column)
    return aligned
