"""The figures of `benchmarks.code_measures` on a package of three files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.code_measures import Figures, cycles, measure

FIRST = """
from made import second

class Plan:
    def start(self):
        return self._once() + _twice() + _twice() + b"".decode()

    def _once(self):
        return second.decode("@orch {}")

def _twice():
    return 1
"""
SECOND = """
class Plan:
    min_nodes = 2

def decode(line):
    from made.third import parse_event
    return parse_event(line)
"""
THIRD = """
import made.first

def parse_event(line):
    return line
"""


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    (tmp_path / "made").mkdir()
    for name, text in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        (tmp_path / "made" / f"{name}.py").write_text(text)
    return measure(tmp_path, ("made",))


def test_a_cycle_through_an_import_inside_a_function_is_found(figures: Figures) -> None:
    assert (figures["import cycles"], figures["modules in import cycles"]) == (1, 3)
    assert figures["modules with one importer"] == 3


def test_cycles_are_strongly_connected_components() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a", "e"}}
    assert sorted(map(sorted, cycles(graph))) == [["a", "b"], ["c", "d", "e"]]


def test_private_functions_called_once_are_counted(figures: Figures) -> None:
    assert (figures["private functions"], figures["private functions called once"]) == (2, 1)


def test_events_are_decoded_by_functions_not_by_bytes(figures: Figures) -> None:
    assert (figures["call sites that decode an event"], figures["modules that decode an event"]) == (2, 2)


def test_sizes_and_names(figures: Figures) -> None:
    assert (figures["files"], figures["lines"], figures["longest file"]) == (3, 24, "made/first.py")
    assert (figures["functions"], figures["median lines of a function"]) == (5, 2)
    assert figures["public class names used twice or more"] == 1
    assert (figures["files that spell min_nodes"], figures["files that spell node_timeout_s"]) == (1, 0)
