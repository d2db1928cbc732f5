"""The doctor's programs on this very computer, against what Python and torch say of it."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.nodes.interface import Completed
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import host_probe, inside_probe
from orchestrator.specs.errors import CommandFailedError
from orchestrator.specs.host import PortHolder


def test_this_computer(tmp_path: Path) -> None:
    (tmp_path / "mine/Data/old").mkdir(parents=True)
    for folder, text in (("Data", "one"), ("Data/old", "two")):
        (tmp_path / "mine" / folder / "manifest.json").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts, manifests = host_probe.ask(LocalNode(), workspace=str(tmp_path), project="mine", port=port)
    assert manifests == {
        "Data": hashlib.sha256(b"one").hexdigest(),
        "Data/old": hashlib.sha256(b"two").hexdigest(),
    }
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    assert facts.memory_available_mib is not None
    assert 0 < facts.memory_available_mib <= total
    assert facts.workspace_writable is True
    assert facts.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert facts.docker_free_mib is not None
    assert facts.systemd is Path("/run/systemd/system").is_dir()
    if platform.machine() == "x86_64":
        assert {"fpu", "sse2"} <= facts.cpu_flags
    assert facts.holders in ((PortHolder(port=port, pid=os.getpid(), program=facts.holders[0].program),), ())


def test_a_project_that_is_not_there_yet(tmp_path: Path) -> None:
    facts, manifests = host_probe.ask(LocalNode(), workspace=f"{tmp_path}/a b/c", project="mine", port=1)
    assert facts.workspace_writable is True
    assert (manifests, facts.holders) == ({}, ())


def test_a_laptop() -> None:
    facts, _ = host_probe.parse(
        'desktop=yes\nlid_action=s "suspend"\nidle_action=s "ignore"\nbattery=Discharging\nntp=no\nreboot=yes\n'
        "sleeps=sleep\nsleeps=suspend\nthrottled=40\nthrottled=2\nwsl_networking=NAT\n"
        'holder=LISTEN 0 128 0.0.0.0:12355 0.0.0.0:* users:(("python3",pid=77,fd=3))\n'
        "holder=LISTEN 0 128 [::]:12355 [::]:*\n",
        port=12355,
    )
    assert (facts.desktop, facts.lid_action, facts.idle_action, facts.on_battery) == (True, "suspend", "ignore", True)
    assert (facts.ntp, facts.reboot_required, facts.throttle_events) == ("no", True, 42)
    assert (facts.sleeps, facts.wsl_networking) == (("sleep", "suspend"), "nat")
    assert facts.holders == (PortHolder(port=12355, pid=77, program="python3"), PortHolder(port=12355))


def test_what_a_machine_does_not_say_is_unknown() -> None:
    facts, manifests = host_probe.parse("banner of a shell\nopen_files=unlimited\ndocker_disk=\nbattery\n", port=1)
    assert facts == host_probe.parse("", port=1)[0]
    assert (facts.memory_available_mib, facts.on_battery, facts.reboot_required, manifests) == (None, None, None, {})


def test_inside() -> None:
    torch = pytest.importorskip("torch")
    answer = inside_probe.parse(LocalNode().run((sys.executable, *inside_probe.PROBE[1:])))
    assert answer.torch == version("torch")
    assert answer.python == platform.python_version()
    assert answer.user == os.getuid()
    shm = os.statvfs("/dev/shm")
    assert answer.shm_mib == shm.f_blocks * shm.f_frsize // 2**20
    if platform.machine() == "x86_64" and "ATEN_CPU_CAPABILITY" not in os.environ:
        assert answer.cpu_capability == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize("text", ["", "no json", '{"other": 1}'])
def test_an_answer_that_is_none(text: str) -> None:
    with pytest.raises(CommandFailedError, match="something else"):
        inside_probe.parse(Completed(node="alpha", argv=("python3",), exit_code=0, stdout=text, stderr=""))


@pytest.mark.parametrize("text", ['{"cpus": "many"}', '{"open_files": 1.5}', "[" * 100_000, '{"torch": null}'])
def test_an_answer_of_other_types_is_none_either(text: str) -> None:
    with pytest.raises(CommandFailedError, match="something else"):
        inside_probe.parse(Completed(node="alpha", argv=(), exit_code=0, stdout=text, stderr=""))
