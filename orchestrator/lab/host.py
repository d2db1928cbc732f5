"""The Docker Engine of this computer, on which the simulated machines run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Network
from pathlib import Path

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool

from orchestrator.lab.network import free_subnets, parse_routes
from orchestrator.lab.state import lab_folder
from orchestrator.specs.errors import ConflictError, EngineError

LABEL = "orch.lab"
FOLDER_LABEL = "orch.lab.folder"
NODE_LABEL = "orch.lab.node"

_POOL = 64
"""Connections to the engine at once: one for each node."""
_TIMEOUT_S = 120
_POOL_OVERLAPS = HTTPStatus.FORBIDDEN
"""Status of the engine for an address range that another network uses."""
_KINDS = ("container", "volume", "network")
_PROCESS = "without containers: orch lab up --engine process"


@contextmanager
def docker_host() -> Iterator[docker.DockerClient]:
    """Client of an engine with containers that this computer reaches by their addresses."""
    try:
        client = docker.from_env(timeout=_TIMEOUT_S, max_pool_size=_POOL)
    except DockerException as error:
        raise _no_engine(error) from error
    try:
        info = client.info()
        _require_bridge(client, info)
        yield client
    except (DockerException, requests.RequestException) as error:
        raise engine_error(error) from error
    finally:
        client.close()


def engine_error(error: Exception) -> EngineError:
    """The error of a call to the engine, in words. A call that took too long may be carried out all the same."""
    if isinstance(error, requests.Timeout):
        return EngineError(
            f"the Docker Engine of this computer gave no answer in {_TIMEOUT_S:.0f} s",
            hint="the computer is busy: wait a moment and run the same command again, which continues",
        )
    return EngineError(f"the Docker Engine of this computer refused: {_reason(error)}")


def labels(lab: str, node: str = "") -> dict[str, str]:
    """Labels of all resources of a lab, so that nothing else is ever removed."""
    marks = {LABEL: lab, FOLDER_LABEL: str(lab_folder())}
    return {**marks, NODE_LABEL: node} if node else marks


def resource_name(lab: str, node: str = "") -> str:
    """`orch-lab`, the network; `orch-lab-alpha`, a node and its volume."""
    return f"orch-{lab}-{node}" if node else f"orch-{lab}"


def create_network(client: docker.DockerClient, lab: str) -> tuple[Network, IPv4Network]:
    """A bridge of the lab's own, in a range that is free on this computer."""
    _refuse_stranger(client, lab)
    for subnet in free_subnets(_used_subnets(client)):
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet.network_address + 1))
        try:
            network = client.networks.create(
                resource_name(lab), driver="bridge", ipam=IPAMConfig(pool_configs=[pool]), labels=labels(lab)
            )
        except APIError as error:
            if error.status_code != _POOL_OVERLAPS:
                raise
        else:
            return network, subnet
    raise EngineError("no address range is left for the lab", hint="`docker network prune` frees those without use")


def remove_all(client: docker.DockerClient, filters: list[str]) -> list[str]:
    """Remove containers, then volumes, then networks with these labels; what was removed.

    A busy engine may fail to remove one thing in time: the rest is removed all the same, and what failed is tried once
    more. EngineError names what is left then.
    """
    gone: dict[str, None] = {}
    left: dict[str, Exception] = {}
    for _ in range(2):
        left = _remove(client, filters, gone)
        if not left:
            return sorted(gone, key=lambda name: (_KINDS.index(name.split()[0]), name))
    raise EngineError(
        f"the Docker Engine of this computer did not remove {', '.join(left)}: {_reason(next(iter(left.values())))}",
        hint="orch lab down   # again, when the engine is less busy",
    )


def _remove(client: docker.DockerClient, filters: list[str], gone: dict[str, None]) -> dict[str, Exception]:
    """Try each removal once; the failures by name. Removed resources are added to `gone`."""
    chosen: dict[str, str | list[str] | bool] = {"label": filters}
    left: dict[str, Exception] = {}

    def attempt(name: str, remove: Callable[[], object]) -> None:
        try:
            remove()
        except NotFound:
            pass
        except (DockerException, requests.RequestException) as error:
            left[name] = error
            return
        gone[name] = None

    with ThreadPoolExecutor(_POOL) as pool:
        for container in client.containers.list(all=True, filters=chosen):
            pool.submit(attempt, f"container {container.name}", partial(container.remove, force=True, v=True))
    with ThreadPoolExecutor(_POOL) as pool:
        for volume in client.volumes.list(filters=chosen):
            pool.submit(attempt, f"volume {volume.name}", partial(volume.remove, force=True))
    for network in client.networks.list(filters=chosen):
        attempt(f"network {network.name}", network.remove)
    return left


def _used_subnets(client: docker.DockerClient) -> list[IPv4Network]:
    """Subnets of routes and of Docker networks; an idle network may have no route."""
    configs = [
        config for network in client.networks.list() for config in network.attrs.get("IPAM", {}).get("Config") or ()
    ]
    ranges = [config["Subnet"] for config in configs if "." in config.get("Subnet", "")]
    return [*parse_routes(Path("/proc/net/route").read_text()), *(IPv4Network(text) for text in ranges)]


def _refuse_stranger(client: docker.DockerClient, lab: str) -> None:
    """ConflictError if a lab of this name belongs to another state folder."""
    for found in client.networks.list(names=[f"^{resource_name(lab)}$"]):
        folder = (found.attrs.get("Labels") or {}).get(FOLDER_LABEL, "another program")
        raise ConflictError(
            f"this engine has a lab '{lab}' already, recorded in {folder}",
            hint=f"take another --name, or remove that one: orch lab down --name {lab}",
        )


def _no_engine(error: Exception) -> EngineError:
    if "PermissionError" in str(error):
        hint = "join its group: sudo usermod -aG docker $USER, then log in again"
        return EngineError("the Docker Engine of this computer is not yours to use", hint=f"{hint}; or {_PROCESS}")
    hint = "sudo apt-get install docker.io, and start it: sudo systemctl start docker (or: sudo dockerd &)"
    return EngineError("no Docker Engine answers on this computer", hint=f"{hint}; or {_PROCESS}")


def _require_bridge(client: docker.DockerClient, info: dict[str, object]) -> None:
    """Refuse an engine in a virtual machine or a network of its own: nothing here reaches its containers."""
    options = info.get("SecurityOptions")
    what = ""
    if not client.api.base_url.startswith("http+docker"):
        what = f"is another machine's ({client.api.base_url})"
    elif "Docker Desktop" in str(info.get("OperatingSystem")):
        what = "is Docker Desktop's, in a virtual machine"
    elif isinstance(options, list) and "name=rootless" in options:
        what = "is rootless, in a network of its own"
    if what:
        raise EngineError(
            f"the Docker Engine {what}: its containers cannot be reached by their addresses", hint=f"run {_PROCESS}"
        )


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)
