"""The reader of progress in output lines, against lines of public programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.each_case import failures_of
from trainer.agent.output_reader import LONGEST, OutputFigures, read_figures, searched

LINES = Path(__file__).parent / "output_lines"
MISS = "✗ "
"""Mark before a line of which the reader is known to miss a figure."""
HOSTILE = (
    "x" * 5000, " " * 5000, "1" * 5000, "epoch " * 900, "epoch=" * 900, "loss " * 900, "loss: " * 1000, "a_" * 3000,
    "a-" * 2000 + "loss", "100%|" * 1000, "10%|" + "█" * 5000, "1/2 " * 1200, "[1/2]" * 1000, f"step {' ' * 5000}1",
    "epoch" + "[" * 5000, "1:" * 3000, "0%| | 1/2 [00:00<" * 300, "val_" * 1500, "total_loss_" * 500, "1e1e" * 1500,
    "nan" * 2000, "loss=nan " * 600, "\x1b[" * 3000, "\x1b[1m" * 2000, "\r" * 5000, "1 of " * 1200,
    "train 1 [ 1/ 1" * 400, "a.b/" * 1500, "━" * 5000, "epochs: 1/" * 500, "x 100% ━━ 1/2 " * 300, "1/1 " + "=" * 5000,
    "a b c d e f g " * 400 + "loss", "loss" + " " * 5000, "١٢٣" * 2000, "0" * 400 + "." + "0" * 400, "x" * 1_000_000,
    "loss=" + "9" * 400, "step " + "9" * 400, "epoch: 1" + "0" * 11 + "/1" + "0" * 11, "loss=1e999 epoch=1",
    "loss_" + "a" * 900 + "=1", "\x1b]" + "a" * 4000, "1%|" * 20 + "|" * 900, "epoch - - - - 3", "it: " * 1000,
)  # fmt: skip


def cases(name: str) -> Iterator[tuple[str, dict[str, float], bool]]:
    """Each line of a file with its figures, and whether the reader is known to miss one."""
    for line in (LINES / f"{name}.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        figures, _, text = line.partition(" ⇥ ")
        pairs = (one.split("=") for one in figures.removeprefix(MISS).split())
        for written, character in (("\\t", "\t"), ("\\x1b", "\x1b"), ("\\r", "\r")):
            text = text.replace(written, character)
        yield text, {key: float(value) for key, value in pairs}, figures.startswith(MISS)


def is_right(text: str, expected: dict[str, float]) -> bool:
    read = read_figures(text)
    if not expected:
        return read.epoch is read.epochs is read.step is read.steps is read.loss is None
    return all(getattr(read, key) == pytest.approx(value, nan_ok=True) for key, value in expected.items())


@pytest.mark.parametrize("name", ["development", "held_out", "second", "third", "other"])
def test_the_lines_of_public_programs_are_read(name: str) -> None:
    wrong = [text for text, expected, _ in cases(name) if not is_right(text, expected)]
    assert wrong == [text for text, _, missed in cases(name) if missed]


def test_no_known_miss_is_a_wrong_figure() -> None:
    def check(text: str, expected: dict[str, float], _missed: bool) -> None:
        read = read_figures(text)
        for key, value in expected.items():
            assert getattr(read, key) in (None, pytest.approx(value)), key

    assert failures_of(check, cases("third")) == []


def test_a_hostile_line_takes_less_than_a_few_milliseconds() -> None:
    """The fastest of several tries, so that a busy machine fails no test; measured: 0.7 ms for the slowest."""

    def check(text: str) -> None:
        def seconds() -> float:
            begun = time.process_time()
            figures = read_figures(text)
            assert isinstance(figures, OutputFigures)
            return time.process_time() - begun

        assert min(seconds() for _ in range(5)) < 0.005

    assert failures_of(check, HOSTILE) == []


def test_a_long_line_is_searched_at_both_ends() -> None:
    long = "epoch 3 " + "x" * 10_000_000 + " loss 0.5"
    assert len(searched(long)) == LONGEST
    read = read_figures(long)
    assert (read.epoch, read.loss) == (3, 0.5)


def test_a_bar_of_epochs_counts_epochs() -> None:
    read = read_figures("Epochs:  30%|███       | 3/10 [00:30<01:10, 10.00s/it]")
    assert (read.epoch, read.epochs, read.step) == (3, 10, None)


def test_a_bar_has_one_name_in_all_its_states() -> None:
    first, second = (f"Epoch {epoch}: 10%|# | 1/10 [00:01<00:09, 1.0it/s]" for epoch in (3, 14))
    assert read_figures(first).before == read_figures(second).before == "Epoch #:"


def test_the_unit_of_a_count_is_known_where_it_is_named() -> None:
    assert read_figures("step 3/10").unit == "steps"
    assert read_figures("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.2").unit == ""  # samples
