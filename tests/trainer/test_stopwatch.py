"""The stopwatch of the benchmarks holds as many steps as it says, in our trainer's loop and in each peer's."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch")
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks import gpt2, gpt2_peers, gpu, text, text_peers, vision, vision_peers
from benchmarks.side_by_side import Comparison, _parse
from benchmarks.stopwatch import Measured, Stopwatch, Turn

Measure = Callable[[argparse.Namespace], Measured]
LOOPS: dict[str, tuple[Comparison, Measure, tuple[str, ...]]] = {
    "gpt2": (gpt2.COMPARISON, gpt2.ours("--no-compile"), ()),
    "gpt2-muon": (gpt2.COMPARISON, gpt2.ours("--no-compile", "--optimizer", "muon"), ()),
    "gpt2-not-late": (gpt2.COMPARISON, gpt2.ours("--no-compile", "--on-spike", "skip"), ()),
    "nanogpt-like": (gpt2.COMPARISON, gpt2_peers.nanogpt, ()),
    "plain": (gpt2.COMPARISON, gpt2_peers.plain, ("transformers",)),
    "plain-tuned": (gpt2.COMPARISON, gpt2_peers.plain_tuned, ("transformers",)),
    "hf-trainer": (gpt2.COMPARISON, gpt2_peers.hf_trainer("tuned"), ("transformers", "accelerate")),
    "lightning": (gpt2.COMPARISON, gpt2_peers.lightning("tuned"), ("transformers", "lightning")),
    "vision": (vision.COMPARISON, vision.ours("--no-compile"), ()),
    "naive": (vision.COMPARISON, vision_peers.naive, ()),
    "timm": (vision.COMPARISON, vision_peers.timm_recipe, ("timm", "torchvision")),
    "text": (text.COMPARISON, text.ours("--no-compile"), ()),
    "text-plain": (text.COMPARISON, text_peers.plain, ("transformers",)),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    gpu.make_data(folder, tiny=True)
    return folder


@pytest.fixture
def stepped() -> Iterator[Callable[[], float]]:
    """A clock by which each step of an optimizer takes one second, and nothing else takes any time."""
    count = [0]

    def one_more(optimizer: object, *_: object) -> None:
        count[0] += type(optimizer).__name__ not in ("Muon", "CombinedOptimizer")  # beside AdamW, in the same step

    hook = register_optimizer_step_post_hook(one_more)
    yield lambda: float(count[0])
    hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize(("warmup", "steps"), [(2, 10), (10, 30)])
@pytest.mark.parametrize("name", LOOPS)
def test_a_window_of_n_steps_holds_n(
    name: str, warmup: int, steps: int, data: Path, stepped: Callable[[], float]
) -> None:
    comparison, measure, needs = LOOPS[name]
    for package in needs:
        pytest.importorskip(package)
    folder = {"gpt2": ("--data-dir", data / "tokens"), "vision": ("--images", data / "pictures")}
    where = folder.get(comparison.module.rpartition(".")[2], ("--data-dir", data / "texts"))
    given = _parse(comparison, ["--quick", "--device", "cpu", "--threads", "1", *map(str, where)])
    given.warmup, given.steps, given.windows, given.clock = warmup, steps, 2, stepped
    assert measure(given).step_s == pytest.approx(1.0, rel=0.005)


def test_windows_settle_and_take_turns() -> None:
    """Two turns of two windows of three steps, and a step to settle; a step takes as many seconds as its number."""
    ours, theirs = socket.socketpair()
    with closing(Turn(theirs, 2)) as turn, ours, ours.makefile("rw") as other:
        other.write("\n\n")  # both turns, given in advance
        other.flush()
        now = [0.0]
        watch = Stopwatch(2, 3, lambda: now[0], windows=2, settle=1, turn=turn)
        assert watch.last == 2 + 2 * (1 + 2 * 3)
        for step in range(1, watch.last + 1):
            now[0] += step
            assert watch.after(step) == (step == watch.last)
        lines = [other.readline() for _ in range(4)]
    assert [line.startswith('{"ready": true') for line in lines] == [True, False, True, False]
    assert '"step_ms": [5000.0, 8000.0]' in lines[1]
    assert '"step_ms": [12000.0, 15000.0]' in lines[3]
    measured = watch.measured(100, "units")
    assert measured.step_s == 10.0
    assert (measured.more["slowest"], measured.more["fastest"]) == (100 / 15, 100 / 5)
    assert measured.start_s == 3.0


@pytest.mark.parametrize("ahead", [True, False])
def test_a_contestant_whose_turn_never_comes_ends(ahead: bool) -> None:
    ours, theirs = socket.socketpair()
    with closing(Turn(theirs, 1)) as turn, ours:
        ours.shutdown(socket.SHUT_RDWR if ahead else socket.SHUT_WR)
        with pytest.raises(SystemExit, match="no turn"):
            turn.wait()
