"""Faults of single machines."""

from __future__ import annotations

from collections.abc import Mapping

from tests.lab.faults import engine, gpu, host, reach
from tests.lab.faults.lan import Fault, Make, inventory, on


def spelt(node: str, name: str, **changes: str) -> Make:
    """A second entry of the inventory for this machine, by another spelling of its address."""
    return lambda lan: inventory(lan, name, address=reach.in_hexadecimal(lan.address(node)), **changes)


UNKNOWN_INSIDE = ("doctor.not_asked",)
"""Finding where no engine or no image is there: no container can be looked into."""

ON_NODES: Mapping[str, tuple[Fault, ...]] = {
    "out of reach": (
        Fault(
            what="a machine is off",
            make=on(reach.powered_off, "epsilon"),
            finds="reach.no_answer", node="epsilon", fix="is it on", says="no answer",
        ),
        Fault(
            what="a cable is pulled: packets vanish",
            make=on(reach.cable_pulled, "gamma"),
            finds="reach.no_answer", node="gamma", fix="is it on", says="no answer",
        ),
        Fault(
            what="no sshd on its port",
            make=on(reach.sshd_on_another_port, "delta"),
            finds="reach.refused", node="delta", fix="ssh -p 22", says="refused the connection",
        ),
        Fault(
            what="a host key was swapped",
            make=on(reach.host_key_swapped, "beta"),
            finds="reach.key_changed", node="beta", fix="orch trust -n beta", says="it now shows ssh-ed25519 SHA256:",
        ),
        Fault(
            what="a host key that was not accepted",
            make=on(reach.second_address, "alpha", "unknown", 81),
            finds="reach.key_unknown", node="unknown", fix="orch trust -n unknown", says="ssh-ed25519 SHA256:",
            follows=("network.address_duplicate",),
        ),
        Fault(
            what="a wrong user",
            make=spelt("alpha", "stranger", user="no-such-user"),
            finds="reach.login", node="stranger", fix="ssh-copy-id", says="no-such-user@",
        ),
        Fault(
            what="a wrong key",
            make=on(reach.wrong_key, "alpha", "locked"),
            finds="reach.login", node="locked", fix="another_key.pub", says="refused the key",
        ),
        Fault(
            what="a name that no name server knows",
            make=on(inventory, "nowhere", address="no-such-machine.invalid"),
            finds="reach.no_address", node="nowhere", fix="ip -4 address", says="has no IPv4 address",
        ),
    ),
    "engines": (
        Fault(
            what="the engine is stopped",
            make=on(engine.dockerd_stopped, "alpha"),
            finds="engine.not_running", node="alpha", fix="sudo service docker start", follows=UNKNOWN_INSIDE,
        ),
        Fault(
            what="the user may not use the engine",
            make=on(engine.not_in_the_group, "beta"),
            finds="engine.no_access", node="beta", fix="usermod -aG docker orch", follows=UNKNOWN_INSIDE,
        ),
        Fault(
            what="no Docker is installed",
            make=on(engine.no_docker, "gamma"),
            finds="engine.absent", node="gamma", fix="orch setup --nodes gamma", follows=UNKNOWN_INSIDE,
        ),
        Fault(
            what="the image is missing",
            make=on(engine.image_missing, "delta"),
            finds="image.missing", node="delta", fix="orch build", follows=UNKNOWN_INSIDE,
        ),
        Fault(
            what="no room for the image",
            make=on(host.small_docker_disk, "delta"),
            finds="resources.image", node="delta", fix="docker system prune", says="200 MiB",
        ),
        Fault(
            what="files of a container are gone",
            make=on(engine.files_of_a_container_gone, "epsilon"),
            finds="engine.silent", node="epsilon", fix="journalctl -u docker", says="no such file",
            follows=UNKNOWN_INSIDE,
        ),
    ),
    "images and limits": (
        Fault(
            what="an image of another content",
            make=on(engine.image_of_other_content, "beta"),
            finds="image.differs", node="beta", fix="orch build",
        ),
        Fault(
            what="the master's port is taken",
            make=on(host.port_taken, "alpha"),
            finds="resources.port_taken", node="alpha", fix="ss -ltnp", says="perl (pid ",
        ),
        Fault(
            what="little shared memory",
            make=on(inventory, "delta", limits={"shm": "32m"}),
            finds="resources.shm", node="delta", fix="shm: 1g", says="32 MiB",
        ),
        Fault(
            what="a memory limit above what is there",
            make=on(inventory, "epsilon", limits={"memory": "900g"}),
            finds="resources.memory", node="epsilon", fix="limits: {memory:", says="921600 MiB",
        ),
        Fault(
            what="more CPUs promised than there are",
            make=on(inventory, "epsilon", limits={"cpus": 512.0}),
            finds="resources.cpus", node="epsilon", fix="limits: {cpus:", says="512 CPUs",
        ),
        Fault(
            what="few file descriptors",
            make=on(engine.few_open_files, "gamma"),
            finds="resources.open_files", node="gamma", fix="nofile", says="1024 files",
        ),
    ),
    "torch and disks": (
        Fault(
            what="another torch in the image",
            make=on(engine.image_with_other_torch, "delta"),
            finds="consistency.torch", node="delta", fix="orch build", says="delta: 2.9.1",
        ),
        Fault(
            what="a rank of a dead run is left",
            make=on(engine.half_a_run, "alpha", "epsilon"),
            finds="resources.orphan", node="alpha", fix="orch stop dead-0a1b", says="has ended on epsilon",
        ),
        Fault(
            what="the disk is full",
            make=on(host.disk_with, "beta", size="64m", filled_mib=50),
            finds="disk.full", node="beta", fix="make room", says="needs 1024",
        ),
        Fault(
            what="no room for three checkpoints",
            make=on(host.disk_with, "gamma", size="2g", filled_mib=100),
            finds="resources.disk_low", node="gamma", fix="orch clean", says="of GPT-2 124M take 5120",
        ),
        Fault(
            what="the workspace belongs to root",
            make=on(host.workspace_of_root, "epsilon"),
            finds="resources.workspace", node="epsilon", fix="sudo install -d -o orch", says="orch may not write",
        ),
    ),
    "clocks, data, names": (
        Fault(
            what="a clock that is far off",
            make=on(host.clock_off, "alpha", -45),
            finds="clock.skew", node="alpha", fix="set-ntp true", says="45 s behind",
        ),
        Fault(
            what="a clock that is a little off",
            make=on(host.clock_off, "beta", 5),
            finds="clock.skew", node="beta", fix="set-ntp true", says="5 s ahead",
        ),
        Fault(
            what="a cloned machine-id",
            make=on(reach.same_machine_id, "delta", "gamma"),
            finds="reach.same_machine_id", node="delta", fix="systemd-machine-id-setup", says="gamma",
        ),
        Fault(
            what="other data under the same name",
            make=on(host.data_differs, "epsilon"),
            finds="data.differs", node="epsilon", fix="orch prepare", says="Data/words",
        ),
        Fault(
            what="data that is not everywhere",
            make=on(host.data_missing, "beta"),
            finds="data.missing", node="beta", fix="orch launch --data", says="Data/pictures",
        ),
        Fault(
            what="127.0.1.1 in the hosts file",
            make=on(host.hosts_file_with_loopback, "delta"),
            finds="network.own_name_loops", node="delta", fix="/etc/hosts", says="127.0.1.1",
        ),
        Fault(
            what="updates wait for a reboot",
            make=on(host.reboot_pending, "gamma"),
            finds="power.reboot_pending", node="gamma", fix="sudo reboot",
        ),
        Fault(
            what="a processor that got too hot",
            make=on(host.processor_was_too_hot, "gamma"),
            finds="power.throttled", node="gamma", fix="clean the fans", says="512 times",
        ),
    ),
    "laptops and twins": (
        Fault(
            what="a desktop that falls asleep",
            make=on(host.desktop_that_sleeps, "beta"),
            finds="power.sleep", node="beta", fix="systemctl mask sleep.target", says="suspend",
        ),
        Fault(
            what="a lid that puts the laptop to sleep",
            make=on(host.lid, "beta"),
            finds="power.lid", node="beta", fix="HandleLidSwitch=ignore", says="suspend",
        ),
        Fault(
            what="a clock that is not synchronized",
            make=on(inventory, "beta"),
            finds="clock.not_kept", node="beta", fix="timedatectl set-ntp true",
        ),
        Fault(
            what="a laptop on battery",
            make=on(host.on_battery, "beta"),
            finds="power.on_battery", node="beta", fix="plug in the mains",
        ),
        Fault(
            what="a processor of another kind",
            make=on(host.another_processor, "epsilon"),
            finds="consistency.architecture", node="epsilon", fix="--each-node", says="epsilon: aarch64",
        ),
        Fault(
            what="an image built for another processor",
            make=on(inventory, "epsilon"),
            finds="consistency.image_architecture", node="epsilon", fix="--each-node", says="built for x86_64",
        ),
        Fault(
            what="one machine under two names",
            make=on(reach.second_name, "alpha", "twin"),
            finds="inventory.same_machine", node="twin", fix="remove one", says="alpha",
        ),
        Fault(
            what="one address under two names",
            make=spelt("gamma", "again", user="orch"),
            finds="reach.same_address", node="again", fix="ip -4 address", says="gamma",
            follows=("inventory.same_machine",),
        ),
        Fault(
            what="a GPU is promised and there is none",
            make=on(inventory, "delta", device="cuda"),
            finds="gpu.none", node="delta", fix="device: cpu", says="device: cuda",
            follows=("image.missing", *UNKNOWN_INSIDE),
        ),
    ),
    "NVIDIA drivers": tuple(
        Fault(
            what=f"nvidia-smi: {what}",
            make=on(gpu.nvidia_smi, node, ending),
            finds=id, node=node, fix=fix, says=ending[1].split(".")[0][:30],
        )
        for node, what, ending, id, fix in (
            ("alpha", "no device", gpu.NO_DEVICE, "gpu.no_device", "lspci"),
            ("beta", "driver mismatch", gpu.MISMATCH, "gpu.driver_mismatch", "sudo reboot"),
            ("gamma", "a lost GPU", gpu.LOST, "gpu.lost", "dmesg | grep -i xid"),
            ("delta", "no driver loaded", gpu.NO_DRIVER, "gpu.driver_not_loaded", "modprobe nvidia"),
            ("epsilon", "an unknown error", gpu.UNKNOWN, "gpu.smi_failed", "dmesg"),
        )
    ),
}  # fmt: skip
