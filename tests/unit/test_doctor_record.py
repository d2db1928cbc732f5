"""Record of the doctor's look at the network: stored for launches, and shown with its age."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path as File

import pytest

from orchestrator.fleet.readiness.quick_look import open_ports, quick_look
from orchestrator.specs.facts import SmiFault
from orchestrator.specs.finding import Severity
from orchestrator.specs.firewall import Firewall
from orchestrator.specs.inventory import Limits
from orchestrator.specs.network import Ended, Interface, NetworkFacts, Path
from orchestrator.specs.node_report import Examined
from orchestrator.specs.program import Program
from orchestrator.store.doctor_record import load_doctor_record, record_file, save_doctor_record
from tests import lan
from tests.unit.conftest import THREE, Orch

NOW = datetime(2026, 1, 2, 15, 4, tzinfo=UTC)
SPECS = tuple(lan.spec(name) for name in THREE)
FACTS = {name: lan.facts(name) for name in THREE}


def network(name: str) -> NetworkFacts:
    return NetworkFacts(interfaces=(Interface(name="eth0", addresses=(f"{lan.address_of(name)}/24",), mtu=1500),))


def seen(name: str, *paths: Path) -> Examined:
    return Examined(spec=lan.spec(name), facts=lan.facts(name), network=network(name), paths=paths)


def path(peer: str, ended: Ended = Ended.OK) -> Path:
    return Path(peer=peer, port=40000, master=False, ended=ended, ms=0.4)


def test_the_record_is_read_back() -> None:
    save_doctor_record([seen("alpha", path("beta")), seen("beta")], NOW)
    record = load_doctor_record(NOW + timedelta(hours=1))
    assert record["alpha"].at == NOW
    assert record["alpha"].network == network("alpha")
    assert record["alpha"].paths == (path("beta"),)
    assert record["beta"].address == lan.address_of("beta")


def test_a_look_at_one_node_forgets_none_of_the_others() -> None:
    save_doctor_record([seen("alpha")], NOW)
    save_doctor_record(
        [seen("beta"), Examined(spec=lan.spec("gamma"), facts=lan.facts("gamma"))], NOW + timedelta(minutes=5)
    )
    record = load_doctor_record(NOW + timedelta(hours=1))
    assert {name: seen.at for name, seen in record.items()} == {"alpha": NOW, "beta": NOW + timedelta(minutes=5)}
    later = load_doctor_record(NOW + timedelta(hours=24, minutes=2))
    assert set(later) == {"beta"}


@pytest.mark.parametrize("text", [None, "{", '{"nodes": {"alpha": {"at": "yesterday"}}}'])
def test_no_record_or_one_that_cannot_be_read(text: str | None) -> None:
    if text is not None:
        record_file().parent.mkdir(parents=True)
        record_file().write_text(text)
    assert load_doctor_record(NOW) == {}


def test_an_old_record_says_little_of_now() -> None:
    save_doctor_record([seen("alpha")], NOW)
    assert load_doctor_record(NOW + timedelta(hours=23)) != {}
    assert load_doctor_record(NOW + timedelta(hours=25)) == {}
    assert load_doctor_record(NOW - timedelta(hours=1)) == {}


def test_fresh_facts_are_not_reported_as_old() -> None:
    save_doctor_record([seen("alpha"), seen("beta")], NOW)
    loopback = {**FACTS, "beta": lan.facts("beta", address="127.0.1.1")}
    (found,) = quick_look(SPECS, loopback, load_doctor_record(NOW))
    assert found.id == "network.loopback"
    assert "as of" not in found.message


def test_a_launch_uses_the_doctors_words(orch: Orch) -> None:
    """A limit above what the machine has: a warning of the doctor's that needs no more than a launch's facts."""
    here = lan.lan(*THREE)
    here.nodes["beta"].answers[("sh", "-c", lan.probe.SCRIPT, "*")] = (0, lan.probe_answer("beta", cpus="1"), "")
    inventory = File("inventory.yaml")
    inventory.write_text(f"defaults: {{limits: {{cpus: 2}}}}\n{inventory.read_text()}")
    shown = orch("launch", "--detach", on=here).err
    limited = tuple(lan.spec(name, limits=Limits(cpus=2.0)) for name in THREE)
    (found,) = quick_look(limited, {**FACTS, "beta": lan.facts("beta", cpus=1)}, {})
    assert (found.id, found.severity) == ("resources.cpus", Severity.WARNING)
    assert f"! beta: {found.message} [resources.cpus]" in shown


def test_errors_come_first() -> None:
    facts = {**FACTS, "alpha": lan.facts("alpha", clock_offset_s=3.0), "beta": lan.facts("beta", image=None)}
    assert [finding.id for finding in quick_look(SPECS, facts, {})] == ["image.missing", "clock.skew"]


def walls(*names: str, active: bool | None = False) -> None:
    """Record these nodes' firewalls."""
    networks = {name: replace(network(name), wall=Firewall(active=active)) for name in names}
    save_doctor_record([replace(seen(name), network=one) for name, one in networks.items()], NOW)


def test_ports_that_answer_to_other_machines_are_named_in_a_line() -> None:
    walls("alpha", "beta")
    line = open_ports(SPECS, FACTS, NOW, Program.of(("python", "train.py")))
    assert line.startswith("the ports of gloo, NCCL and the script answer to any machine that reaches alpha, beta: ")
    assert line.endswith("orch firewall apply")
    assert "torch's store, gloo" in open_ports(SPECS, FACTS, NOW, Program.of(("bash", "train.sh")))


@pytest.mark.parametrize("active", [True, None])
def test_ports_behind_a_firewall_or_of_which_nothing_is_known_are_not_named(active: bool | None) -> None:
    assert open_ports(SPECS, FACTS, NOW, Program.of(("python", "train.py"))) == ""
    walls(*THREE, active=active)
    assert open_ports(SPECS, FACTS, NOW, Program.of(("python", "train.py"))) == ""


def test_ports_of_machines_that_one_computer_simulates_are_not_named() -> None:
    walls(*THREE)
    simulated = {name: replace(one, boot_id="the same") for name, one in FACTS.items()}
    assert open_ports(SPECS, simulated, NOW, Program.of(("python", "train.py"))) == ""
    loopback = {name: lan.facts(name, address="127.0.0.1") for name in THREE}
    assert open_ports(SPECS, loopback, NOW, Program.of(("python", "train.py"))) == ""


def test_a_launch_names_open_ports_once(orch: Orch) -> None:
    networks = {name: replace(network(name), wall=Firewall(active=False)) for name in ("alpha", "beta")}
    save_doctor_record([replace(seen(name), network=one) for name, one in networks.items()], datetime.now(UTC))
    printed = orch("launch", "--detach", on=lan.lan(*THREE)).err
    assert printed.count("note: the ports of gloo, NCCL and the script answer") == 1


def test_notes_are_the_doctors_alone() -> None:
    kernels = {**FACTS, "alpha": lan.facts("alpha", kernel="6.1.0"), "beta": lan.facts("beta", kernel="5.10.0")}
    assert quick_look(SPECS, kernels, {}) == ()


def test_nodes_that_were_not_asked_are_not_judged() -> None:
    assert quick_look(SPECS, {**FACTS, "beta": lan.facts("beta", address="127.0.0.1", assumed=True)}, {}) == ()


def keep_gamma_shut() -> None:
    shut = path("gamma", Ended.TIMED_OUT)
    save_doctor_record(
        [seen("alpha", path("beta"), shut), seen("beta", path("alpha"), path("gamma")), seen("gamma")],
        datetime.now(UTC),
    )


def test_a_way_that_is_still_shut_refuses_a_launch(orch: Orch) -> None:
    keep_gamma_shut()
    here = lan.lan()
    for name in THREE:
        here.add(name, shut=("gamma",))
    ran = orch("launch", "--detach", on=here)
    assert ran.code == 4
    assert "gamma" in ran.err
    assert "nothing was started" in ran.err
    assert "as of " not in ran.err
    assert not any(node.engine.containers({}) for node in here.nodes.values())


def test_a_way_that_was_repaired_since_refuses_none(orch: Orch) -> None:
    keep_gamma_shut()
    assert orch("launch", "--detach", on=lan.lan(*THREE)).code == 0
    record = load_doctor_record(datetime.now(UTC))
    assert all(tried.ended is Ended.OK for node in record.values() for tried in node.paths)


def test_nodes_that_a_launch_does_without_refuse_none(orch: Orch) -> None:
    keep_gamma_shut()
    assert orch("launch", "--detach", "--nodes", "alpha,beta", on=lan.lan(*THREE)).code == 0


def test_a_warning_on_record_is_reported_as_old() -> None:
    slow = replace(network("alpha"), interfaces=(replace(network("alpha").interfaces[0], mtu=9000),))
    save_doctor_record([replace(seen("alpha"), network=slow), seen("beta"), seen("gamma")], NOW)
    (found,) = quick_look(SPECS, FACTS, load_doctor_record(NOW))
    assert (found.id, found.severity) == ("network.mtu_differs", Severity.WARNING)
    assert "(as of " in found.message
    assert "fixed since? orch doctor" in found.fix


def test_what_was_seen_of_another_address_is_forgotten(orch: Orch) -> None:
    moved = Examined(
        spec=lan.spec("alpha"), facts=lan.facts("alpha", address="10.0.0.99"), paths=(path("gamma", Ended.REFUSED),)
    )
    save_doctor_record([moved], NOW)
    assert quick_look(SPECS, FACTS, load_doctor_record(NOW)) == ()


def test_a_launch_does_not_take_a_lost_gpu_for_none() -> None:
    lost = {**FACTS, "beta": lan.facts("beta", gpu_fault=SmiFault.LOST, gpu_detail="GPU 0000:02:00.0 is lost")}
    (found,) = quick_look(SPECS, lost, {})
    assert (found.id, found.severity, found.node) == ("gpu.lost", Severity.ERROR, "beta")
    assert "GPU 0000:02:00.0 is lost" in found.message
    on_cpu = [lan.spec(name, device="cpu") for name in THREE]
    assert quick_look(on_cpu, lost, {}) == ()
