"""Every cause by the log that it left: most caused for real with torch (programs.yaml), others after public reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.failures.classify import SIGNATURES
from orchestrator.render.why import why_lines
from orchestrator.state.postmortem import write_postmortem
from tests.cases.why.programs import programs
from tests.cases.why.reading import cases, read_case

CASES = cases()
NEED_THE_KERNEL = ("gpu.lost", "memory.kernel", "memory.limit", "memory.limit.engine")
"""Causes that the log alone does not show."""


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_cause_is_found(path: Path) -> None:
    case = read_case(path)
    story = write_postmortem(case.evidence)
    assert story.failure is not None
    assert story.failure.cause is not None
    assert (story.failure.cause.id, story.failure.rank) == (case.cause, case.rank)
    if case.frame:
        assert story.failure.cause.frame == case.frame
    assert "?" not in story.failure.cause.explanation


@pytest.mark.parametrize(
    "path", [path for path in CASES if path.stem not in NEED_THE_KERNEL], ids=lambda path: path.stem
)
def test_it_is_found_without_the_nodes(path: Path) -> None:
    case = read_case(path, with_nodes=False)
    story = write_postmortem(case.evidence)
    assert story.failure is not None
    assert story.failure.cause is not None
    assert story.failure.cause.id == case.cause


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_it_says_who_what_and_what_to_do(path: Path) -> None:
    case = read_case(path)
    text = "\n".join(why_lines(write_postmortem(case.evidence)))
    assert f"✗ rank {case.rank} on " in text
    assert "  → " in text
    assert "{" not in text.partition("evidence")[0]
    assert "\n  more: " in text


def test_at_least_25_cases_are_real() -> None:
    read = [read_case(path) for path in CASES]
    real = {case.cause for case in read if case.made.startswith("torch ")}
    assert len(real) >= 25
    assert {case.name for case in read if case.made.startswith("torch ")} >= set(programs())


def test_ids_are_unique_and_have_an_area() -> None:
    ids = [signature.id for signature in SIGNATURES]
    assert len(set(ids)) == len(ids)
    assert all(id.count(".") == 1 for id in ids)
