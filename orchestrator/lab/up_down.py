"""`orch lab up` and `orch lab down`: start a LAN in a box or keep the one that is up, and remove it completely."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import docker

from orchestrator.lab import slurm
from orchestrator.lab.host import FOLDER_LABEL, LABEL, create_network, docker_host, labels, remove_all, resource_name
from orchestrator.lab.image import node_image, slurm_image
from orchestrator.lab.inventory import (
    SMALLEST_MACHINE_MIB,
    WORKSPACE,
    MachineSize,
    inventory_text,
    slurm_inventory,
    suited_limits,
)
from orchestrator.lab.network import FIRST_HOST, UNSHAPED, node_address, parse_rate
from orchestrator.lab.node import NO_EXTRAS, Identity, MachineExtras, SimulatedNode, known_hosts_line, new_key_pair
from orchestrator.lab.state import (
    LOGIN,
    REAL_TIME,
    EngineKind,
    Lab,
    LabClock,
    LabNode,
    exclusive,
    forget_lab,
    identity_file,
    inventory_file,
    known_hosts_file,
    lab_folder,
    load_lab,
    node_names,
    save_lab,
)
from orchestrator.nodes.state_files import replace_file
from orchestrator.specs.container_limits import ContainerLimits
from orchestrator.specs.errors import ConfigError, ConflictError, DeadlineError, UsageError

DEFAULT_NAME = "lab"
READY_TIMEOUT_S = 90.0
_POLL_S = 0.1
_MIB = 1024 * 1024

ALL_THERE_IS = MachineSize()

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LabRequest:
    """Options of `orch lab up`."""

    nodes: int
    name: str | None = None
    """Name of the lab and prefix of its resources (default: `lab`)."""
    engine: EngineKind = "docker"
    link: str | None = None
    size: MachineSize = ALL_THERE_IS
    base: str | None = None
    """Image that nodes are built on; ours where not given."""
    make_base: Callable[[], None] = lambda: None
    """Builds the default base if it is missing; called for a new lab without `base`."""


def up(request: LabRequest, report: Report, clock: LabClock = REAL_TIME) -> Lab:
    """The lab, all its nodes on and ready. A new one that fails leaves nothing behind."""
    names = node_names(request.nodes)
    _require_possible(request)
    with exclusive():
        known = load_lab()
        if known and inventory_file().exists():
            _require_same(known, request)
            return _keep(known, request, report, clock)
        if known:
            report("removing what an interrupted `orch lab up` has left")
            remove_lab(known.name, own=True)
        if request.engine == "process":
            return _create_process_lab(request.name or DEFAULT_NAME, names, report)
        return _create(request, names, report, clock)


def wait_until_ready(nodes: list[SimulatedNode], report: Report, clock: LabClock) -> None:
    """Wait until every sshd greets and every engine answers. One thread: two cores have enough to do with the
    booting."""
    begin, pending = clock.now(), list(nodes)
    while pending:
        for node in tuple(pending):
            if node.is_ready():
                pending.remove(node)
                report(f"{node.name} is ready ({clock.now() - begin:.1f} s)")
        if pending and clock.now() - begin > READY_TIMEOUT_S:
            slow = pending[0]
            raise DeadlineError(
                f"not ready after {READY_TIMEOUT_S:.0f} s. Its last lines:\n{slow.last_lines()}", node=slow.name
            )
        if pending:
            clock.sleep(_POLL_S)


def switch_on(nodes: list[SimulatedNode], report: Report, clock: LabClock) -> None:
    """Boot these nodes together and wait for them."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(SimulatedNode.switch_on, nodes))
    wait_until_ready(nodes, report, clock)


def _require_possible(request: LabRequest) -> None:
    if request.link and request.link != UNSHAPED:
        parse_rate(request.link)
    if request.size.memory_mib is not None and request.size.memory_mib < SMALLEST_MACHINE_MIB:
        raise UsageError(f"a machine needs {SMALLEST_MACHINE_MIB}m of memory or more, not {request.size.memory_mib}m")
    if request.engine == "process" and (request.link or request.size != ALL_THERE_IS):
        raise UsageError("--engine process has no machines: no links to shape, no size to give")


def _require_same(known: Lab, request: LabRequest) -> None:
    differs = []
    if request.name and request.name != known.name:
        differs.append(f"is named '{known.name}'")
    if request.engine != known.engine:
        differs.append(f"has --engine {known.engine}")
    if request.nodes != len(known.compute):
        differs.append(f"has {len(known.compute)} nodes")
    if differs:
        engine = "" if known.engine == "docker" else f" --engine {known.engine}"
        raise ConflictError(
            f"a lab is up already, and it {' and '.join(differs)}",
            hint=f"keep it (orch lab up --nodes {len(known.compute)}{engine}), or remove it first: orch lab down",
        )


def _keep(known: Lab, request: LabRequest, report: Report, clock: LabClock) -> Lab:
    """Everything stays; what is switched off is switched on."""
    report(f"lab '{known.name}' is already up: kept as it is")
    if known.engine == "process":
        return known
    link = request.link
    lab = replace(known, nodes=tuple(replace(node, link=link or node.link) for node in known.nodes))
    with docker_host() as client:
        nodes = [SimulatedNode(client, lab.name, node) for node in lab.nodes]
        off = [node for node in nodes if not node.is_on()]
        for node in nodes:
            if link and node not in off:
                node.shape(link)
        if off:
            report(f"starting {', '.join(node.name for node in off)}")
            switch_on(off, report, clock)
        _wait_for_slurm(lab, nodes, clock)
    save_lab(lab)
    return lab


def _wait_for_slurm(lab: Lab, machines: list[SimulatedNode], clock: LabClock) -> None:
    if lab.engine == "slurm":
        login = next(machine for machine in machines if machine.name == LOGIN)
        slurm.wait_until_idle(login, [node.name for node in lab.compute], clock)


def _create_process_lab(name: str, names: tuple[str, ...], report: Callable[[str], None]) -> Lab:
    """A lab whose nodes are 127.0.0.11 and on: nothing to start, the inventory is all that it consists of."""
    nodes = tuple(LabNode(name=node, address=f"127.0.0.{FIRST_HOST + index}") for index, node in enumerate(names))
    lab = Lab(name=name, engine="process", nodes=nodes)
    cpus = float(os.cpu_count() or 1)
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    limits = suited_limits(len(nodes), cpus=cpus, memory_mib=memory_mib)
    save_lab(lab)
    replace_file(inventory_file(), inventory_text(lab, limits, lab_folder()))
    report(f"{len(nodes)} nodes, each a process of this computer")
    return lab


def _create(request: LabRequest, names: tuple[str, ...], report: Report, clock: LabClock) -> Lab:
    name = request.name or DEFAULT_NAME
    with docker_host() as client:
        if request.base is None:
            request.make_base()
        is_cluster = request.engine == "slurm"
        image = (slurm_image if is_cluster else node_image)(client, request.base, report)
        with _nothing_left_behind(name):
            _, subnet = create_network(client, name)
            nodes = tuple(
                LabNode(
                    name=node,
                    address=node_address(subnet, index),
                    link=request.link or UNSHAPED,
                    has_engine=not is_cluster or node != LOGIN,
                )
                for index, node in enumerate((*names, LOGIN) if is_cluster else names)
            )
            lab = Lab(name=name, engine=request.engine, nodes=nodes)
            save_lab(lab)
            report(f"starting {len(nodes)} nodes on {subnet}")
            info = client.info()
            cpus = float(info.get("NCPU") or os.cpu_count() or 1)
            limits = suited_limits(len(lab.compute), cpus=cpus, memory_mib=info["MemTotal"] // _MIB, own=request.size)
            if is_cluster:
                text = _start_cluster(client, lab, image, (request.size, limits), report, clock)
            else:
                switch_on(_create_nodes(client, lab, image, request.size), report, clock)
                text = inventory_text(lab, limits, lab_folder())
            # last of all: an inventory means that the lab is up
            replace_file(inventory_file(), text)
    return lab


def _start_cluster(
    client: docker.DockerClient,
    lab: Lab,
    image: str,
    sizes: tuple[MachineSize, ContainerLimits],
    report: Report,
    clock: LabClock,
) -> str:
    """Start the machines of a cluster, wait until it accepts jobs, and return its inventory. `sizes`: of a machine, and
    of a job on it."""
    size, limits = sizes
    python = slurm.this_python()
    shared = resource_name(lab.name, "shared")
    client.volumes.create(shared, labels=labels(lab.name, "shared"))
    machines = _create_nodes(client, lab, image, size, slurm.extras(lab, limits, python, shared))
    switch_on(machines, report, clock)
    slurm.require_python(machines[0], python)
    _wait_for_slurm(lab, machines, clock)
    report("Slurm is ready")
    return slurm_inventory(lab, limits, lab_folder(), python.executable)


def _create_nodes(
    client: docker.DockerClient, lab: Lab, image: str, size: MachineSize, extras: Mapping[str, MachineExtras] = {}
) -> list[SimulatedNode]:
    user_key = new_key_pair(f"orch lab {lab.name}")
    host_keys = {node.address: new_key_pair(node.name) for node in lab.nodes}
    replace_file(identity_file(), user_key.private)
    replace_file(known_hosts_file(), "".join(known_hosts_line(address, key) for address, key in host_keys.items()))
    machines = [SimulatedNode(client, lab.name, node) for node in lab.nodes]
    identities = [Identity(user_key=user_key, host_key=host_keys[node.address]) for node in lab.nodes]
    with ThreadPoolExecutor(len(machines)) as pool:
        list(
            pool.map(
                lambda machine, identity: machine.create(image, identity, size, extras.get(machine.name, NO_EXTRAS)),
                machines,
                identities,
            )
        )
    return machines


@contextmanager
def _nothing_left_behind(name: str) -> Iterator[None]:
    """Remove what the block made if it ends early, Ctrl-C included; never another lab of that name."""
    try:
        yield
    except BaseException:
        remove_lab(name, own=True)
        raise


def down(name: str | None = None) -> list[str]:
    """Remove the lab of this folder, or every lab of that name on this engine; what was removed."""
    with exclusive():
        return remove_lab(name, own=name is None)


def remove_lab(name: str | None, *, own: bool) -> list[str]:
    """Remove what carries the lab's labels. `own`: only what this folder made."""
    known = _known()
    gone: list[str] = []
    if known is None or known.engine != "process":
        filters = [f"{FOLDER_LABEL}={lab_folder()}"] if own else []
        filters += [f"{LABEL}={name}"] if name else []
        with docker_host() as client:
            gone = remove_all(client, filters)
    if own or known is None or known.name == name:
        gone += [f"folder {lab_folder()}"] if forget_lab() else []
    return gone


def saved_on_cluster() -> list[str]:
    """Runs with checkpoints on the shared folder of the cluster that is up."""
    known = _known()
    if known is None or known.engine != "slurm":
        return []
    login = next(node for node in known.nodes if node.name == LOGIN)
    with docker_host() as client:
        machine = SimulatedNode(client, known.name, login)
        code, text = machine.execute(("find", WORKSPACE, "-maxdepth", "5", "-path", "*/checkpoints/step-*"))
    found = {Path(line).parents[1].name for line in text.splitlines()} if code == 0 else set()
    return sorted(found)


def strange_folders(name: str) -> list[str]:
    """State folders of other users, or other state folders, with a lab of this name on this engine."""
    known = _known()
    if known and known.engine == "process":
        return []
    with docker_host() as client:
        held = client.containers.list(all=True, filters={"label": f"{LABEL}={name}"})
        folders = {container.labels.get(FOLDER_LABEL, "?") for container in held}
    return sorted(folders - {str(lab_folder())})


def _known() -> Lab | None:
    try:
        return load_lab()
    except ConfigError:  # to be removed all the same
        return None
