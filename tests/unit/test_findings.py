"""Every finding has an explanation and a case that makes it; a fleet in health has none; all can be read offline."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest

from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.finding_pages import FindingTexts, all_findings, texts_of
from orchestrator.specs.pages import ID, PageEntry, pages_folder
from tests.each_case import failures_of
from tests.unit.conftest import Orch, json_data

ROOT = Path(__file__).parents[2]
AREAS = [
    import_module(f"tests.unit.findings.{path.stem}")
    for path in sorted((Path(__file__).parent / "findings").glob("*.py"))
    if path.stem != "__init__"
]
MAKERS: dict[str, Callable[[], Iterable[Finding]]] = {id: make for area in AREAS for id, make in area.MAKERS.items()}
NO_FINDING = ("orch.", ".yaml", ".json", ".conf", ".service")
"""Beginnings and ends of constants that look like an id and are none: labels, names of files."""
SECTIONS = ("What it means", "Why it matters", "How to fix it", "How it was found")
"""Headings of every explanation, in this order."""


def ids_in(path: Path) -> Iterator[str]:
    """Constants that are an id, in a module that makes findings."""
    text = path.read_text()
    if "Finding" not in text:  # a tree of every module would take seconds
        return
    nodes = list(ast.walk(ast.parse(text)))
    if not any(isinstance(node, ast.Name) and node.id == "Finding" for node in nodes):
        return
    for node in nodes:
        word = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if ID.fullmatch(word) and not word.startswith(NO_FINDING[0]) and not word.endswith(NO_FINDING[1:]):
            yield word


@cache
def ids() -> frozenset[str]:
    """The ids of all findings. Not read while tests are collected, which every worker does."""
    return frozenset(id for path in ROOT.glob("orchestrator/**/*.py") for id in ids_in(path))


def leaves(tree: object) -> Iterator[str]:
    """All strings in these mappings and lists."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)


def calls_in(path: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """`Finding.of(ID, node, case=..., name=value)` with a constant id: id, names of values, possible cases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "Finding.of"
            and isinstance(node.args[0], ast.Constant)
        ):
            values = {str(key.arg): key.value for key in node.keywords}
            case = values.pop("case", ast.Constant(""))
            cases = (case.body, case.orelse) if isinstance(case, ast.IfExp) else (case,)
            names = {str(one.value) for one in cases if isinstance(one, ast.Constant)}
            yield str(node.args[0].value), set(values) - {"fixable"}, names


def values_of(texts: FindingTexts, case: str | None) -> set[str]:
    """Names of the values that the texts of this case need; None: of every case."""
    held = [texts.severity, texts.message, texts.cause, texts.fix, texts.auto_fix or {}]
    fields = [text[case] if case and isinstance(text, dict) and case in text else text for text in held]
    return {field for text in leaves(fields) for _, field, _, _ in Formatter().parse(text) if field} - {"node"}


def test_every_finding_is_explained_and_nothing_else() -> None:
    assert len(ids()) >= 35
    explained = [finding.id for finding in all_findings()]
    assert (set(explained), len(explained)) == (ids(), len(ids()))


def test_every_heading_of_a_page_is_a_finding_of_its_area_in_order() -> None:
    headings = [
        (path.stem, heading)
        for path in sorted(pages_folder("findings").glob("[a-z]*.md"))
        for heading in re.findall(r"^##+ (.+)$", path.read_text("utf-8"), re.M)
    ]
    assert headings == [(finding.area, f"{finding.id}: {finding.title}") for finding in all_findings()]
    assert [finding.id for finding in all_findings()] == sorted(ids())


def test_every_value_of_a_text_is_given_and_none_besides() -> None:
    """The id is a constant of the call; findings with a computed id are made by the cases below."""
    calls = [call for path in ROOT.glob("orchestrator/checks/*.py") for call in calls_in(path)]
    assert len(calls) >= 85
    for id, given, cases in calls:
        texts = texts_of(id)
        assert all(values_of(texts, case) <= given for case in cases), id
        assert given <= values_of(texts, None), id
        several = [text for text in (texts.severity, texts.message, texts.cause, texts.fix) if isinstance(text, dict)]
        assert all(cases <= set(text) for text in several), id


def test_no_explanation_repeats_the_texts_of_its_finding() -> None:
    assert failures_of(check_repetition, all_findings()) == []


def check_repetition(finding: PageEntry) -> None:
    explanation = re.sub(r"\s+", " ", finding.text)
    for text in leaves(vars(texts_of(finding.id))):
        assert len(text) < 40 or text not in explanation, text


def test_every_finding_has_a_case_that_makes_it() -> None:
    assert set(MAKERS) == ids()
    assert sum(len(area.MAKERS) for area in AREAS) == len(MAKERS), "two areas make one finding"


def test_each_can_be_found() -> None:
    assert failures_of(check_finding, sorted(MAKERS)) == []


def check_finding(id: str) -> None:
    found = [finding for finding in MAKERS[id]() if finding.id == id]
    assert found
    for finding in found:
        assert finding.message
        assert finding.fix or finding.severity is not Severity.ERROR or id in ("gpu.unreachable", "gpu.engine")


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.__name__.rsplit(".", 1)[-1])
def test_a_fleet_in_health_has_no_finding(area: object) -> None:
    assert list(area.healthy()) == []  # type: ignore[attr-defined]  # what these modules promise


def test_every_explanation_is_short_and_whole() -> None:
    assert pages_folder("findings") == ROOT / "docs" / "findings"
    assert failures_of(check_explanation, all_findings()) == []


def check_explanation(finding: PageEntry) -> None:
    page = (pages_folder("findings") / f"{finding.area}.md").read_text("utf-8")
    assert finding.text in re.sub(r"^<!-- not run here: .* -->\n", "", page, flags=re.M)
    assert tuple(finding.sections) == SECTIONS
    assert all(finding.sections.values())
    assert 8 <= len(finding.text.splitlines()) <= 23
    assert finding.text.count("```") % 2 == 0


def test_the_pages_are_shipped() -> None:
    """The pages of a wheel lie beside the modules."""
    included = re.search(r"force-include\]\n(?:.+\n)*", (ROOT / "pyproject.toml").read_text())
    assert included
    for kind in ("findings", "causes"):
        assert f'"docs/{kind}" = "orchestrator/{kind}"' in included[0]


def test_explain_prints_the_page(orch: Orch) -> None:
    ran = orch("explain", "clock.skew")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("clock.skew: the clock of a machine is off\n\nWhat it means\n")
    assert "sudo timedatectl set-ntp true" in ran.out
    assert "```" not in ran.out


def test_explain_lists_all_findings_by_area(orch: Orch) -> None:
    head, *rows = [line.split()[:2] for line in orch("explain").out.splitlines()]
    assert head == ["area", "finding"]
    assert rows == [[id.partition(".")[0], id] for id in sorted(ids())]
    assert orch("explain", "image", "-o", "name").out.splitlines() == [
        "image.differs",
        "image.missing",
        "image.outdated",
        "image.package_missing",
        "image.unfit",
    ]


def test_explain_as_json(orch: Orch) -> None:
    page = json_data(orch("explain", "gpu.mig", "--json").out)
    assert (page["id"], page["area"], tuple(page["sections"])) == ("gpu.mig", "gpu", SECTIONS)
    assert {row["id"] for row in json_data(orch("explain", "--json").out)} == ids()


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("clock.skw", "clock.skew"), ("skew", "clock.skew"), ("gpu.no_tool", "gpu.no_toolkit")],
)
def test_explain_guesses_what_was_meant(orch: Orch, asked: str, meant: str) -> None:
    ran = orch("explain", asked)
    assert ran.code == 2
    assert asked in ran.err
    assert meant in ran.err.split("did you mean ", 1)[1]


@pytest.mark.parametrize("asked", ["nothing.alike_at_all", "../../etc/passwd", "gpu."])
def test_explain_refuses_what_it_does_not_know(orch: Orch, asked: str) -> None:
    ran = orch("explain", asked)
    assert (ran.code, ran.out) == (2, "")
    assert "orch explain lists them all" in ran.err
