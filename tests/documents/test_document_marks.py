"""Command lines of README, guides and findings: those that cannot run on a lab of processes have a listed reason."""

from __future__ import annotations

import pytest

from tests.documents.lines import DOCUMENTS, hidden_commands, lines_in, lines_of

pytestmark = pytest.mark.source


def test_marks_have_a_listed_reason_and_lines() -> None:
    """`lines_of` refuses any other."""
    lines = [line for path in DOCUMENTS for line in lines_of(path)]
    assert len([line for line in lines if line.reason]) > 200
    assert len([line for line in lines if not line.reason]) > 300


def test_no_command_is_hidden_in_a_block_of_no_language() -> None:
    assert [f"{path.name}: {line}" for path in DOCUMENTS for line in hidden_commands(path)] == []


def test_no_line_is_marked_in_one_document_alone() -> None:
    lines = [line for path in DOCUMENTS for line in lines_of(path)]
    unmarked = {line.command for line in lines if not line.reason}
    assert [line for line in lines if line.reason and line.command in unmarked] == []


@pytest.mark.parametrize("mark", ["needs luck", "needs Docker: orch build", "needs Docker: ls; needs luck: ls"])
def test_other_reasons_and_marks_of_no_line_are_refused(mark: str) -> None:
    with pytest.raises(ValueError, match=r"none\.md: (no listed reason|marked, and not a line)"):
        lines_in("none.md", f"<!-- not run here: {mark} -->\n```sh\nls\n```\n")
