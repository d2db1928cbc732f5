"""Progress of builds and transfers, where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orchestrator.cli.report import Invocation, invocation, progress_view
from orchestrator.nodes.interface import Progress
from orchestrator.render.images import images_data, images_table
from orchestrator.render.progress import ProgressView
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.image import Delivery, Placed

PLACED = (
    Placed(
        node="alpha",
        profile="cpu",
        builder="controller",
        tag="orch/maize:cpu",
        content="c" * 64,
        delivery=Delivery(image_id="sha256:" + "a" * 64, size_bytes=1_183_000_000, moved_bytes=8767, duration_s=7.52),
    ),
    Placed(
        node="beta",
        profile="cpu",
        builder="controller",
        tag="orch/maize:cpu",
        content="c" * 64,
        error=NodeUnreachableError("connection lost", node="beta"),
    ),
)


class Screen:
    """Screen that is no terminal, with a clock that does not advance."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.now = 0.0
        console = Console(file=self.file, width=100)
        self.view = ProgressView(console=console, clock=lambda: self.now)

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_a_transfer_is_reported_now_and_then_and_at_its_end() -> None:
    screen = Screen()
    with screen.view as view:
        for done in range(0, 400_000_001, 1_000_000):
            screen.now += 0.15
            view.notify("alpha", Progress(text="sending", done=done, total=400_000_000))
    assert screen.lines == [
        "alpha: sending 0.0 of 400.0 MB",
        "alpha: sending 201.0 of 400.0 MB, 6.7 MB/s, 30 s left",
        "alpha: sending 400.0 of 400.0 MB, 6.7 MB/s",
    ]


def test_the_rate_of_a_copy_that_continues_counts_what_it_moves() -> None:
    screen = Screen()
    with screen.view as view:
        view.notify("alpha", Progress(text="receiving", done=900_000_000, total=1_000_000_000))
        screen.now = 30
        view.notify("alpha", Progress(text="receiving", done=910_000_000, total=1_000_000_000))
        screen.now = 31
        view.notify("alpha", Progress(text="unpacking"))
        view.notify("beta", Progress(text="receiving", done=5, total=10))  # files, not bytes
        view.notify("gamma", Progress(text="bringing the run's data", done=30_000_000))  # the total is not known
        view.notify("epsilon", Progress(text="copying", done=12_000, total=34_400))
        view.notify("delta", Progress(text="pulling", done=2_000_000_000, total=12_000_000_000))
    assert screen.lines == [
        "alpha: receiving 900.0 of 1000.0 MB",
        "alpha: receiving 910.0 of 1000.0 MB, 0.3 MB/s, 4.5 min left",
        "alpha: unpacking",
        "beta: receiving",
        "gamma: bringing the run's data 30.0 MB",
        "epsilon: copying 12 of 34 kB",
        "delta: pulling 2.0 of 12.0 GB",
    ]


def test_a_long_text_is_cut_and_one_of_control_characters_left_out() -> None:
    screen = Screen()
    with screen.view as view:
        for text in ("x" * 300, "\x1b[2J"):
            view.notify("alpha", Progress(text=text))
    assert screen.lines == ["alpha: " + "x" * 120]


def test_nodes_that_copy_at_once_have_one_line_of_the_last_of_them() -> None:
    screen = Screen()
    with screen.view as view:
        for tenth in range(101):
            screen.now = tenth * 0.75
            for node, rate in (("alpha", 40), ("beta", 10), ("gamma", 30)):
                view.notify(
                    node, Progress(text="sending", done=min(400, tenth * rate // 10) * 1_000_000, total=400_000_000)
                )
    assert screen.lines == [
        "alpha: sending 0.0 of 400.0 MB",
        "alpha, beta, gamma: sending 39.0 of 400.0 MB, 1.3 MB/s, 4.5 min left",
        "alpha, beta, gamma: sending 79.0 of 400.0 MB, 1.3 MB/s, 4.0 min left",
    ]


def test_nodes_that_copy_at_once_have_one_line_at_the_end_of_the_last_of_them() -> None:
    screen = Screen()
    with screen.view as view:
        for second in range(5):
            screen.now = float(second)
            for node, rate in (("alpha", 100), ("beta", 200)):
                view.notify(node, Progress(text="sending", done=min(400, second * rate) * 1_000_000, total=400_000_000))
        view.notify("beta", Progress(text="unpacking", total=1))
    assert screen.lines == [
        "alpha: sending 0.0 of 400.0 MB",
        "beta, alpha: sending 400.0 of 400.0 MB, 100.0 MB/s",
        "beta: unpacking",
    ]


def test_nodes_that_are_done_share_a_line_that_comes_before_the_next_one() -> None:
    screen = Screen()
    with screen.view as view:
        for node in ("alpha", "beta"):
            view.notify(node, Progress(text="data copied", done=1, total=1))
        view.notify("gamma", Progress(text="unpacking", total=1))
        view.notify("alpha", Progress(text="unpacking", total=1))
        view.notify("gamma", Progress(text="has the image", done=1, total=1))
        view.notify("alpha", Progress(text="has the image", done=1, total=1))
    assert screen.lines == ["alpha, beta: data copied", "gamma: unpacking", "gamma, alpha: has the image"]


def test_an_image_for_five_nodes_has_few_lines_on_a_busy_computer() -> None:
    """Half an hour: the quickstart is to print fewer than 80 lines in all, about 55 without the image."""
    screen = Screen()
    stages = (("building the image: torch (2 of 5)", 600), ("saving", 240), ("compressing", 300), ("receiving", 300))
    with screen.view as view:
        for text, seconds in stages:
            for second in range(1, seconds + 1):
                screen.now += 1
                for node in (
                    ("controller",) if text.startswith("building") else ("alpha", "beta", "gamma", "delta", "eps")
                ):
                    view.notify(node, Progress(text=text, done=second * 1_000_000, total=seconds * 1_000_000))
    assert len(screen.lines) <= 25, screen.lines


def test_lines_become_rarer() -> None:
    screen = Screen()
    with screen.view as view:
        for second in range(181):
            screen.now = float(second)
            view.notify(
                "alpha",
                Progress(text="building the image: torch (2 of 5)", done=second // 4, total=100, left_s=200.0 - second),
            )
    assert len(screen.lines) == 4
    assert screen.lines[0] == "alpha: building the image: torch (2 of 5) 0 %, about 3.3 min left"
    assert screen.lines[-1] == "alpha: building the image: torch (2 of 5) 30 %, about 80 s left"


def test_every_node_has_its_own_pace() -> None:
    screen = Screen()
    with screen.view as view:
        for node in ("alpha", "beta"):
            view.notify(node, Progress(text="unpacking"))
    assert screen.lines == ["alpha: unpacking", "beta: unpacking"]


def test_quiet_says_nothing() -> None:
    file = io.StringIO()
    with ProgressView(quiet=True, console=Console(file=file)) as view:
        view.notify("alpha", Progress(text="sending"))
    assert file.getvalue() == ""


def test_quiet_holds_for_every_view_that_a_command_opens(capsys: pytest.CaptureFixture[str]) -> None:
    with invocation(Invocation(quiet=True)), progress_view() as view:
        view.notify("alpha", Progress(text="sending"))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_one_line_for_each_node() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, no_color=True)
    with ProgressView(console=console) as view:
        view.notify("alpha", Progress(text="sending", done=1, total=2))
        view.notify("beta", Progress(text="[red]Step 1/2"))
    assert "alpha" in file.getvalue()
    assert "[red]Step 1/2" in file.getvalue()


def test_notes_stay_above_the_bars_and_nothing_moves_after_the_end() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, no_color=True, highlight=False)
    with ProgressView(console=console, notes=True) as view:
        view.notify("alpha", Progress(text="resuming from step 40, intact on beta"))
        for node in ("alpha", "beta"):
            view.notify(node, Progress(text="data copied", done=1, total=1))
        view.notify("alpha", Progress(text="step-00000040", done=1_000_000, total=2_000_000))
        view.stop()
        shown = file.getvalue()
        view.notify("alpha", Progress(text="step-00000040", done=2_000_000, total=2_000_000))
    assert "alpha: resuming from step 40, intact on beta\n" in shown
    assert shown.count("data copied") == shown.count("alpha, beta: data copied\n") == 1
    assert "step-00000040 1.0 of 2.0 MB" in shown
    assert "2.0 of 2.0 MB" not in file.getvalue()


def test_the_table_shows_who_has_what() -> None:
    file = io.StringIO()
    Console(file=file, width=120).print(images_table(PLACED))
    alpha, beta = file.getvalue().splitlines()[1:]
    assert alpha.split() == ["alpha", "orch/maize:cpu", "a" * 12, "controller", "1183", "MB", "9", "kB", "7.5", "s"]
    assert beta.split() == ["beta", "orch/maize:cpu", "missing", "controller"]


def test_json_has_the_error_of_each_node() -> None:
    alpha, beta = images_data(PLACED)
    assert (alpha["error"], alpha["moved_bytes"]) == ("", 8767)
    assert (beta["error"], beta["image_id"]) == ("beta: connection lost", None)
