"""A builder's output: the stage and its share for people, the whole of it in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.fleet.images.build_output import BuildOutput, steps_of
from orchestrator.nodes.interface import Progress

DOCKERFILE = b"""\
# a comment
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS system
# between instructions
RUN apt-get update \\
 && apt-get install -y \\
    # inside of one
    g++
FROM system AS torch
COPY images/torch.txt /images/torch.txt
RUN pip install "torch$equals$(pinned torch)"

FROM system
COPY --from=torch /opt/venv /opt/venv
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _output(clock: Callable[[], float], seen: list[Progress], log: Path | None = None) -> BuildOutput:
    steps = steps_of(DOCKERFILE, "the result")
    return BuildOutput(node="here", steps=steps, notify=lambda _, progress: seen.append(progress), log=log, clock=clock)


def test_each_stage_is_shown_once_with_its_share() -> None:
    clock, seen = Clock(), list[Progress]()
    with _output(clock, seen) as output:
        for number in range(1, 9):
            output.read(f"Step {number}/8 : …")
            output.read("Get:1 http://deb.debian.org bookworm/main amd64 g++\nSetting up g++")
            clock.now += 50 if number in (3, 6) else 0
    stages = [progress for progress in seen if progress.text.startswith("building")]
    assert list(dict.fromkeys(progress.text for progress in stages)) == [
        "building the image: system (1 of 3)",
        "building the image: torch (2 of 3)",
        "building the image: the result (3 of 3)",
    ]
    shares = [progress.done for progress in stages]
    assert shares == sorted(shares)
    assert shares[-1] > 90


def test_the_time_left_follows_the_speed_of_this_machine() -> None:
    """Steps that the builder had in its cache say nothing about it."""
    left = []
    for apt_s in (0.1, 100.0, 1000.0):
        clock = Clock()
        output = _output(clock, [])
        for number in range(1, 7):
            output.read(f"Step {number}/8 : …")
            clock.now += apt_s if number == 3 else 0.0
        progress = output.progress()
        assert progress is not None
        left.append(progress.left_s or 0.0)
    usual, same, slower = left
    assert usual == pytest.approx(same, rel=0.05)
    assert slower == pytest.approx(10 * same, rel=0.05)


def test_a_step_that_takes_longer_than_expected_still_has_time_left() -> None:
    clock = Clock()
    output = _output(clock, [])
    assert output.progress() is None
    output.read("Step 3/8 : RUN apt-get")
    seen = []
    for _ in range(5):
        progress = output.progress()
        assert progress is not None
        seen.append(progress.left_s or 0.0)
        clock.now += 60
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] > 0


def test_all_lines_go_to_the_file_without_passwords_and_the_last_ones_into_an_error(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "build.log"
    output = _output(Clock(), [], log)
    output.read("Looking in indexes: https://ana:secret@packages.example/simple")
    for number in range(30):
        output.read(f"line {number}")
    assert log.read_text().splitlines()[:2] == [
        "here: Looking in indexes: https://***@packages.example/simple",
        "here: line 0",
    ]
    assert log.stat().st_mode & 0o077 == 0
    assert list(output.last_lines()) == [*(f"line {number}" for number in range(15, 30)), f"the whole output: {log}"]
