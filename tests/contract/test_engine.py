"""Contract of every `Engine`: docker here, docker over ssh, processes, and the fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from orchestrator.nodes.interface import Engine
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConflictError, DeadlineError, EngineError
from orchestrator.specs.run import State
from tests.contract.base_image import IMAGE, LABEL

SLEEPING = "trap 'echo bye; exit 7' TERM; echo asleep; sleep 200 & wait"
STUBBORN = "trap '' TERM; echo asleep; sleep 200; sleep 200"

Make = Callable[..., str]


@pytest.fixture
def make(engine: Engine) -> Iterator[Make]:
    """Create containers that are gone after the test."""
    made: list[str] = []

    def create(script: str, **other: object) -> str:
        made.append(engine.create(spec(script, **other)))
        return made[-1]

    yield create
    for container in made:
        engine.remove(container)


def spec(script: str, *words: str, **other: object) -> ContainerSpec:
    fields: dict[str, object] = {
        "name": "orch-contract",
        "image": IMAGE,
        "command": ("sh", "-c", script, "sh", *words),
        "environment": {},
        "labels": {LABEL: "1"},
        "working_dir": "/",
        "network": "none",
        "memory_mib": 64,
        "memory_reservation_mib": 32,
    }
    return ContainerSpec(**{**fields, **other})  # type: ignore[arg-type]  # each of its own type, above


def started(engine: Engine, container: str) -> str:
    """Started, and its first line written."""
    engine.start(container)
    assert next(iter(engine.logs(container, follow=True))).text == "asleep"
    return container


def texts(engine: Engine, container: str, **options: object) -> list[str]:
    return [line.text for line in engine.logs(container, **options)]  # type: ignore[arg-type]  # as above


def test_it_knows_itself(engine: Engine) -> None:
    facts = engine.facts()
    assert facts.kind in ("docker", "process")
    assert facts.id
    assert facts.architecture


def test_an_image_that_is_not_there_is_none(engine: Engine) -> None:
    assert engine.image("orch-contract:nowhere") is None


def test_a_container_lives_from_created_to_removed(engine: Engine, make: Make) -> None:
    container = make("echo ready; exit 3")
    created = engine.container(container)
    assert created is not None
    assert (created.state, created.name, created.exit_code) == (State.CREATED, "orch-contract", None)
    engine.start(container)
    ended = engine.wait(container)
    assert (ended.state, ended.exit_code, ended.id) == (State.FAILED, 3, container)
    assert ended.started_at[:2] == ended.finished_at[:2] == "20"
    assert texts(engine, container) == ["ready"]
    engine.remove(container)
    assert engine.container(container) is None


def test_it_is_found_by_its_id_and_by_its_name(engine: Engine, make: Make) -> None:
    container = make("true")
    by_name = engine.container("orch-contract")
    assert by_name is not None
    assert by_name.id == container


def test_the_command_gets_these_very_words(engine: Engine) -> None:
    words = ("two words", "'\"", "a;b", "$(id)", "first\nsecond", "", "ñ ✓", "-n")
    done = engine.run_once(spec('for word in "$@"; do printf "%s|" "$word"; done', *words))
    assert done.stdout == "".join(f"{word}|" for word in words)


def test_a_name_is_given_once(engine: Engine, make: Make) -> None:
    container = make("true")
    with pytest.raises(ConflictError) as raised:
        make("true")
    assert raised.value.node == "alpha"
    engine.rename_and_keep(container, "orch-contract-ended")
    other = make("true")
    assert {facts.name: facts.id for facts in engine.containers({LABEL: "1"})} == {
        "orch-contract-ended": container,
        "orch-contract": other,
    }


def test_a_taken_name_cannot_be_taken_by_renaming(engine: Engine, make: Make) -> None:
    make("true")
    other = make("true", name="orch-contract-2")
    with pytest.raises(ConflictError):
        engine.rename_and_keep(other, "orch-contract")


def test_containers_are_found_by_all_their_labels(engine: Engine, make: Make) -> None:
    one = make("true", labels={LABEL: "1", "orch-contract.colour": "red; $(id)"})
    two = make("true", name="orch-contract-2", labels={LABEL: "1"})
    assert {facts.id for facts in engine.containers({LABEL: ""})} == {one, two}
    assert [facts.id for facts in engine.containers({LABEL: "1", "orch-contract.colour": ""})] == [one]
    found = engine.containers({"orch-contract.colour": "red; $(id)"})
    assert [facts.labels["orch-contract.colour"] for facts in found] == ["red; $(id)"]
    assert engine.containers({LABEL: "2"}) == []


def test_lines_come_with_times_that_sort(engine: Engine, make: Make) -> None:
    container = make("for n in 1 2 3 4 5; do echo line $n; done; printf 'last without an end'")
    engine.start(container)
    engine.wait(container)
    lines = list(engine.logs(container))
    assert [line.text for line in lines] == [*(f"line {n}" for n in range(1, 6)), "last without an end"]
    assert len({line.time for line in lines}) == 6
    assert sorted(line.time for line in lines) == [line.time for line in lines]
    assert texts(engine, container, since=lines[2].time) == [line.text for line in lines[3:]]
    assert texts(engine, container, since=lines[-1].time) == []
    assert texts(engine, container, tail=2) == ["line 5", "last without an end"]
    assert texts(engine, container, tail=0) == []
    assert texts(engine, container, tail=99) == [line.text for line in lines]


def test_a_long_line_stays_one_line(engine: Engine, make: Make) -> None:
    container = make("yes 0123456789abcde | tr -d '\\n' | head -c 100000; echo end; echo next")
    engine.start(container)
    engine.wait(container)
    long, following = texts(engine, container)
    assert long == ("0123456789abcde" * 6667)[:100000] + "end"
    assert following == "next"


def test_stdout_and_stderr_are_both_logged(engine: Engine, make: Make) -> None:
    container = make("echo out; echo err >&2")
    engine.start(container)
    engine.wait(container)
    assert sorted(texts(engine, container)) == ["err", "out"]


def test_following_ends_with_the_container(engine: Engine, make: Make) -> None:
    container = make("echo one; sleep 0.3; echo two; exit 1")
    engine.start(container)
    assert texts(engine, container, follow=True) == ["one", "two"]
    assert engine.wait(container).exit_code == 1
    assert texts(engine, container, follow=True) == ["one", "two"]


def test_a_stop_lets_it_end_by_itself(engine: Engine, make: Make) -> None:
    container = started(engine, make(SLEEPING))
    engine.stop(container, 3600)  # a stop that waited so long would not end within the test's time
    ended = engine.container(container)
    assert ended is not None
    assert ended.state in (State.SUCCEEDED, State.FAILED)
    engine.stop(container, 30)  # once more is no error


def test_a_stop_ends_what_does_not_listen(engine: Engine, make: Make) -> None:
    container = started(engine, make(STUBBORN))
    engine.stop(container, 1)
    assert engine.wait(container).state is not State.RUNNING


def test_what_is_gone_can_be_stopped_and_removed_again(engine: Engine, make: Make) -> None:
    container = make("true")
    engine.remove(container)
    engine.remove(container)
    engine.stop(container, 1)


def test_a_running_container_can_be_removed(engine: Engine, make: Make) -> None:
    container = started(engine, make(SLEEPING))
    engine.remove(container)
    assert engine.container(container) is None
    assert engine.containers({LABEL: ""}) == []


def test_a_signal_reaches_it(engine: Engine, make: Make) -> None:
    container = started(engine, make(SLEEPING))
    engine.signal(container, "SIGKILL")
    assert engine.wait(container).exit_code == 137
    with pytest.raises(ConflictError):
        engine.signal(container, "SIGTERM")


def test_a_command_runs_inside_it(engine: Engine, make: Make) -> None:
    container = started(engine, make(SLEEPING))
    done = engine.execute(container, ["sh", "-c", 'echo "$1"; echo err >&2; exit 4', "sh", "a; $(id)"])
    assert (done.exit_code, done.stdout, done.stderr, done.node) == (4, "a; $(id)\n", "err\n", "alpha")


def test_a_short_command_leaves_nothing(engine: Engine) -> None:
    done = engine.run_once(spec("printf out; printf err >&2; exit 5"))
    assert (done.exit_code, done.stdout, done.stderr, done.node) == (5, "out", "err", "alpha")
    assert engine.containers({LABEL: ""}) == []


def test_a_short_command_that_does_not_end_is_given_up(engine: Engine) -> None:
    with pytest.raises(DeadlineError, match="sh had not ended"):
        engine.run_once(spec("sleep 200"), timeout_s=1)
    assert engine.containers({LABEL: ""}) == []


def test_what_is_unknown_is_an_error_with_its_node(engine: Engine) -> None:
    for ask in (
        lambda: engine.start("no-such-container"),
        lambda: engine.rename_and_keep("no-such-container", "x"),
        lambda: engine.disable_restart("no-such-container"),
        lambda: list(islice(engine.logs("no-such-container"), 1)),
        lambda: list(engine.save("orch-contract:nowhere")),
    ):
        with pytest.raises(EngineError) as raised:
            ask()
        assert raised.value.node == "alpha"


def test_one_that_is_removed_frees_who_waits(engine: Engine, make: Make) -> None:
    container = make("true")
    engine.remove(container)
    with pytest.raises(EngineError):
        engine.wait(container)
