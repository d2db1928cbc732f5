from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.hostlist import HostlistError, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("alpha", "alpha"),
        ("alpha, beta", "alpha beta"),
        ("node[01-03,07]", "node01 node02 node03 node07"),
        ("node[9-11],gpu[1, 3]x", "node9 node10 node11 gpu1x gpu3x"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
    ],
)
def test_names_come_in_the_order_written(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no list of names"),
        ("a,,b", "is no list of names"),
        ("a b", "is no list of names"),
        ("node[1-2", "is no list of names"),
        ("node1]", "is no list of names"),
        ("node[]", "is neither a number nor a range"),
        ("node[a-b]", "is neither a number nor a range"),
        ("node[5-1]", "runs backwards"),
        ("node[1-999999999]", "more than 1024 names"),
        ("a[1-99]b[1-99]c[1-99]d[1-99]", "more than 1024 names"),
    ],
)
def test_what_is_no_hostlist_says_why(text: str, why: str) -> None:
    with pytest.raises(HostlistError, match=why):
        expand(text)


@given(st.text(alphabet="a01,-[] "))
def test_any_text_gives_few_names_or_an_error(text: str) -> None:
    try:
        names = expand(text)
    except HostlistError:
        return
    assert 0 < len(names) <= 1024
    assert not any(set(name) & set("[], ") for name in names)
