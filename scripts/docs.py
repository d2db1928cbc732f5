"""The documentation site, and the pages of it that are made from the code.

python scripts/docs.py reference          # write the generated pages; a test compares them with the code
python scripts/docs.py build [--out DIR]  # build the site with Zensical, strictly: a link without a page is an error

The site is the folder docs/ and a few files outside it, copied into one folder first, as Zensical takes only one. The
wheel holds the result, and `orch docs` opens it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
OUTSIDE = {
    "../benchmarks/README.md": "benchmarks-commands.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../SECURITY.md": "security.md",
    "../inventory.yaml": "inventory-example.md",
    "../README.md": "index.md",
}
"""Files outside docs/ as its pages link to them, and the page of the site that each of them becomes."""

WORKER = Path(__file__).with_name("file-worker.js")
FETCHED = re.compile(r"https://[^\"]+/iframe-worker/shim")
"""Script that the theme would fetch from elsewhere, for search without a server; ours is beside this script."""


STATUS = re.compile(
    r"\*\*Status\.\*\* Accepted"
    r"(?P<changes>(?:; replaces \d+(?:, \d+)*)?(?:; amended by \[\d+\]\([\w.-]+\)(?:, \[\d+\]\([\w.-]+\))*)?)\.\s"
)
"""First line of a decision."""


def generated() -> dict[Path, str]:
    """Text of each page that is made from the code, by its path."""
    return {
        DOCS / "reference" / "commands.md": "".join(_commands()),
        DOCS / "reference" / "inventory-keys.md": "".join(_inventory_keys()),
        DOCS / "findings" / "README.md": "".join(_findings()),
        DOCS / "adr" / "README.md": "".join(_decisions()),
    }


def _commands() -> Iterator[str]:
    """Every command with its arguments, options and examples, from the declarations of the command line."""
    from orchestrator.cli import GROUPS, build_app

    yield "# Commands\n\nMade from the command line's own help by `python scripts/docs.py reference`. "
    yield "Options of every command, the choice of nodes and exit codes: [command line](../cli.md).\n"
    for title, group in GROUPS.items():
        yield f"\n## {title}\n\n| command | |\n|---|---|\n"
        for name, summary in group.items():
            yield f"| [`orch {name}`](#orch-{name}) | {_cell(summary)} |\n"
        for name in group:
            command = build_app(name).commands[name]
            yield from _command(command, f"orch {name}")
            for inner_name, inner in getattr(command, "commands", {}).items():
                yield from _command(inner, f"orch {name} {inner_name}")


COMMON = {"-q", "-v", "--debug", "--help", "-h"}
"""Options that every command has."""


def _command(command: Any, name: str) -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\n### {name}\n\n{_prose(command.help or '')}\n\n    {name} {usage}\n"
    rows = [
        (_cell(f"`{record[0]}`"), _cell(record[1]))
        for parameter in command.params
        if not {*parameter.opts} & COMMON and (record := parameter.get_help_record(context))
    ]
    if rows:
        yield "\n| | |\n|---|---|\n"
        yield from (f"| {option} | {text} |\n" for option, text in rows)
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("orch ")]
    if examples:
        yield "\n" + _mark(examples) + "```sh\n" + "\n".join(examples) + "\n```\n"


NOT_RUN = {
    "changes this computer": ("orch firewall apply", "orch firewall remove"),
    "needs Docker": (
        "orch build",
        "orch init --local",
        *(f"orch lab {word}" for word in ("cut", "heal", "kill", "start", "link", "shell")),
        "orch lab up --nodes",
        "orch shell gamma --container",
    ),
    "needs a card": ("orch exec RUN -- nvidia-smi", "orch exec -n beta,gamma -- nvidia-smi"),
    "needs a cluster": (
        "orch check-gpus --on",
        "orch doctor --on",
        "orch lab up --engine slurm",
    ),
    "needs a machine with this fault": ("orch trust --hooks",),
    "needs another machine": (
        *(f"orch init {words}" for words in ("192", "ana@", "--scan", "-i")),
        "orch setup",
        "orch dashboard --bind",
    ),
}
"""Starts of examples that tests/documents does not run, by their reason."""


def _mark(examples: list[str]) -> str:
    """The comment that says of these lines which are not run, and why: tests/documents/lines.py reads it."""
    found = {
        reason: fitting
        for reason, starts in NOT_RUN.items()
        if (fitting := [start for start in starts if any(line.startswith(start) for line in examples)])
    }
    marks = "; ".join(f"{reason}: {', '.join(starts)}" for reason, starts in found.items())
    return f"<!-- not run here: {marks} -->\n" if found else ""


def _prose(text: str) -> str:
    """Docstring as paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _inventory_keys() -> Iterator[str]:
    """Every key of inventory.yaml, from its JSON Schema."""
    from orchestrator.specs.inventory_files.inventory_schema import inventory_schema

    schema = inventory_schema()
    node = schema["properties"]["nodes"]["additionalProperties"]["properties"]
    top = {key: value for key, value in schema["properties"].items() if key not in ("nodes", "defaults")}
    yield "# Keys of `inventory.yaml`\n\nMade from the JSON Schema, which `orch inventory schema` prints, by "
    yield "`python scripts/docs.py reference`. How they work together: [inventory](../inventory.md).\n"
    yield from _keys("Of the file", top, schema["$defs"])
    yield from _keys("Of a node, and of `defaults`", node, schema["$defs"])


def _keys(title: str, properties: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {title}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
    for path, key in _flat(properties, definitions):
        default = "" if key.get("default") is None else f"`{key['default']}`"
        yield f"| `{path}` | {_type(key)} | {_cell(default)} | {_cell(key.get('description', ''))} |\n"


def _flat(
    properties: Mapping[str, Any], definitions: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, key in properties.items():
        reference = key.get("$ref") or next((one["$ref"] for one in key.get("anyOf", ()) if "$ref" in one), "")
        inner = definitions.get(reference.rpartition("/")[2], key if key.get("properties") else {})
        if inner.get("properties"):
            yield from _flat(inner["properties"], definitions, f"{above}{name}.")
        else:
            yield above + name, key


def _type(key: Mapping[str, Any]) -> str:
    if "enum" in key or "const" in key:
        return ", ".join(f"`{value}`" for value in key.get("enum", [key.get("const")]))
    if "anyOf" in key:
        return " or ".join(dict.fromkeys(_type(one) for one in key["anyOf"] if one.get("type") != "null"))
    kind = key.get("type", "")
    names = {"string": "text", "integer": "whole number", "object": "keys", "array": "list", "boolean": "yes or no"}
    shown = names.get(kind, kind) if isinstance(kind, str) else "text"
    bounds = [f"{word} {key[name]}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in key]
    return " ".join([shown, *bounds])


def _findings() -> Iterator[str]:
    """Every finding by what a person sees, area by area."""
    from orchestrator.specs.finding_pages import all_findings

    yield "# What `orch` may find\n\n"
    yield "Findings of `orch doctor`, `orch check-gpus` and `orch launch`; `orch explain ID` prints each offline.\n"
    yield "An id is `area.fault` and never changes its meaning: scripts may rely on it. "
    yield "Causes of failed runs: [why](../why.md).\nThe list is made by `python scripts/docs.py reference`.\n"
    for area, findings in groupby(all_findings(), key=lambda finding: finding.area):
        yield f"\n## [{area}]({area}.md)\n\n| what is wrong | finding |\n|---|---|\n"
        yield from (f"| {_cell(one.title)} | [{one.id}]({area}.md#{one.anchor}) |\n" for one in findings)


def _decisions() -> Iterator[str]:
    """The list of decisions, from their headings, with what each replaces or is amended by."""
    yield "# Decisions\n\nEach with its status, its context, what was chosen and what was not. One that "
    yield "replaces another holds what is left of it.\nThe list is made by `python scripts/docs.py reference`.\n\n"
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        heading, _, text = path.read_text("utf-8").partition("\n\n")
        number, _, title = heading.removeprefix("# ").partition(". ")
        status = STATUS.match(text)
        yield f"- {number}: [{title}]({path.name}){status['changes'] if status else ''}\n"


# ── The site ──────────────────────────────────────────────────────────────────────────────────────


def build(out: Path) -> None:
    """Build the site in `out`. CalledProcessError: a link leads nowhere, or Zensical failed."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        stage(work / "docs")
        shutil.copy(ROOT / "mkdocs.yml", work)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "mkdocs.yml"]
        subprocess.run(command, cwd=work, check=True)
        for page in (work / "site").rglob("*.html"):
            up = "../" * (len(page.relative_to(work / "site").parts) - 1)
            page.write_text(FETCHED.sub(f"{up}assets/{WORKER.name}", page.read_text("utf-8")), "utf-8")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out, ignore=shutil.ignore_patterns("*.map", "search.json"))


def stage(folder: Path) -> None:
    """Copy docs/ and the files outside of it that its pages link to."""
    shutil.copytree(DOCS, folder)
    (folder / "assets").mkdir(exist_ok=True)
    shutil.copy(WORKER, folder / "assets")
    for source, page in OUTSIDE.items():
        text = (DOCS / source).read_text("utf-8")
        if source.endswith(".yaml"):
            text = f"# The commented example\n\n```yaml\n{text}```\n"
        if not (folder / page).exists():
            (folder / page).write_text(_moved_links(text, source), "utf-8")
    for path in folder.rglob("*.md"):
        text = path.read_text("utf-8")
        if path.parent.name in ENTRIES:
            text = ENTRY.sub(ENTRIES[path.parent.name], text)
        path.write_text(_site_links(text, depth=len(path.relative_to(folder).parts) - 1), "utf-8")


def _moved_links(text: str, source: str) -> str:
    """Links of a file outside docs/, as they are from the top of the site."""
    to_docs = "../docs/" if source.startswith("../benchmarks/") else "docs/"
    text = text.replace(f"]({to_docs}", "](")
    for other, page in OUTSIDE.items():
        text = text.replace(f"]({other.removeprefix('../')})", f"]({page})")
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)?[\w./-]+\.(?:py|toml|yaml|es\.md)\)", r"`\1`", text)


def _site_links(text: str, depth: int) -> str:
    up = "../" * depth
    for source, page in OUTSIDE.items():
        text = text.replace(f"]({up}{source}", f"]({up}{page}")
    return text


ENTRY = re.compile(r"^## (?P<heading>(?P<id>[a-z]+\.\w+): [^\n]+)\n\n```yaml\n(?P<yaml>.*?)^```\n", re.M | re.S)
"""Head of a finding or of a cause. A build of the wheel cannot import the reader, orchestrator/specs/pages.py."""


def _finding(entry: re.Match[str]) -> str:
    """The heading of a finding, with its id as a place to link to, without its texts for messages."""
    return f"{_heading(entry)}\n"


def _cause(entry: re.Match[str]) -> str:
    """A cause with its explanation and its steps as text."""
    import yaml

    cause = yaml.safe_load(entry["yaml"])
    steps = "\n".join(f"- {_placeholders(step)}" for step in cause["fix"])
    finding = cause.get("finding", "")
    related = finding and f"\n\nSee also: [{finding}](../findings/{finding.partition('.')[0]}.md#{finding})"
    text = f"{_placeholders(cause['explanation'])}\n\nOwner: {cause['owner']}\n\n{steps}{related}"
    return f"{_heading(entry)}\n\n{text}\n"


def _heading(entry: re.Match[str]) -> str:
    """The heading with two places to link to: the id alone, and the anchor that GitHub makes."""
    anchor = re.sub(r"[^\w -]", "", entry["heading"].lower()).replace(" ", "-")
    return f'## <span id="{entry["id"]}"></span>{entry["heading"]} {{#{anchor}}}'


ENTRIES = {"findings": _finding, "causes": _cause}


def _placeholders(text: str) -> str:
    """`{node}` as NODE, and no character that Markdown or HTML would take for markup."""
    shown = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), text.replace("{{", "\0").replace("}}", "\1"))
    return shown.replace("\0", "{").replace("\1", "}").replace("<", "&lt;").replace("*", r"\*")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/docs.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("reference", "build"))
    parser.add_argument(
        "--out", type=Path, default=SITE, metavar="DIR", help="folder of the site (default: build/site)"
    )
    given = parser.parse_args()
    if given.action == "build":
        build(given.out.resolve())
        return 0
    for path, text in generated().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
