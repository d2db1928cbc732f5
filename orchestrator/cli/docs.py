"""`orch docs`: the documentation of this installation, in a browser, without a network."""

from __future__ import annotations

import difflib
import re
import sys
import webbrowser
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

import typer

from orchestrator.cli.report import say, write_line
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError

EXAMPLES = """\
orch docs
orch docs launch
orch docs clock.skew
orch docs --print
"""


def docs(
    topic: str = typer.Argument(
        "",
        metavar="[TOPIC]",
        help="A page, a command, a finding such as clock.skew, or a cause such as code.exception.",
    ),
    print_only: bool = typer.Option(False, "--print", help="Print the address of the page, and open no browser."),
) -> int:
    """Open the documentation that came with this installation. Needs no network and no inventory.

    Where no browser can be opened, the address is printed.
    """
    site = site_folder()
    address = address_of(topic, site)
    if _is_older(site):
        say(f"pages have changed since the site was built\n  → {_build_line(site.parents[1])}")
    if print_only or not _opened(address):
        write_line(address)
    else:
        say(f"opened {address}")
    return EXIT_OK


def site_folder() -> Path:
    """Folder of the built site: in the installed package, or `build/site` in a clone. ConfigError: there is none."""
    package = Path(str(files("orchestrator")))
    for folder in (package / "site", package.parent / "build" / "site"):
        if (folder / "index.html").is_file():
            return folder
    raise ConfigError("the documentation of this clone is not built", hint=_build_line(package.parent))


def _build_line(clone: Path) -> str:
    """The command that installs a clone again, which builds its site with what the build needs."""
    python = quote(sys.executable)
    installer = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{installer} --no-deps -e {quote(str(clone))}"


def _is_older(site: Path) -> bool:
    """Return whether a page of the clone has changed since its site was built; the site of a wheel has no pages beside
    it."""
    built = (site / "index.html").stat().st_mtime
    return site.parent.name == "build" and any(
        page.stat().st_mtime > built for page in site.parents[1].glob("docs/**/*.md")
    )


def address_of(topic: str, site: Path) -> str:
    """The file address of the page about a topic. UsageError: there is none; it names the most similar topics."""
    topics = _topics(site)
    name = topic.removeprefix("orch ").strip() or "index"
    if name not in topics:
        near = difflib.get_close_matches(name, topics, cutoff=0.5)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"no page is about {topic!r}", hint=f"{meant}orch docs opens the first page")
    page, _, place = topics[name].partition("#")
    return (site / page).absolute().as_uri() + (f"#{place}" if place else "")


def _topics(site: Path) -> dict[str, str]:
    """Page, with the place in it, by topic. A guide, or a section of one, wins over the command of the same name."""
    from orchestrator.checks.causes import cause_areas, causes_of
    from orchestrator.cli import COMMANDS
    from orchestrator.specs.finding_pages import all_findings

    headings = _headings(site)
    topics = headings | {name: f"reference/commands.html#orch-{name}" for name in COMMANDS}
    topics |= {name: to for place, to in headings.items() for name in COMMANDS if f"-orch-{name}-" in f"-{place}-"}
    topics |= {id: f"causes/{area}.html#{id}" for area in cause_areas() for id in causes_of(area)}
    topics |= {finding.id: f"findings/{finding.area}.html#{finding.id}" for finding in all_findings()}
    for page in sorted(site.rglob("*.html"), key=lambda page: -len(page.parts)):
        path = page.relative_to(site)
        topics |= {path.with_suffix("").as_posix(): path.as_posix(), path.stem: path.as_posix()}
    return topics


def _headings(site: Path) -> dict[str, str]:
    """Sections of the guides by their anchors: `json` is one of the page about the command line."""
    headings: dict[str, str] = {}
    for page in sorted(site.glob("*.html")):
        for anchor in re.findall(r'<h2 id="([a-z0-9-]+)"', page.read_text("utf-8")):
            headings.setdefault(anchor, f"{page.name}#{anchor}")
    return headings


def _opened(address: str) -> bool:
    """Return whether a browser with a window of its own took the address: one in the terminal would take the
    terminal."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return not isinstance(browser, webbrowser.GenericBrowser) and browser.open(address)
