"""`orch setup`: what it would do, that it asks, that a second run does nothing, and what it refuses."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from orchestrator.fleet.readiness.package_lock import Patience
from orchestrator.fleet.readiness.setup import carry_out, survey, verified
from orchestrator.nodes.probes.setup_probe import parse, primary_keys
from orchestrator.plan.setup import FINGERPRINT, KEYRING, SOURCE_FILE, plan_setup, source_line
from orchestrator.render.setup import StepsDone, plan_text, step_line
from orchestrator.specs.setup import NVIDIA_SOURCE, Rights, SetUp, SetupFacts, SetupPlan
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import Orch
from tests.unit.machines import Fleet, Machine, fleet, key_listing

MIRROR = "https://packages.example/libnvidia-container"
BARE = SetupFacts(
    name="alpha",
    user="ana",
    rights=Rights.FREE,
    system="Debian GNU/Linux 12",
    distribution="debian",
    version="12",
    systemd=True,
    packages=frozenset({"ca-certificates"}),
    programs=frozenset({"apt-get", "ip"}),
)
READY = replace(
    BARE,
    packages=BARE.packages | {"docker.io"},
    programs=BARE.programs | {"docker", "dockerd"},
    daemon=True,
    enabled=True,
    in_group=True,
)


def commands(facts: SetupFacts) -> list[str]:
    """List what would be done, as lines."""
    return [step_line(step) for step in plan_setup(facts, suffix="t0k3n", nvidia_source=MIRROR).to_do]


def set_up(machine: Machine) -> SetUp:
    """One round on it, as the command does it."""
    node = machine.node()
    plan = planned(machine)
    (result,) = carry_out([plan], [node], lambda *_: None)
    return verified([result], [plan], [] if result.error else [machine.node()], rest=lambda _: None)[0]


def planned(machine: Machine) -> SetupPlan:
    (outcome,) = survey([lan.spec(machine.name)], [machine.node()])
    return plan_setup(outcome.value(), suffix="t0k3n", nvidia_source=MIRROR)


def test_a_bare_machine_gets_the_engine() -> None:
    apt = "sudo -n env LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get"
    assert commands(BARE) == [
        f"{apt} update",
        f"{apt} install --yes --no-install-recommends docker.io",
        "sudo -n systemctl enable --now docker",
        "sudo -n usermod --append --groups docker ana",
    ]


def test_nothing_is_done_twice() -> None:
    assert commands(READY) == []
    assert list(plan_text([plan_setup(READY, suffix="t")]))[-1] == "  nothing to do"


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (replace(READY, daemon=False), "sudo -n systemctl enable --now docker"),
        (replace(READY, enabled=False), "sudo -n systemctl enable --now docker"),
        (replace(READY, systemd=False, daemon=False), "sudo -n service docker start"),
        (replace(READY, in_group=False), "sudo -n usermod --append --groups docker ana"),
    ],
)
def test_only_what_is_missing_is_done(facts: SetupFacts, wanted: str) -> None:
    assert commands(facts) == [wanted]


def test_root_needs_no_sudo_and_no_group() -> None:
    lines = commands(replace(BARE, rights=Rights.ROOT, user="root", systemd=False))
    assert lines[-1] == "service docker start"
    assert not any("sudo" in line or "usermod" in line for line in lines)


@pytest.mark.parametrize(
    ("distribution", "like", "installs"),
    [
        ("fedora", (), "dnf install -y moby-engine"),
        ("rocky", ("rhel", "centos", "fedora"), "docker-ce"),
        ("manjaro", ("arch",), "pacman -S --needed docker"),
        ("opensuse-leap", ("suse", "opensuse"), "zypper install -y docker"),
    ],
)
def test_other_distributions_get_their_lines(distribution: str, like: tuple[str, ...], installs: str) -> None:
    plan = plan_setup(replace(BARE, distribution=distribution, like=like), suffix="t")
    assert installs in plan.hint
    assert plan.hint.endswith("&& sudo systemctl enable --now docker && sudo usermod -aG docker ana")


@pytest.mark.parametrize(
    ("facts", "packages"),
    [
        (replace(BARE, version="13"), "docker.io docker-cli"),
        (replace(BARE, version=""), "docker.io docker-cli"),
        (replace(BARE, distribution="ubuntu", version="24.04"), "docker.io"),
        (replace(BARE, distribution="linuxmint", like=("ubuntu", "debian"), version="22"), "docker.io"),
        (replace(BARE, apparmor=True), "docker.io apparmor"),
        (replace(BARE, programs=frozenset({"apt-get"})), "docker.io iproute2"),
    ],
)
def test_packages_follow_the_distribution(facts: SetupFacts, packages: str) -> None:
    (line,) = (line for line in commands(facts) if " install " in line)
    assert line.endswith(f"--no-install-recommends {packages}")


def test_proxies_of_the_user_reach_apt_by_name_alone() -> None:
    lines = commands(replace(BARE, proxies=("https_proxy", "no_proxy")))
    saved = [line for line in lines if "--preserve-env=https_proxy,no_proxy" in line]
    assert saved == [line for line in lines if "apt-get" in line]


def test_a_gpu_node_gets_the_toolkit_and_a_checked_key() -> None:
    lines = commands(replace(READY, nvidia_driver="570.1"))
    order = ["apt-get", "mkdir -m 700 /tmp/orch-setup-t0k3n", "curl ", "--show-keys", "--dearmor", KEYRING, "rm -r "]
    order += [
        source_line(MIRROR),
        "update",
        "install --yes --no-install-recommends nvidia-container-toolkit",
        "nvidia-ctk",
    ]
    position = -1
    for words in order:
        position = next(place for place, line in enumerate(lines) if place > position and words in line)
    assert lines[-1] == "sudo -n systemctl restart docker"
    (fetch,) = (line for line in lines if line.startswith("curl "))
    assert "|" not in fetch
    assert fetch.endswith(f" {MIRROR}/gpgkey")
    assert f"| sudo -n tee {SOURCE_FILE}" in "\n".join(lines)


def test_the_toolkit_comes_from_nvidia_unless_a_mirror_is_named() -> None:
    for source in ("", MIRROR):
        plan = plan_setup(replace(BARE, nvidia_driver="570.1"), suffix="t", nvidia_source=source)
        assert plan.new_source == (source or NVIDIA_SOURCE)
        assert any(f"{plan.new_source}/gpgkey" in step.argv for step in plan.to_do)
        assert any(plan.new_source in warning for warning in plan.warnings)


def test_the_question_names_the_source_and_its_nodes(orch: Orch) -> None:
    here = fleet()
    here.machines["beta"].driver = "570.1"
    ran = orch("setup", on=here)
    assert ran.asked == (
        f"run these commands on alpha, beta, gamma, and let beta install packages of {NVIDIA_SOURCE}?",
    )
    assert (ran.code, here.machines["beta"].runtimes) == (0, ("nvidia", "runc")), ran.err


def test_a_source_that_the_node_knows_is_taken_as_it_is() -> None:
    facts = replace(READY, nvidia_driver="570.1", source="deb https://own.example/nvidia /")
    lines = [step_line(step) for step in plan_setup(facts, suffix="t").to_do]
    assert any("install --yes --no-install-recommends nvidia-container-toolkit" in line for line in lines)
    assert not any("curl" in line or SOURCE_FILE in line for line in lines)


@pytest.mark.parametrize("address", ["http://packages.example/x", "https://a b", "https://x/$(id)", "nvidia"])
def test_an_address_that_is_none_is_refused(orch: Orch, address: str) -> None:
    ran = orch("setup", "--nvidia-source", address)
    assert ran.code == 2
    assert "expected https://HOST/PATH" in ran.err


@pytest.mark.parametrize(
    "facts", [replace(READY, nvidia_driver="570.1", wants_gpus=False), replace(READY, nvidia_driver="")]
)
def test_no_toolkit_where_no_gpu_is_used(facts: SetupFacts) -> None:
    assert commands(facts) == []


def test_a_toolkit_that_docker_does_not_know_yet() -> None:
    facts = replace(READY, nvidia_driver="570.1", packages=READY.packages | {"nvidia-container-toolkit"}, containers=2)
    assert [line.split()[2] for line in commands(facts)] == ["nvidia-ctk", "systemctl"]
    assert "2 containers run there and will be stopped when Docker restarts" in plan_setup(facts, suffix="t").warnings
    assert commands(replace(facts, runtimes=("nvidia", "runc"))) == []


def test_a_run_that_continues_is_not_ended_by_a_restart() -> None:
    facts = replace(READY, nvidia_driver="570.1", runs=("one-ab12",))
    plan = plan_setup(facts, suffix="t", nvidia_source=MIRROR)
    assert (plan.to_do, plan.hint) == ((), "orch stop one-ab12, then orch setup --nodes alpha")
    assert "one-ab12" in plan.refused


@pytest.mark.parametrize(
    ("facts", "reason", "advice"),
    [
        (
            replace(BARE, distribution="fedora", system="Fedora Linux 41"),
            "Fedora Linux 41",
            "dnf install -y moby-engine",
        ),
        (replace(BARE, distribution="void", system="Void"), "Void", "distribution's manual"),
        (replace(BARE, podman=True), "Podman", "remove podman-docker"),
        (replace(BARE, packages=frozenset({"docker-ce-cli"})), "no engine", "install docker-ce"),
        (
            replace(BARE, rights=Rights.NONE),
            "no sudo",
            "su - -c 'apt-get update && apt-get install --yes sudo && usermod",
        ),
        (replace(BARE, rights=Rights.NONE, distribution="ubuntu"), "no sudo", "from an account that may use sudo"),
    ],
)
def test_what_is_refused_says_what_to_do_by_hand(facts: SetupFacts, reason: str, advice: str) -> None:
    plan = plan_setup(facts, suffix="t")
    assert reason in plan.refused
    assert advice in plan.hint


def test_no_hint_lets_a_user_become_root_without_a_password() -> None:
    """A line for now would stay for ever; and the name in it is that machine's own word."""
    hints = [
        plan_setup(replace(BARE, user="ana; reboot", **changes), suffix="t").hint
        for changes in ({"rights": Rights.NONE}, {"distribution": "fedora"})
    ]
    assert not any("NOPASSWD" in hint for hint in hints)
    root, other = (hint.partition(": ")[2].removesuffix("; then: orch setup --nodes alpha") for hint in hints)
    assert shlex.split(shlex.split(root)[-1])[-1] == shlex.split(other)[-1] == "ana; reboot"


def test_lines_to_paste_ask_for_the_password_there() -> None:
    reported = list(plan_text([plan_setup(replace(BARE, rights=Rights.PASSWORD), suffix="t")]))
    assert "  sudo systemctl enable --now docker" in reported
    assert not any("sudo -n" in line for line in reported)


def test_joining_the_group_is_reported_as_root() -> None:
    assert "as good as root" in plan_setup(BARE, suffix="t").warnings[0]
    assert plan_setup(READY, suffix="t").warnings == ()


@pytest.mark.parametrize("systemd", [True, False])
@pytest.mark.parametrize("driver", ["", "570.133.07"])
def test_a_machine_is_set_up_once(systemd: bool, driver: str) -> None:
    machine = Machine(systemd=systemd, driver=driver)
    result = set_up(machine)
    assert (result.error, result.engine and result.engine.version) == ("", "26.1")
    assert ("nvidia" in machine.runtimes) is bool(driver)
    began = len(machine.commands)
    assert planned(machine).to_do == ()
    assert set_up(machine).engine
    assert len(machine.commands) == began


@pytest.mark.parametrize(
    "key", [key_listing("B" * 40), key_listing(FINGERPRINT, "B" * 40), "<html>a proxy's page</html>"]
)
def test_another_key_is_never_trusted(key: str) -> None:
    machine = Machine(driver="570.1", key=key)
    result = set_up(machine)
    assert "nothing of it is trusted or installed" in result.error
    assert KEYRING not in machine.files
    assert "nvidia-container-toolkit" not in machine.packages
    assert machine.commands[-1][:2] == ("rm", "-r")


def test_what_fails_ends_this_node_alone_and_can_be_taken_up_again() -> None:
    alpha, beta = Machine(name="alpha", fails="install"), Machine(name="beta")
    failed, good = carry_out([planned(alpha), planned(beta)], [alpha.node(), beta.node()], lambda *_: None)
    assert "apt-get" in " ".join(alpha.commands[-1])
    assert (good.error, len(good.done)) == ("", 4)
    assert "E: install failed" in failed.error
    assert failed.hint == "orch setup   # once that is fixed; what was done stays"
    alpha.fails = ""
    assert set_up(alpha).engine


def test_an_engine_that_does_not_answer_is_an_error() -> None:
    machine, moment = Machine(), iter(range(0, 1000, 30))
    plan = planned(machine)
    (result,) = verified([SetUp(node="alpha")], [plan], [machine.node()], now=lambda: next(moment), rest=lambda _: None)
    assert "no engine answers" in result.error


def test_a_runtime_that_the_engine_does_not_know_is_an_error() -> None:
    machine = Machine(driver="570.1")
    plan = planned(machine)
    carry_out([plan], [machine.node()], lambda *_: None)
    machine.runtimes = ("runc",)
    (result,) = verified([SetUp(node="alpha")], [plan], [machine.node()])
    assert "does not know the runtime nvidia" in result.error


def test_subkeys_are_no_keys_of_their_own() -> None:
    assert primary_keys(key_listing("C" * 40, "D" * 40)) == ("C" * 40, "D" * 40)


def test_an_answer_that_is_none_is_reported_as_none() -> None:
    with pytest.raises(Exception, match="has no line user="):
        parse("hello", name="alpha")


def test_the_command_shows_everything_and_changes_nothing_unasked(orch: Orch) -> None:
    here = fleet()
    ran = orch("setup", "--dry-run", on=here)
    assert (ran.code, here.commands) == (0, [])
    assert ran.out.startswith("alpha, beta, gamma:\n")
    assert "sudo -n usermod --append --groups docker ana" in ran.out
    assert "as good as root" in ran.out
    asked = orch("setup", on=here, says=None)
    assert (asked.code, here.commands) == (2, [])
    assert "add --yes to agree" in asked.err


def test_the_command_sets_up_all_nodes_and_a_second_one_says_that_nothing_is_to_do(orch: Orch) -> None:
    here = fleet()
    ran = orch("setup", "--yes", on=here)
    assert ran.code == 0, ran.err
    assert re.search(r"^✓ fetch the package lists: alpha, beta, gamma \(\d+\.\d s\)$", ran.err, re.M)
    assert ran.err.count("fetch the package lists") == 1  # and no line as each node begins it
    assert "\nalpha, beta, gamma: Docker Engine 26.1 answers\n  → orch launch -- python SCRIPT " in ran.err
    began = len(here.commands)
    again = orch("setup", "--yes", on=here)
    assert (again.code, len(here.commands)) == (0, began)
    assert "nothing to do" in again.out


def test_the_command_as_json(orch: Orch) -> None:
    ran = orch("setup", "--yes", "--json", "--nodes", "alpha", "--nvidia-source", MIRROR, on=fleet(driver="570.1"))
    (node,) = json_data(ran.out)
    assert node["result"]["engine"]["runtimes"] == ["nvidia", "runc"]
    assert all(step["command"] for step in node["steps"] if not step["done"])
    named = orch("setup", "--dry-run", "-o", "name", "--nodes", "alpha,beta", on=fleet())
    assert (named.code, named.out) == (0, "alpha\nbeta\n")


def test_one_node_that_cannot_be_set_up_does_not_hold_up_the_others(orch: Orch) -> None:
    here = fleet()
    here.machines["beta"] = Machine(name="beta", rights="none")
    ran = orch("setup", "--yes", on=here)
    assert ran.code == 5
    assert not here.machines["beta"].commands
    assert here.machines["gamma"].daemon
    only = orch("setup", "--yes", "--nodes", "beta", on=here)
    assert only.code == 4


HELD = "E: Could not get lock {file}. It is held by process 812 (unattended-upgr)\nE: Unable to acquire it"


def test_another_process_that_installs_is_waited_for() -> None:
    files = ("/var/lib/apt/lists/lock", "/var/lib/dpkg/lock-frontend")
    machine = Machine(locked=[HELD.format(file=file) for file in files])
    events, clock = list[str](), [0.0]
    patience = Patience(now=lambda: clock[0], rest=lambda s: clock.__setitem__(0, clock[0] + s))
    (result,) = carry_out(
        [planned(machine)], [machine.node()], lambda node, why, state: events.append(f"{state}"), patience
    )
    assert (result.error, len(result.done)) == ("", 4)
    waits = [event for event in events if "waits for process 812 (unattended-upgr)" in event]
    assert len(waits) == 1
    assert files[0] in waits[0]


def test_a_process_that_never_stops_installing_is_named() -> None:
    machine, clock = Machine(locked=[HELD.format(file="/var/lib/dpkg/lock")] * 1000), [0.0]
    patience = Patience(now=lambda: clock[0], rest=lambda s: clock.__setitem__(0, clock[0] + s))
    (result,) = carry_out([planned(machine)], [machine.node()], lambda *_: None, patience)
    assert result.error.endswith("process 812 (unattended-upgr) has held /var/lib/dpkg/lock for 600 s")
    assert result.hint.startswith("on it: ps -fp 812 ")
    assert not machine.programs & {"dockerd"}


def test_steps_that_only_some_nodes_have_done_are_named_at_the_end() -> None:
    plans = [planned(Machine(name=name)) for name in ("alpha", "beta")]
    steps = StepsDone(plans)
    first, second = (step.why for step in plans[0].to_do[:2])
    assert list(steps.note("beta", first, 2.0)) == []
    assert list(steps.note("alpha", first, 1.0)) == [f"✓ {first}: alpha, beta (2.0 s)"]
    assert list(steps.note("alpha", second, 3.0)) == []
    assert list(steps.rest()) == [f"✓ {second}: alpha (3.0 s)"]


def test_a_node_out_of_reach_is_named(orch: Orch) -> None:
    class OneIsSilent(Fleet):
        def connect(self, wanted: lan.NodeSpec) -> lan.FakeNode:
            return lan.silent("beta") if wanted.name == "beta" else super().connect(wanted)

    ran = orch("setup", "--yes", on=OneIsSilent(fleet().machines))
    assert ran.code == 5
    assert "beta: no answer in 5 s" in ran.err
