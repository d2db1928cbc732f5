"""Causes of failed runs. Their texts are the front matter of docs/causes/AREA.md, shipped with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from contract.failures.classify import Classified
from contract.failures.owners import Owner
from orchestrator.specs.finding_pages import pages_folder, read_page


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Explanation of a failure, and its fix.

    On a page, its texts hold `{node}`, `{rank}`, `{run}` and the named groups of the patterns of its signature.
    """

    id: str
    owner: Owner
    title: str
    explanation: str
    fix: tuple[str, ...]
    """Steps to take, the likeliest first; commands can be pasted."""
    finding: str = ""
    """Finding of `orch doctor` about the same fault, seen before a run; empty where there is none."""
    launch_again: bool = False
    """Whether the options of the launch have to change first: a resume would repeat them."""
    evidence: tuple[str, ...] = ()
    """The lines by which it was recognised."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`, the innermost in the user's own code."""

    @classmethod
    def of(cls, found: Classified, **known: str) -> Cause:
        """The cause of this failure; `known`: its node, rank and run."""
        cause = causes_of(found.signature.area)[found.id].filled(_Found({**known, **found.values}))
        return replace(cause, evidence=found.evidence, frame=found.frame)

    def filled(self, values: Mapping[str, str]) -> Cause:
        """The cause with these values in its texts."""
        steps = tuple(step.format_map(values) for step in self.fix)
        return replace(self, explanation=self.explanation.format_map(values), fix=steps)


class _Found(dict[str, str]):
    """Values for placeholders; a group that the pattern did not find is shown as a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"


class _Names(dict[str, str]):
    """Each placeholder by its name: `{node}` as NODE."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def explained(id: str) -> tuple[Cause, str] | None:
    """The cause with this id, names in place of values, and the text of its area; None where no cause is called so."""
    area = id.partition(".")[0]
    if area not in cause_areas() or id not in causes_of(area):
        return None
    _, text = read_page(pages_folder("causes") / f"{area}.md")
    return causes_of(area)[id].filled(_Names()), text.partition("\n\n")[2].replace("\n", " ").rstrip()


def cause_areas() -> tuple[str, ...]:
    """Areas of causes: a page each."""
    return tuple(sorted(path.stem for path in pages_folder("causes").glob("*.md")))


@cache
def causes_of(area: str) -> Mapping[str, Cause]:
    """All causes of an area by id, as they are on its page."""
    from ruamel.yaml import YAML

    front, _ = read_page(pages_folder("causes") / f"{area}.md")
    written = YAML(typ="safe").load(front)
    return {id: Cause(id=id, **{**texts, "fix": tuple(texts["fix"])}) for id, texts in written.items()}
