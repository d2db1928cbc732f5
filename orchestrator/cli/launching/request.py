"""The words of a launch command line into a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from orchestrator.cli.launching.command_words import default_data
from orchestrator.cli.launching.launch_options import DEFAULT_COMMAND, LaunchOptions
from orchestrator.cli.launching.secrets import asked_secrets, hint_at_secrets, known_again
from orchestrator.fleet.runs.upload import folder_digest
from orchestrator.plan.command import brings_own_code
from orchestrator.specs.container import Mount
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory import Inventory, NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.selection import select_nodes

LANGUAGE = ("LANG", "LC_ALL")
"""Handed on, so that the trainer speaks the user's language."""
MAX_RESTARTS, NODE_TIMEOUT_S, REPLICAS, ABSENCE_S = 3, 120, 1, 900
"""A node that stays away is given up by whoever watches the run, before the others tire of waiting for it."""
FIRST_PROCESS_ADDRESS = IPv4Address("127.0.0.11")


def build_request(
    inventory: Inventory, options: LaunchOptions, earlier: Plan | None, own_environment: Mapping[str, str]
) -> LaunchRequest:
    """The request; what is not said on the command line of a resumed run is as it was (`earlier`)."""
    command = options.command or (earlier.command if earlier else DEFAULT_COMMAND)
    own_code = brings_own_code(command)
    workdir = options.workdir or (Path() if own_code and not earlier else None)
    if workdir and not own_code:
        raise UsageError(
            f"--workdir is for code of yours, and {command[0]} is a workload of the trainer",
            hint="orch launch --workdir ./mine -- python train.py   # what a workload reads: --data, or --mount",
        )
    if workdir and not workdir.is_dir():
        raise ConfigError(f"--workdir {workdir} is not a folder")
    node_timeout_s = _first(options.node_timeout_s, earlier and earlier.node_timeout_s, NODE_TIMEOUT_S)
    data = options.data or (None if earlier else default_data())
    assigned = dict(map(_assignment, options.environment))
    hint_at_secrets(assigned)
    request = LaunchRequest(
        project=inventory.project,
        nodes=chosen_nodes(inventory, options, earlier),
        command=command,
        profile=_profile(options.profile or (earlier.profile if earlier else "")),
        master_port=options.master_port or inventory.master_port,
        exact_port=options.master_port is not None,
        master=options.master,
        own_code=bool(workdir) or bool(earlier and earlier.own_code),
        workdir=workdir,
        data=data,
        mounts=tuple(map(_mount, options.mounts)) or (earlier.mounts if earlier else ()),
        environment={
            **{key: own_environment[key] for key in LANGUAGE if own_environment.get(key)},
            **(known_again(earlier, assigned, own_environment) if earlier else {}),
            **assigned,
        },
        secrets=asked_secrets(options, earlier),
        max_restarts=_first(options.max_restarts, earlier and earlier.max_restarts, MAX_RESTARTS),
        node_timeout_s=node_timeout_s,
        min_nodes=_first(options.min_nodes, earlier and earlier.min_nodes, 0),
        replicas=_first(options.replicas, earlier and earlier.replicas, REPLICAS),
        absence_s=max(ABSENCE_S, node_timeout_s + 60),
    )
    return _with_content(request, earlier)


def chosen_nodes(inventory: Inventory, options: LaunchOptions, earlier: Plan | None) -> tuple[NodeSpec, ...]:
    """The nodes of the run: those named, else those that an earlier attempt had."""
    names = ",".join(part.node for part in earlier.nodes) if earlier else None
    return select_nodes(inventory, nodes=options.nodes or names, labels=options.labels)


def _with_content(request: LaunchRequest, earlier: Plan | None) -> LaunchRequest:
    """What code and data are, and where they lie here: as said now, else as they were when the run was launched."""
    if earlier:
        request = replace(
            request,
            code_digest=earlier.code_digest,
            code_origin=earlier.code_origin,
            data_digest=earlier.data_digest,
            data_origin=earlier.data_origin,
        )
    if code := request.workdir:
        request = replace(request, code_digest=folder_digest(code), code_origin=str(code.resolve()))
    if data := request.data:
        request = replace(request, data_digest=folder_digest(data), data_origin=str(data.resolve()))
    return request


def _first(*values: int | Plan | None) -> int:
    """As it is said, else as it was, else as most would want it."""
    return next(value for value in values if isinstance(value, int))


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
        raise UsageError(f"--env {key}: expected KEY=VALUE")
    return key, value
