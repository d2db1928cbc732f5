"""Disks, clocks, ports, data, power: what a machine itself lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.lab.conftest import NAMES
from tests.lab.faults.lan import USER, Lan, broken, mounted, shim, written

WORKSPACE = f"/home/{USER}/orch"
PORT = 12355


@contextmanager
def clock_off(lan: Lan, node: str, seconds: int) -> Iterator[None]:
    """`date` of the node's user is off: the kernel's clock belongs to all machines of a lab."""
    with shim(lan, node, "date", f"exec /usr/bin/date --date '{seconds} seconds' \"$@\""):
        yield


@contextmanager
def disk_with(lan: Lan, node: str, *, size: str, filled_mib: int) -> Iterator[None]:
    """The workspace is on a small disk, this much of it taken; the data of before is on it too."""
    manifests = (
        f"cd {WORKSPACE} && tar -c $(find . -name manifest.json -not -path '*/runs/*') | tar -x -C /var/tmp/kept"
    )
    lan.root(node, f"rm -rf /var/tmp/kept; mkdir -p /var/tmp/kept {WORKSPACE}; {manifests} 2>/dev/null || true")
    with mounted(lan, node, WORKSPACE, size=size):
        lan.root(node, f"cp -r /var/tmp/kept/. {WORKSPACE}; fallocate -l {filled_mib}M {WORKSPACE}/filled")
        lan.root(node, f"chown -R {USER}: {WORKSPACE}")
        yield


@contextmanager
def small_docker_disk(lan: Lan, node: str) -> Iterator[None]:
    with mounted(lan, node, "/var/lib/docker", size="200m"):
        yield


@contextmanager
def workspace_of_root(lan: Lan, node: str) -> Iterator[None]:
    """Leave the workspace as a container that ran as root does."""
    make = f"mkdir -p {WORKSPACE}; chown root: {WORKSPACE}"
    with broken(lan, node, make, f"chown {USER}: {WORKSPACE}"):
        yield


@contextmanager
def port_taken(lan: Lan, node: str) -> Iterator[None]:
    """A program of the same user listens on the port of the rendezvous."""
    listen = f"my $socket = IO::Socket::INET->new(LocalPort => {PORT}, Listen => 1, ReuseAddr => 1) or die; sleep 600"
    lan.begin(node, ("perl", "-MIO::Socket::INET", "-e", listen), user=USER)
    lan.until(node, f"ss -Hltn 'sport = :{PORT}' | grep -q .")
    try:
        yield
    finally:
        lan.root(node, f"pkill -u {USER} -x perl")


@contextmanager
def data_differs(lan: Lan, node: str) -> Iterator[None]:
    """All hold the data, one of them another version of it."""
    with _data(lan, "Data/words", {name: str(name == node) for name in NAMES}):
        yield


@contextmanager
def data_missing(lan: Lan, node: str) -> Iterator[None]:
    with _data(lan, "Data/pictures", {name: "same" for name in NAMES if name != node}):
        yield


@contextmanager
def _data(lan: Lan, folder: str, content: dict[str, str]) -> Iterator[None]:
    place = f"{WORKSPACE}/{lan.document['project']}/{folder}"
    with ExitStack() as stack:
        for name, text in content.items():
            make = f"install -d -o {USER} {WORKSPACE} {WORKSPACE}/lab {WORKSPACE}/lab/Data {place}"
            make = f"{make}; echo '{text}' > {place}/manifest.json"
            stack.enter_context(broken(lan, name, make, f"rm -r {place}"))
        yield


@contextmanager
def hosts_file_with_loopback(lan: Lan, node: str) -> Iterator[None]:
    """The line that Debian and Ubuntu write when they are installed."""
    before = lan.root(node, "cat /etc/hosts")
    with written(lan, node, "/etc/hosts", f"127.0.1.1 {node}\n{before}"):
        yield


@contextmanager
def reboot_pending(lan: Lan, node: str) -> Iterator[None]:
    with broken(lan, node, "touch /run/reboot-required", "rm /run/reboot-required"):
        yield


@contextmanager
def processor_was_too_hot(lan: Lan, node: str) -> Iterator[None]:
    with mounted(lan, node, "/sys/devices/system/cpu/cpu0"):
        place = "/sys/devices/system/cpu/cpu0/thermal_throttle"
        lan.root(node, f"mkdir {place}; echo 512 > {place}/core_throttle_count")
        yield


@contextmanager
def on_battery(lan: Lan, node: str) -> Iterator[None]:
    with mounted(lan, node, "/sys/class/power_supply"):
        place = "/sys/class/power_supply/BAT0"
        lan.root(node, f"mkdir {place}; echo Battery > {place}/type; echo Discharging > {place}/status")
        yield


@contextmanager
def lid(lan: Lan, node: str) -> Iterator[None]:
    """One that can be closed; what happens then is logind's to say."""
    with mounted(lan, node, "/proc/acpi"):
        lan.root(node, "mkdir -p /proc/acpi/button/lid/LID0")
        yield


@contextmanager
def desktop_that_sleeps(lan: Lan, node: str) -> Iterator[None]:
    """systemd as on a machine with a desktop, no sleep target masked and the clock left alone."""
    asked = 'case "$*" in *LoadState*) echo loaded;; *display-manager*) exit 0;; *) exit 1;; esac'
    with (
        broken(lan, node, "mkdir -p /run/systemd/system", "rmdir /run/systemd/system"),
        shim(lan, node, "systemctl", asked),
        shim(lan, node, "busctl", "echo 's \"suspend\"'"),
        shim(lan, node, "timedatectl", "echo no"),
    ):
        yield


@contextmanager
def another_processor(lan: Lan, node: str) -> Iterator[None]:
    with shim(lan, node, "uname", "/usr/bin/uname \"$@\" | sed 's/x86_64/aarch64/'"):
        yield
