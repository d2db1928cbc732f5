"""`--fetch-once` and `--offline` on the command line: what is refused, and what the ranks get."""

from __future__ import annotations

import pytest

from orchestrator.specs.launch_options import OFFLINE
from tests import lan
from tests.unit.conftest import THREE, Orch

WORDS = ("launch", "-y", "--dry-run")
SCRIPT = ("--mount", "/srv/books:/workspace/Data", "--", "gpt2")


@pytest.mark.parametrize("option", [("--offline",), ("--fetch-once", "hf:ana/tiny")])
def test_the_ranks_do_not_ask_the_server(orch: Orch, option: tuple[str, ...]) -> None:
    ran = orch(*WORDS, *option, *SCRIPT, on=lan.lan(*THREE))
    assert ran.code == 0
    for name in OFFLINE:
        assert ran.out.count(f"--env {name}=1") == len(THREE)
    assert ("--fetch-once implies --offline" in ran.err) == (option[0] == "--fetch-once")
    assert ("hf:ana/tiny: before the start" in ran.out) == (option[0] == "--fetch-once")


def test_a_variable_of_the_user_wins(orch: Orch) -> None:
    ran = orch(*WORDS, "--fetch-once", "hf:ana/tiny", "--env", "HF_HUB_OFFLINE=0", *SCRIPT, on=lan.lan(*THREE))
    assert "--env HF_HUB_OFFLINE=0" in ran.out
    assert "--env HF_HUB_OFFLINE=1" not in ran.out


def test_otherwise_nothing_is_printed_about_the_server(orch: Orch) -> None:
    assert "OFFLINE" not in orch(*WORDS, *SCRIPT, on=lan.lan(*THREE)).out


@pytest.mark.parametrize("source", ["ana/tiny", "http://example.org/net.pth", "https://a:b@example.org/net.pth"])
def test_a_source_that_cannot_be_is_refused_before_a_node_is_asked(orch: Orch, source: str) -> None:
    ran = orch(*WORDS, "--fetch-once", source, *SCRIPT, on=lan.Lan())
    assert ran.code == 2
    assert f"--fetch-once {source}: " in ran.err
