"""`orch metrics`: Prometheus' text format, bounded and escaped, once or served on loopback."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest

from contract.event_lines import encode_event
from contract.events import StepDone
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.cli.metrics import server
from orchestrator.render.prometheus import LABEL_CHARS, MOST_GPUS, MOST_RUNS, exposition
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.run import ContainerFacts, Member, Run
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import LineRead, NodeAnswered, RunSeen
from orchestrator.state.fleet_figures import FleetFigures
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from tests import lan
from tests.unit.conftest import THREE, Orch, detached

AT = 1767366001.0
"""2026-01-02T15:00:01Z."""
LINE = re.compile(r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (?P<value>\S+)')


def a_run(
    run_id: str = "r1", *events: StepDone, usage: ResourceUsage | None = None, status: str = "running", **changes: str
) -> RunState:
    """A run on alpha, as its container and its lines show it."""
    facts = ContainerFacts(id="c", name="orch-r1", image="i", labels={}, status=status, exit_code=0)
    member = Member(node="alpha", node_rank=0, state=facts.state, container=facts)
    values = {"project": "orch", "user": "ana", "master": "alpha", **changes}
    run = Run(run_id=run_id, attempt=0, started_at=lan.moment(0), nnodes=1, command="gpt2", members=(member,), **values)
    state = RunState(run_id=run_id)
    apply(state, RunSeen(seen=AT, run=run))
    for number, event in enumerate(events):
        line = RunLine(time=lan.moment(number), node="alpha", node_rank=0, rank=0, text=encode_event(event))
        apply(state, LineRead(seen=AT, line=line))
    if usage:
        apply(state, NodeAnswered(seen=AT, node="alpha", usage=usage))
    return state


def used(*gpus: GpuUsage) -> ResourceUsage:
    return ResourceUsage(cpu_percent=50.0, cpus=4.0, ram_used_mib=1024, ram_limit_mib=2048, gpus=gpus)


def figures(*runs: RunState) -> FleetFigures:
    silent = {"beta": NodeUnreachableError("no answer", node="beta")}
    return FleetFigures(nodes=("alpha", "beta"), unreachable=silent, runs=runs, at=AT, seconds=0.25)


def sound(text: str) -> dict[str, float]:
    """Every series by its name and labels; each line is of the format, each series stands once, families together."""
    found: dict[str, float] = {}
    families: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            families.append(line.split()[2])
        elif not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            assert match["name"] == families[-1]
            series, _, value = line.rpartition(" ")
            assert series not in found
            found[series] = float(value)
    assert len(set(families)) == len(families)
    return found


def test_figures_of_a_run_in_base_units() -> None:
    step = StepDone(step=7, final_step=70, loss=2.5, per_s=1200.0, unit="tokens", remaining_s=60.0, t=5.0)
    gpu = GpuUsage(index=0, name="RTX", utilization_percent=40, memory_used_mib=1, temperature_c=70, power_w=None)
    found = sound(exposition(figures(a_run("r1", step, usage=used(gpu)))))
    assert found['orch_node_up{node="alpha"}'] == 1
    assert found['orch_node_up{node="beta"}'] == 0
    assert found['orch_run_step{run="r1"}'] == 7
    assert found['orch_run_remaining_seconds{run="r1"}'] == 59
    assert found['orch_run_phase{run="r1",phase="running"}'] == 1
    assert found['orch_run_condition{run="r1",code="no_record",severity="info",node=""}'] == 1
    assert found['orch_run_throughput{run="r1",unit="tokens"}'] == 1200
    assert found['orch_node_cpu_ratio{run="r1",node="alpha"}'] == 0.5
    assert found['orch_node_memory_used_bytes{run="r1",node="alpha"}'] == 2**30
    assert found['orch_gpu_utilization_ratio{run="r1",node="alpha",gpu="0",model="RTX"}'] == pytest.approx(0.4)
    assert not [name for name in found if name.startswith("orch_gpu_power")]  # the card does not report it


def test_text_of_nodes_is_escaped_and_cut() -> None:
    hostile = 'a"} 1\norch_node_up{node="\\\x1b[31m' + "x" * 500
    gpu = GpuUsage(index=0, name=hostile, temperature_c=70)
    run = a_run(project=hostile, user=hostile, master=hostile, usage=used(gpu))
    text = exposition(figures(run))
    found = sound(text)
    assert "\x1b" not in text
    assert max(map(len, re.findall(r'model="((?:[^"\\]|\\.)*)"', text))) <= 2 * LABEL_CHARS
    assert len([name for name in found if name.startswith("orch_node_up")]) == 2


def test_the_number_of_series_is_bounded() -> None:
    cards = tuple(GpuUsage(index=n, name="RTX", temperature_c=1) for n in range(5 * MOST_GPUS))
    step = StepDone(step=1, others={"x": 1.0})
    runs = [a_run(f"r{n}", step, usage=used(*cards)) for n in range(3 * MOST_RUNS)]
    found = sound(exposition(figures(*runs)))
    assert len([name for name in found if name.startswith("orch_gpu_temperature")]) == MOST_RUNS * MOST_GPUS
    assert found["orch_runs_left_out"] == 2 * MOST_RUNS
    assert found['orch_runs{state="running"}'] == 3 * MOST_RUNS


def test_ended_runs_are_only_counted() -> None:
    found = sound(exposition(figures(a_run(status="exited"))))
    assert found['orch_runs{state="succeeded"}'] == 1
    assert not [name for name in found if "run_" in name]


def test_once(orch: Orch) -> None:
    here = lan.lan(*THREE, ends_with=None)
    run = detached(orch, here)
    ran = orch("metrics", on=here)
    assert (ran.code, ran.err) == (0, "")
    assert sound(ran.out)[f'orch_run_node_running{{run="{run}",node="alpha"}}'] == 1


@pytest.mark.parametrize("place", ["0.0.0.0:9464", "192.168.1.5:1"])
def test_other_machines_only_by_an_option(orch: Orch, place: str) -> None:
    ran = orch("metrics", "--listen", place, on=lan.lan(*THREE))
    assert ran.code == 2
    assert "other machines reach this address" in ran.err


@pytest.mark.parametrize("place", ["9464x", "127.0.0.1", "127.0.0.1:99999", "example.org:1", "::1:80"])
def test_no_address(orch: Orch, place: str) -> None:
    ran = orch("metrics", "--listen", place)
    assert (ran.code, "expected an IPv4 address and a port" in ran.err) == (2, True)


@contextmanager
def serving(texts: list[str]) -> Iterator[int]:
    """A server that gives these texts one after the other; its port."""
    with server(("127.0.0.1", 0), lambda: texts.pop(0)) as one:
        thread = threading.Thread(target=one.serve_forever, daemon=True)
        thread.start()
        yield int(one.server_address[1])
        one.shutdown()
        thread.join()


def asked(port: int, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content type and content of an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()


def test_the_server() -> None:
    with serving(["orch_x 1\n", "never reached"]) as port:
        for _ in range(2):  # the second is served from what was collected
            status, kind, text = asked(port, "/metrics")
            assert (status, text) == (200, "orch_x 1\n")
            assert kind.startswith("text/plain; version=0.0.4")
        assert asked(port, "/")[0] == asked(port, "/../etc/passwd")[0] == 404
        assert asked(port, "/metrics", Host="evil.example:80")[0] == 403
        assert asked(port, "/metrics", method="POST")[0] == 501


def test_a_failure_to_collect_is_500_and_the_server_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with serving([]) as port:
        assert [asked(port, "/metrics")[0] for _ in range(2)] == [500, 500]
    assert "could not be collected: IndexError" in capsys.readouterr().err


def test_a_port_that_is_taken(orch: Orch) -> None:
    with server(("127.0.0.1", 0), str) as one:
        ran = orch("metrics", "--listen", f"127.0.0.1:{one.server_address[1]}", on=lan.lan(*THREE))
    assert ran.code == 6
