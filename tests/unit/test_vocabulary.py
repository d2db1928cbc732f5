"""The plain words of the project: idioms that stop a technical reader stay out of code and documents."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
CODE = sorted(
    path
    for name in ("contract", "orch_hooks", "orchestrator", "trainer", "benchmarks", "scripts", "tests")
    for path in ROOT.glob(f"{name}/**/*.py")
    if path != Path(__file__)  # it has the words themselves
)
DOCUMENTS = sorted(
    path for pattern in ("*.md", ".github/**/*.md", "docs/**/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern)
)

SAY = {
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again, from the beginning",
    r"go(es|ing)? on|went on|gone on": "continue, resume",
    r"hang(s|ing)? on": "depend on",
    r"for want of": "without, out of",
    r"is no number|whose is no number": "is NaN or infinite",
    r"whose matter": "owner",
    r"in peace": "undisturbed, clean",
    r"taken in|take in again": "added back",
    r"in the same company": "with the same nodes",
    r"nobody": "no one, nothing; name the subject",
    r"[;,] else (\d+|none|all)": "(default: …)",
    r"(is|are|was|were|be) told": "reported, printed, passed",
    r"reckon(s|ed|ing)?": "compute, predict",
    r"without a word": "silently, without an error",
    r"of like length": "of similar length",
    r"as it comes": "by default; as a stream",
    r"stands? still|stood still": "pause, hang",
    r"last words": "last lines",
    r"to and fro": "in both directions",
    r"in earnest|of its own accord|twice over|odds and ends": "the plain word",
    r"synchronis(e|es|ed|ing|ation)|optimis(e|es|ed|ing|ations?)|learnt": "American spelling",
    r"roll call|council|in the house|rooms? of the house": "the field's term",
}
"""An idiom as a pattern of whole words, and plain words for it."""
BANNED = re.compile(r"\b(?:" + "|".join(f"(?:{idiom})" for idiom in SAY) + r")\b", re.IGNORECASE)
OPENINGS = re.compile(
    r"\s*(?:What|Whatever|Who|Whoever|Whom|Whose|Which|How|However|Why|Whether|If|When|Where|While|Since|Until|Because"
    r"|It|They|There|Somebody|Nobody|Is|Has|Does|Can|Could|Are|Was|Were|Not|Nor|And|But|Or|Also|Only|Then|Otherwise|Else"
    r"|About|Above|After|Against|Among|Around|As|At|Before|Behind|Below|Beside|Between|By|For|From|In|Into|Of|On|Over"
    r"|Per|That|Through|To|Under|Up|With|Within|Without)\b"
)
"""Words with which a docstring neither names nor commands anything."""
ODD_NAMES = re.compile(r"(?:^|_)(?:kept|said|told|heard|lacks?|lacking|mend(?:s|ed|ing)?|anew|nobody)(?=_|$)")
"""Words in identifiers for which the field has others: saved, printed, reported, received, missing, repair."""
EXCHANGED = {"lacking", "heard", "LinesNotKept"}
"""Keys of JSON output, and an event of the public Python API."""


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of comments and of string literals, with their numbers."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def idioms(lines: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{number}: {found[0]}" for number, line in lines for found in BANNED.finditer(line)]


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Names that a module defines or assigns, with their lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case (
                ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name)
                | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.MatchAs(name=str(name))
            ):  # fmt: skip
                yield node.lineno, name


def is_odd(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return bool(ODD_NAMES.search(words) or BANNED.search(words.replace("_", " ")))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and the strings under fields."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


@pytest.mark.parametrize(
    "text", ["It goes on", "for want of memory", "nobody answers", "a loss that is no number", "It stood still"]
)
def test_an_idiom_is_recognized(text: str) -> None:
    assert BANNED.search(text)


@pytest.mark.parametrize("text", ["It continues", "recommended", "a number of goons", "optimistic", "an optimizer"])
def test_plain_words_pass(text: str) -> None:
    assert not BANNED.search(text)


def test_odd_names_are_recognized() -> None:
    assert all(map(is_odd, ("what_lacks", "_told", "LinesNotKept", "test_the_run_goes_on", "test_nobody_comes")))
    assert not any(map(is_odd, ("missing", "black_list", "test_a_goes_one", "commended", "untold")))


def test_the_code_speaks_plainly() -> None:
    found = {str(path.relative_to(ROOT)): those for path in CODE if (those := idioms(prose(path)))}
    assert found == {}, f"say: {SAY}"


def test_the_documents_speak_plainly() -> None:
    """Words in backticks are names, old ones among them."""
    found = {
        str(path.relative_to(ROOT)): those
        for path in DOCUMENTS
        if (those := idioms(enumerate(re.sub(r"`[^`\n]*`", "", path.read_text("utf-8")).splitlines(), 1)))
    }
    assert found == {}, f"say: {SAY}"


def test_docstrings_stand_alone() -> None:
    found = {
        str(path.relative_to(ROOT)): those
        for path in CODE
        if (those := [f"{number}: {text[:60]}" for number, text in docstrings(path) if OPENINGS.match(text)])
    }
    assert found == {}, "begin with an imperative or a noun phrase"


def test_names_are_words_of_the_field() -> None:
    found = {
        str(path.relative_to(ROOT)): those
        for path in CODE
        if (those := [f"{line}: {name}" for line, name in names(path) if name not in EXCHANGED and is_odd(name)])
    }
    assert found == {}, "say saved, printed, reported, received, missing or repair"
