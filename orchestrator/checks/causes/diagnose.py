"""A classified failure in words: what it means, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from contract.failures.classify import Classified
from orchestrator.checks.causes.catalogue import ADVICE
from orchestrator.checks.causes.rule import Cause


def in_words(found: Classified, known: Mapping[str, str]) -> Cause:
    """`known` (node, rank, run) and what the pattern found are put into the text."""
    advice = ADVICE[found.id]
    values = _Known({**known, **found.values})
    return Cause(
        id=found.id,
        kind=found.owner,
        what=advice.what.format_map(values),
        todo=tuple(line.format_map(values) for line in advice.todo),
        evidence=found.evidence,
        frame=found.frame,
        launch_again=advice.launch_again,
        page=advice.page,
    )


class _Known(dict[str, str]):
    """Values for the placeholders of a text; a group that the pattern did not find is shown as a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"
