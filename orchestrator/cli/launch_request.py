"""The words of a launch command line into a request."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path

from orchestrator.cli.launch_words import Wanted
from orchestrator.fleet.upload import folder_digest
from orchestrator.plan.command import brings_own_code
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory import Inventory, NodeSpec
from orchestrator.specs.plan import Mount, Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.selection import select_nodes

DEFAULT_COMMAND = ("gpt2",)
DEFAULT_DATA = Path("Data")
LANGUAGE = ("LANG", "LC_ALL")
"""Handed on, so that the trainer speaks the user's language."""
FIRST_PROCESS_ADDRESS = IPv4Address("127.0.0.11")


def build_request(
    inventory: Inventory, wanted: Wanted, earlier: Plan | None, own_environment: Mapping[str, str]
) -> LaunchRequest:
    """The request; what is not said on the command line of a resumed run is as it was (`earlier`)."""
    command = wanted.command or (earlier.command if earlier else DEFAULT_COMMAND)
    own_code = brings_own_code(command)
    workdir = wanted.workdir or (Path() if own_code and not earlier else None)
    if workdir and not own_code:
        raise UsageError(
            "--workdir is for code of yours: say it after --",
            hint="-- python train.py, or -- custom --module my_file.py:build",
        )
    if workdir and not workdir.is_dir():
        raise ConfigError(f"--workdir {workdir} is not a folder")
    data = wanted.data or (DEFAULT_DATA if (DEFAULT_DATA / "manifest.json").is_file() and not earlier else None)
    return LaunchRequest(
        project=inventory.project,
        nodes=chosen_nodes(inventory, wanted, earlier),
        command=command,
        profile=_profile(wanted.profile),
        master_port=inventory.master_port,
        master=wanted.master,
        own_code=bool(workdir) or bool(earlier and earlier.own_code),
        workdir=workdir,
        data=data,
        data_digest=folder_digest(data) if data else (earlier.data_digest if earlier else ""),
        mounts=tuple(map(_mount, wanted.mounts)) or (earlier.mounts if earlier else ()),
        environment={
            **{key: own_environment[key] for key in LANGUAGE if own_environment.get(key)},
            **(earlier.environment if earlier else {}),
            **dict(map(_assignment, wanted.environment)),
        },
    )


def chosen_nodes(inventory: Inventory, wanted: Wanted, earlier: Plan | None) -> tuple[NodeSpec, ...]:
    """The nodes of the run: those named, else those that an earlier attempt had."""
    names = ",".join(part.node for part in earlier.nodes) if earlier else None
    return select_nodes(inventory, nodes=wanted.nodes or names, labels=wanted.labels)


def with_engine(inventory: Inventory, engine: str) -> Inventory:
    """`--engine process`: each node is a process of this computer instead, on an address and in a folder of its own."""
    if engine in ("", "docker"):
        return inventory
    if engine != "process":
        raise UsageError(f"--engine {engine}: expected docker or process")
    nodes = tuple(
        spec.model_copy(
            update={
                "connection": "local",
                "engine": "process",
                "address": str(FIRST_PROCESS_ADDRESS + index),
                "interface": "lo",
                "workspace": spec.workspace if spec.engine == "process" else f"{spec.workspace}/nodes/{spec.name}",
            }
        )
        for index, spec in enumerate(inventory.nodes)
    )
    return inventory.model_copy(update={"nodes": nodes})


def _profile(text: str) -> str:
    if text not in ("", "auto", "cpu", "cuda"):
        raise UsageError(f"--profile {text}: expected cpu, cuda or auto")
    return "" if text == "auto" else text


def _mount(text: str) -> Mount:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[0].startswith("/") or not parts[1].startswith("/"):
        raise UsageError(f"--mount {text}: expected /folder/of/the/node:/folder/inside[:ro]")
    if parts[2:] not in ([], ["ro"], ["rw"]):
        raise UsageError(f"--mount {text}: after the second colon comes ro or rw")
    return Mount(source=parts[0], target=parts[1], read_only=parts[2:] == ["ro"])


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"--env {text}: expected KEY=VALUE")
    return key, value
