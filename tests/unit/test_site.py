"""The documentation site: its generated pages are current, every link leads somewhere, nothing is fetched, and
`orch docs` finds the page of every topic."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import yaml

from contract import environment
from orchestrator.checks.causes import cause_areas, causes_of
from orchestrator.cli import COMMANDS
from orchestrator.cli.docs import address_of, site_folder
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.finding_pages import all_findings
from tests.unit.conftest import Orch

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests" / "fixtures" / "quickstart.cast"
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "docs.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link without a page is an error."""
    folder: Path = tmp_path_factory.mktemp("built") / "site"
    SCRIPT["build"](folder)
    return folder


class Page(HTMLParser):
    """Anchors, links, and what a browser fetches to show the page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "link", "iframe", "source"):
            self.fetched.append(given.get("src") or given.get("href", ""))


@pytest.mark.parametrize("path", SCRIPT["generated"](), ids=lambda path: path.name)
def test_generated_pages_are_current(path: Path) -> None:
    assert path.read_text("utf-8") == SCRIPT["generated"]()[path], "python scripts/docs.py reference"


def test_the_picture_is_that_of_its_recording() -> None:
    draw = runpy.run_path(str(ROOT / "scripts" / "cast.py"))["draw"]
    picture = ROOT / "docs" / "pictures" / "quickstart.svg"
    assert picture.read_text("utf-8") == draw(RECORDING.read_text("utf-8")), "scripts/cast.py draw"


def test_no_line_of_a_progress_display_is_left_in_the_recording() -> None:
    lines_of = runpy.run_path(str(ROOT / "scripts" / "cast.py"))["lines_of"]
    left = [
        line.text
        for line in lines_of(RECORDING.read_text("utf-8"))
        if line.until_s is None and "✓ first step" in line.text
    ]
    assert len(left) == len(set(left)) == 5


def test_the_pictures_of_the_terminal_are_as_the_code_draws_them() -> None:
    ran = subprocess.run(
        (sys.executable, str(ROOT / "scripts" / "pictures.py"), "--check"), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_every_page_of_the_navigation_is_there_and_every_guide_is_in_it() -> None:
    def pages(entries: list[Any]) -> list[str]:
        values = [value for entry in entries for value in entry.values()]
        return [page for value in values for page in (pages(value) if isinstance(value, list) else [value])]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    guides = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    found_otherwise = {name for name in guides if name.startswith(("adr/0", "findings/", "causes/"))}
    made = set(SCRIPT["OUTSIDE"].values())
    assert guides - found_otherwise - set(listed) == set()
    assert set(listed) - guides - made == set()


def test_no_link_of_the_site_is_broken_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    guides = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")}
    names = {one.with_name("index.html") if one.stem == "README" else one for one in guides}
    assert names - {path.relative_to(site) for path in pages} == set()
    broken, foreign = [], []
    for path, page in pages.items():
        name = path.relative_to(site)
        foreign += [f"{name}: {url}" for url in page.fetched if "//" in url]
        for link in page.links:
            parts = urlparse(link)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not to.exists() or (to in pages and parts.fragment and unquote(parts.fragment) not in pages[to].anchors):
                broken.append(f"{name}: {link}")
    assert (broken, foreign) == ([], [])


def test_orch_docs_finds_the_page_of_every_finding_cause_command_and_guide(site: Path) -> None:
    topics = [finding.id for finding in all_findings()]
    topics += [id for area in cause_areas() for id in causes_of(area)]
    topics += [*COMMANDS, "orch launch", "recovery", "tutorials/lab", ""]
    for package in ("orchestrator", "trainer"):  # pages that messages and helps name
        for source in (ROOT / package).rglob("*.py"):
            text = source.read_text("utf-8")
            if "docs/" in text:
                assert not re.search(r"[\"`( ]docs/[a-z-]+\.md[)\\\"]", _without_docstrings(text)), source
            if source.name != "docs.py":
                topics += re.findall(r"orch docs ([a-z][a-z-]+)\b", text)
    anchors = cache(lambda page: Page(page).anchors)
    for topic in dict.fromkeys(topics):
        parts = urlparse(address_of(topic, site))
        page = Path(unquote(parts.path))
        assert page.is_file(), topic
        assert not parts.fragment or parts.fragment in anchors(page), topic


def _without_docstrings(text: str) -> str:
    """The strings of a module that a user may see: a wheel has no folder `docs`."""
    tree = ast.parse(text)
    saved = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(f'"{node.value}"' for node in strings if node not in saved)


@pytest.mark.parametrize(
    ("topic", "place"),
    [
        ("json", "cli.html#json"),
        ("reporters", "watching.html#reporters"),
        ("orch dashboard", "monitor.html#in-the-browser-orch-dashboard"),
        ("checkpoints", "results.html#checkpoints-orch-checkpoints"),
        ("stop", "reference/commands.html#orch-stop"),
        ("monitor", "monitor.html"),
        ("gpu.lost", "findings/gpu.html#gpu.lost"),
    ],
)
def test_a_section_of_a_guide_is_found(site: Path, topic: str, place: str) -> None:
    assert address_of(topic, site) == f"{site.as_uri()}/{place}"


def test_a_topic_without_a_page_is_refused_with_similar_ones(site: Path) -> None:
    with pytest.raises(UsageError, match=r"no page is about 'clock\.skwe'") as caught:
        address_of("clock.skwe", site)
    assert "clock.skew" in caught.value.hint


def test_the_address_is_printed(orch: Orch) -> None:
    try:
        folder = site_folder()
    except ConfigError:  # a clone whose site is not built
        ran = orch("docs", "--print")
        assert (ran.code, ran.out) == (3, "")
        assert f"pip install --no-deps -e {ROOT}" in ran.err
    else:
        ran = orch("docs", "launch", "--print")
        assert (ran.code, ran.out) == (0, f"{(folder / 'launch.html').as_uri()}\n")


def test_every_variable_of_a_container_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8").partition("## Environment variables")[2]
    names = [value for name, value in vars(environment).items() if name.isupper()]
    assert len(names) > 8
    assert [name for name in names if f"`{name}`" not in text] == []
