"""Causes of failed runs, from docs/causes/AREA.md."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from contract.failures.classify import Classified
from contract.failures.owners import Owner
from contract.import_names import package_of
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.specs.pages import areas_of, entries_of, introduction_of

RESUME = "continue from the last checkpoint: orch resume {run}"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Explanation of a failure, and its fix.

    On a page, its texts hold `{node}`, `{rank}`, `{run}` and the named groups of the patterns of its signature; its
    steps also `{again}`: `continue from …` or `launch again …`, whichever applies to the run. Where
    its fix cannot be done on a cluster, the page also has the steps there, `on_cluster`, with `{cluster}`, `{on}`,
    `{test}` and `{without}`: see `ClusterJob`.
    """

    id: str
    owner: Owner
    title: str
    explanation: str
    fix: tuple[str, ...]
    """Steps to take, the likeliest first; commands can be pasted."""
    finding: str = ""
    """Finding of `orch doctor` about the same fault, seen before a run; empty where there is none."""
    evidence: tuple[str, ...] = ()
    """The lines by which it was recognised."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`, the innermost in the user's own code."""

    @classmethod
    def of(cls, found: Classified, *, job: ClusterJob | None, node: str, rank: str, run: str, again: str = "") -> Cause:
        """The cause of this failure, with the steps for a cluster where the run is a job. `again`: how the run
        continues once the cause is away (default: from its last checkpoint)."""
        values = {"node": node, "rank": rank, "run": run, **found.values}
        if "module" in values:
            values["package"] = package_of(values["module"])
        cause = causes_of(found.signature.area, on_cluster=job is not None)[found.id]
        # Values are of nodes and of their output: in a command to paste, each is one word.
        words = {name: shlex.quote(value) for name, value in values.items()}
        words |= {**found.commands, **_words_of(job, node), "again": again or RESUME.format(run=words["run"])}
        filled = cause.filled(_Found(values), _Found(words))
        return replace(filled, owner=found.owner, evidence=found.evidence, frame=found.frame)

    def filled(self, values: Mapping[str, str], words: Mapping[str, str]) -> Cause:
        """The cause with these values in its explanation, and these in its steps."""
        steps = tuple(step.format_map(words) for step in self.fix)
        return replace(self, explanation=self.explanation.format_map(values), fix=steps)


def _words_of(job: ClusterJob | None, node: str) -> dict[str, str]:
    """Values for the steps on a cluster."""
    if job is None:
        return {}
    return {"cluster": shlex.quote(job.cluster), "on": job.on, "test": job.test, "without": job.without(node)}


class _Found(dict[str, str]):
    """Values for placeholders; a group that the pattern did not find is shown as a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"


class _Names(dict[str, str]):
    """Each placeholder by its name: `{node}` as NODE, and options of a cluster with such names."""

    def __init__(self) -> None:
        super().__init__(_words_of(ClusterJob(cluster="CLUSTER", nodes=2), "NODE"), again=RESUME.format(run="RUN"))

    def __missing__(self, name: str) -> str:
        return name.upper()


def explained(id: str) -> tuple[Cause, tuple[str, ...], str] | None:
    """The cause with this id, names in place of values; its steps on a cluster where those are others; the text of its
    area. None where no cause is called so."""
    area = id.partition(".")[0]
    if area not in cause_areas() or id not in causes_of(area):
        return None
    names = _Names()
    cause, there = (causes_of(area, on_cluster=way)[id].filled(names, names) for way in (False, True))
    return cause, there.fix if there.fix != cause.fix else (), introduction_of("causes", area).replace("\n", " ")


def cause_areas() -> tuple[str, ...]:
    """Areas of causes: a page each."""
    return areas_of("causes")


@cache
def causes_of(area: str, *, on_cluster: bool = False) -> Mapping[str, Cause]:
    """Return the causes of an area by id, as on its page. `on_cluster`: with the steps for a cluster."""
    causes = {}
    for id, entry in entries_of("causes", area).items():
        texts = entry.values
        there = texts.pop("on_cluster", texts["fix"])
        causes[id] = Cause(id=id, title=entry.title, **{**texts, "fix": tuple(there if on_cluster else texts["fix"])})
    return causes
