"""`orch doctor`: every node is examined, no node hides another, and what can be fixed is fixed once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Event

import pytest
from rich.console import Console

from orchestrator.checks.doctor import AREAS, areas_of, diagnose
from orchestrator.cli.consent import writing_by
from orchestrator.fleet.readiness.doctor import (
    NEEDED,
    WAVES,
    WAYS,
    Examination,
    ProbeTarget,
    Stage,
    apply_fix,
    examine,
    fixable,
    needs_sudo,
)
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.sudo import CHECK, SUDO
from orchestrator.render.progress import ExaminingView
from orchestrator.specs.errors import (
    CommandFailedError,
    EngineError,
    EngineRefusedError,
    NodeUnreachableError,
    OrchError,
)
from orchestrator.specs.facts import EngineFacts
from orchestrator.specs.finding import Finding, Fix, Severity
from orchestrator.specs.reach import Reach
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, Ran


def look(here: lan.Lan, **changes: object) -> Examination:
    return examine(list(here.nodes.values()), lan.request(tuple(here.nodes)), suffix="s", **changes)  # type: ignore[arg-type]  # examine's own


def ids(seen: Examination) -> list[str]:
    return [finding.id for found in diagnose(seen.nodes).values() for finding in found]


def unreachable(reach: Reach, name: str = "beta") -> FakeNode:
    """A machine that refuses the connection so."""
    error = NodeUnreachableError("no way", reach=reach, hint="look there", node=name)
    return FakeNode(name, address=lan.address_of(name), answers={("true",): error})


def test_a_fleet_in_health(orch: Orch) -> None:
    ran = orch("doctor", on=lan.lan(*THREE))
    assert ran.code == 0
    assert [line.split()[1] for line in ran.out.splitlines() if line.startswith("✓")] == list(AREAS)
    assert ran.out.splitlines()[-1].startswith("3 nodes checked in ")
    assert ran.out.rstrip().endswith("no problems found")
    assert ran.err == "checking 3 nodes\n"


def test_nothing_is_left_on_the_nodes() -> None:
    here = lan.lan(*THREE)
    look(here)
    assert here.containers == {}
    probes = [call for call in here.nodes["beta"].engine.calls if call[0] == "run_once"]
    assert len(probes) == 1


def test_one_unreachable_node_hides_nothing_of_the_others(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = unreachable(Reach.KEY_CHANGED)
    here.nodes["gamma"].engine.held.clear()
    ran = orch("doctor", on=here)
    assert ran.code == 4
    assert "beta: no way  [reach.key_changed]" in ran.out
    assert "fix:   look there" in ran.out
    assert "gamma: the image of this project is missing" in ran.out
    assert "more:  orch explain image.missing" in ran.out
    assert ran.out.rstrip().endswith("2 errors")


@pytest.mark.parametrize("reach", Reach)
def test_every_way_not_to_reach_a_node_is_a_finding_of_its_own(reach: Reach) -> None:
    here = lan.lan("alpha")
    here.nodes["beta"] = unreachable(reach)
    assert [id for id in ids(look(here)) if id.startswith("reach.")] == [
        "reach.failed" if reach is Reach.OTHER else f"reach.{reach.name.lower()}"
    ]


@dataclass
class Hanging(lan.Actor):
    """An engine that takes a question and never answers."""

    over: Event = field(default_factory=Event)

    def facts(self) -> EngineFacts:
        self.over.wait(60)
        return super().facts()


def test_an_engine_that_answers_with_an_error_runs() -> None:
    here = lan.lan(*THREE)
    why = "the engine would not inspect container 2988b0da62b1: stat overlay2/4d3d: no such file"
    here.nodes["beta"].engine.failures["containers"] = EngineRefusedError(why, node="beta")
    (found,) = (found for area in diagnose(look(here).nodes).values() for found in area)
    assert (found.id, found.node, found.message) == ("engine.silent", "beta", f"Docker does not serve: {why}")


@pytest.mark.parametrize(
    ("error", "asked"),
    [(EngineError("no answer"), 2), (CommandFailedError("no output"), 2), (EngineRefusedError("no"), 1)],
)
def test_an_answer_that_is_lost_is_asked_for_once_more(error: OrchError, asked: int) -> None:
    tries = []

    def lose_the_first(target: ProbeTarget) -> dict[str, object]:
        tries.append(target.name)
        if tries.count(target.name) == 1:
            raise error
        return {}

    seen = look(lan.lan("alpha"), waves=[[Stage(name="engine", ask=lose_the_first, deadline_s=5)]])
    assert len(tries) == asked
    assert bool(seen.nodes[0].engine_error) == (asked == 1)


def test_an_engine_that_hangs_delays_no_other_for_longer_than_its_deadline() -> None:
    here = lan.lan(*THREE)
    engine = here.nodes["beta"].engine = Hanging("beta")
    steps: list[tuple[str, str, str]] = []
    short = [[replace(stage, deadline_s=0.3) if stage.name == "engine" else stage for stage in wave] for wave in WAVES]
    seen = look(here, waves=short, on_step=lambda *step: steps.append(step))
    within = [*steps]
    engine.over.set()  # its late answer is a step too
    assert ids(seen) == ["engine.silent"]
    assert {path.peer for path in seen.nodes[1].paths} == {"alpha", "gamma"}
    assert ("beta", "engine", "asked") in within
    assert ("beta", "engine", "done") not in within
    assert ("gamma", "gpu", "done") in steps
    assert seen.nodes[1].host is not None


def lines_of(ran: Ran) -> dict[str, str]:
    """The line of each area, by its name."""
    lines = (line for line in ran.out.splitlines() if line[:1] in ("✓", "–", "✗", "!", "·"))
    return {line.split()[1]: line for line in lines}


@pytest.mark.parametrize("area", [area for area in AREAS if area != "reach"])
@pytest.mark.parametrize("off", [THREE, ("beta",)], ids=["all", "one"])
@pytest.mark.parametrize("alone", [False, True], ids=["whole", "only"])
def test_a_node_that_was_not_examined_is_never_in_health(
    orch: Orch, area: str, off: tuple[str, ...], alone: bool
) -> None:
    here = lan.lan(*THREE)
    for name in off:
        here.nodes[name] = unreachable(Reach.NO_ANSWER, name)
    words = ("--only", area) if alone else ()
    ran, data = orch("doctor", *words, on=here), json_data(orch("doctor", "--json", *words, on=here).out)
    lines = lines_of(ran)
    assert lines[area].startswith("–" if "error" not in lines[area] else "✗")
    assert lines[area].endswith(f"not checked: {', '.join(off)} out of reach")
    assert lines["reach"].startswith("✗")
    assert set(lines) == ({"reach", area} if alone else set(AREAS))
    assert f"{3 - len(off)} of 3 nodes checked" in ran.out
    assert "no problems found" not in ran.out
    assert (ran.code, data["unfit"], data["not_checked"][area]) == (4, True, dict.fromkeys(off, "out of reach"))


@pytest.mark.parametrize("off", [THREE, ("beta",)], ids=["all", "one"])
def test_one_finding_alone_says_who_was_not_looked_at(orch: Orch, off: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    for name in off:
        here.nodes[name] = unreachable(Reach.NO_ANSWER, name)
    ran = orch("doctor", "--only", "clock.skew", on=here)
    assert ran.code == 4
    assert f"{', '.join(off)}: no way  [reach.no_answer]" in ran.out
    assert "no problems found" not in ran.out
    data = json_data(orch("doctor", "--only", "clock.skew", "--json", on=here).out)
    assert (data["unfit"], set(data["not_checked"])) == (True, set(AREAS) - {"reach"})


def test_an_area_that_rests_on_a_silent_part_is_not_in_health(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].engine.failures["facts"] = EngineError("no answer", node="beta")
    ran = orch("doctor", "--only", "consistency", on=here)
    assert ran.code == 4
    assert lines_of(ran)["consistency"].startswith("–")
    assert lines_of(ran)["consistency"].endswith("not checked: beta no answer about its engine")
    assert ran.out.rstrip().endswith("not everything could be checked (consistency)")


def test_a_failure_on_the_way_is_reported_not_ignored() -> None:
    here = lan.lan("alpha", programs=lambda container: (1, "", "python3: not found\n"))
    seen = look(here)
    (found,) = diagnose(seen.nodes)["reach"]
    assert (found.id, found.severity) == ("doctor.not_asked", Severity.WARNING)
    assert "python3: not found" in found.message


def test_ways_that_could_not_be_tried_without_the_image_are_no_second_finding() -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].engine.held.clear()
    here.nodes["beta"].answers[("python3", "*")] = (127, "", "command not found")
    seen = look(here)
    assert ids(seen) == ["image.missing"]
    assert {path.peer for path in seen.nodes[0].paths} == {"gamma"}


def test_only_what_is_needed_is_asked(orch: Orch) -> None:
    here = lan.lan("alpha", "beta", "gamma")
    ran = orch("doctor", "--only", "power", "--nodes", "alpha", "--json", on=here)
    report = json_data(ran.out)
    assert set(report["stage_seconds"]) == NEEDED["power"]
    assert [node["spec"]["name"] for node in report["nodes"]] == ["alpha"]
    assert here.nodes["alpha"].engine.calls == []
    assert here.nodes["beta"].calls == [] or here.nodes["beta"].calls == [("close",)]


def test_only_one_finding(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].engine.held.clear()
    assert orch("doctor", "--only", "clock.skew", on=here).code == 0
    ran = orch("doctor", "--only", "clock,image.missing", "--json", on=here)
    assert [(one["area"], one["id"], one["node"]) for one in json_data(ran.out)["findings"]] == [
        ("consistency", "image.missing", "beta")
    ]
    assert (ran.code, json_data(ran.out)["unfit"]) == (4, True)


def test_an_unknown_word(orch: Orch) -> None:
    ran = orch("doctor", "--only", "clock.skw", on=lan.lan(*THREE))
    assert ran.code == 2
    assert "did you mean clock.skew" in ran.err


def test_an_id_needs_all_areas_as_it_does_not_tell_its_own() -> None:
    assert areas_of(("network", "power")) == {"network", "power"}
    assert areas_of(("clock.skew",)) == areas_of(()) == set(AREAS)
    assert set(NEEDED) == set(AREAS)
    assert frozenset().union(*NEEDED.values()) == {WAYS, *(stage.name for wave in WAVES for stage in wave)}


def asleep(name: str) -> FakeNode:
    """A machine whose Docker was not started: the command that starts it does."""
    node = lan.lan(name).nodes[name]
    node.engine.failures["facts"] = EngineError("no answer", node=name)

    def start(argv: Sequence[str], _stdin: bytes, _timeout_s: float) -> Answer:
        if argv[0] != "sudo":
            return lan.on_the_host(argv)
        if argv[-1] == "true":  # a user whose sudo asks for no password
            return 0, "", ""
        assert tuple(argv) == ("sudo", "-n", "systemctl", "start", "docker")
        node.engine.failures.clear()
        return 0, "", ""

    node.programs = start
    return node


def test_fix_repairs_and_looks_again(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = asleep("beta")
    ran = orch("doctor", "--fix", "--yes", on=here)
    assert ran.code == 0
    assert "start Docker on beta: sudo -n systemctl start docker" in ran.err
    assert "1 fixed; checking again" in ran.err
    assert ran.out.rstrip().endswith("no problems found")


def test_without_fix_nothing_is_changed(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = asleep("beta")
    assert orch("doctor", on=here).code == 4
    assert not any(call[0] == "sudo" for call in here.nodes["beta"].calls)


def test_no_terminal_to_ask(orch: Orch) -> None:
    ran = orch("doctor", "--fix", on=lan.lan(*THREE), says=None)
    assert ran.code == 2
    assert "--yes" in ran.err


def test_the_sudo_password_is_asked_for_once_by_the_first_fix_that_needs_it(orch: Orch) -> None:
    here = lan.lan(*THREE)
    for name in ("alpha", "beta"):
        here.nodes[name].engine.failures["facts"] = EngineError("no answer", node=name)
        here.nodes[name].answers[("sudo", "-n", "*")] = (1, "", "sudo: a password is required\n")
        here.nodes[name].answers[("sh", "-c", CHECK)] = (0, "", "")
        here.nodes[name].answers[(*SUDO, "*")] = (0, "", "")
    questions: list[str] = []

    def person(question: str) -> str:
        questions.append(question)
        return "right"

    with writing_by(person):
        ran = orch("doctor", "--fix", "--yes", on=here)
    assert questions == ["sudo password for 2 machines (alpha, beta)"]
    assert "2 fixed; checking again" in ran.err
    for name in ("alpha", "beta"):
        assert any(call[-1] == "docker" and call[: len(SUDO)] == SUDO for call in here.nodes[name].calls)


def test_a_fix_that_fails_is_reported_with_the_line_to_paste(orch: Orch) -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].engine.failures["facts"] = EngineError("no answer", node="beta")
    here.nodes["beta"].answers[("sudo", "-n", "*")] = (1, "", "sudo: a password is required\n")
    ran = orch("doctor", "--fix", "--yes", on=here, says=None)
    assert ran.code == 4
    assert "a password is required" in ran.err
    assert "sudo systemctl enable --now docker" in ran.err
    assert "fixed" not in ran.err


DEED = Fix(what="start it", on_node=("sudo", "-n", "service", "docker", "start"))
START = Finding(
    id="engine.not_running",
    severity=Severity.ERROR,
    node="alpha",
    message="it does not run",
    auto_fix=DEED,
)


def test_root_needs_no_sudo() -> None:
    here = lan.lan("alpha")
    node = here.nodes["alpha"]
    node.answers[("sh", "-c", "*")] = (0, "", "")
    (seen,) = look(here).nodes
    assert seen.facts is not None
    node.answers[("service", "docker", "start")] = (0, "", "")
    root = replace(seen, facts=replace(seen.facts, uid=0))
    apply_fix(START, DEED, here.nodes, {"alpha": root})
    assert node.calls[-1] == ("service", "docker", "start")
    assert not needs_sudo(START, DEED, {"alpha": root})
    node.answers[("sudo", "*")] = (1, "", "no")
    with pytest.raises(CommandFailedError):
        apply_fix(START, DEED, here.nodes, {"alpha": seen})


def test_the_same_deed_is_done_once() -> None:
    building = Fix(what="build", orch=("build", "--yes"))
    build = replace(START, id="image.missing", auto_fix=building)
    other = replace(START, node="beta")
    found = [build, START, replace(build, node="beta"), other, replace(START, auto_fix=None)]
    assert fixable(found) == ((build, building), (START, DEED), (other, DEED))


def test_on_a_terminal_it_is_shown_what_is_asked_of_whom() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with ExaminingView(["alpha", "beta"], console=screen) as view:
        look(lan.lan("alpha", "beta"), on_step=view.step)
        view.step("beta", "gpu", "failed")
        lines = view.text().plain.splitlines()
    stages = ("reach", "engine", "host", "container", "gpu", WAYS, "network")
    assert [word for word in lines[0].split() if word.isalpha()] == ["alpha", *sorted(stages, key=lines[0].index)]
    assert set(stages) < set(lines[0].split())
    assert lines[0].count("✓") == len(stages)
    assert "✗ gpu" in lines[1]
    assert "alpha" in screen.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_an_image_missing_on_several_nodes_is_one_finding(orch: Orch) -> None:
    here = lan.lan(*THREE)
    for name in ("alpha", "gamma"):
        here.nodes[name].engine.held.clear()
    ran = orch("doctor", on=here)
    assert (ran.out + ran.err).count("alpha, gamma: the image of this project is missing") == 1
