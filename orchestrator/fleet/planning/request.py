"""Build the request and the identity of a run from the inventory, the options and an earlier attempt."""

from __future__ import annotations

import getpass
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

from contract.data_parts import MANIFEST, divide
from orchestrator.fleet.planning.data import chosen_data, read_data
from orchestrator.fleet.runs.code_files import agent_digest, code_digest
from orchestrator.specs.data import DataFolder, in_code
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory import Inventory, NodeSpec
from orchestrator.specs.launch_options import LANGUAGE, OFFLINE, LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest, RunIdentity
from orchestrator.specs.secret import is_sensitive
from orchestrator.specs.secret_forms import REDACTED
from orchestrator.specs.selection import select_nodes
from orchestrator.store.run_record import RunRecord, new_claim

FIRST_PROCESS_ADDRESS = IPv4Address("127.0.0.11")


def build_request(
    inventory: Inventory,
    options: LaunchOptions,
    earlier: Plan | None,
    own_environment: Mapping[str, str],
    notify: Callable[[str], object] = lambda _note: None,
) -> LaunchRequest:
    """Return the request; a resumed run keeps the settings of its `earlier` attempt that the options do not give.

    `own_environment` is the caller's (`os.environ`): its language variables are passed to the containers. `notify`
    receives a note about each variable in the options that looks like a secret, and progress while data is read.
    UsageError: options that exclude each other; ConfigError: an unknown node, or a folder that does not exist.
    """
    program = options.program_after(earlier.program if earlier else None)
    workdir = options.workdir or (Path() if program.brings_own_code and not earlier else None)
    if workdir and not program.brings_own_code:
        raise UsageError(
            f"--workdir is for code of yours, and {program.words[0]} is a workload of the trainer",
            hint="orch launch --workdir ./mine -- python train.py   # what a workload reads: --data, or --mount",
        )
    if workdir and not workdir.is_dir():
        raise ConfigError(f"--workdir {workdir} is not a folder")
    _note_secrets(options, program.words, notify)
    resolved = options.resolved(earlier)
    before = dict(earlier.environment) if earlier else {}
    for name in [name for name, value in before.items() if value == REDACTED and name not in options.environment]:
        before[name] = own_environment.get(name) or REDACTED  # no plan holds the value
    all_secrets = (*(earlier.secrets if earlier else ()), *options.secrets)
    settings = {
        **resolved.settings(),
        "environment": {**language_of(own_environment), **before, **_offline(options, notify), **options.environment},
        "secrets": tuple({secret.name: secret for secret in all_secrets}.values()),
        "image": _image(inventory, options, earlier),
    }
    request = LaunchRequest(
        **settings,
        project=inventory.project,
        nodes=chosen_nodes(inventory, options, earlier),
        command=program.words,
        attempt_options=options.attempt_words(),
        master_port=options.master_port or inventory.master_port,
        exact_port=options.master_port is not None,
        master=options.master,
        downloads=options.fetch_once,
        own_code=bool(workdir) or bool(earlier and earlier.own_code),
        workdir=workdir,
        absence_s=resolved.absence_limit_s,
        agent_digest=agent_digest() if settings["image"] else "",
    )
    request = _with_content(request, chosen_data(options, earlier), earlier, notify)
    return _divided(request, asked=options.shard)


def _note_secrets(options: LaunchOptions, command: Sequence[str], notify: Callable[[str], object]) -> None:
    for name in (name for name, value in options.environment.items() if is_sensitive(name, value)):
        notify(f"note: whoever may use Docker on a node can read {name}, by docker inspect\n  → --secret {name}")
    if any(is_sensitive("", word) for word in command):
        notify(
            "note: the command holds a secret, which the plan keeps and everyone on a node can read"
            "\n  → --secret NAME, and the script reads the file that NAME_FILE names"
        )


def language_of(own_environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the caller's language."""
    return {name: own_environment[name] for name in LANGUAGE if own_environment.get(name)}


def _image(inventory: Inventory, options: LaunchOptions, earlier: Plan | None) -> str:
    """Return the image that orch has not built; empty: its own. UsageError: no node runs containers."""
    image = options.image or (earlier.image if earlier else inventory.image.reference or "")
    if any(spec.engine == "docker" for spec in inventory.nodes):
        return image
    if options.image:
        raise UsageError(f"--image {image} needs containers, and the nodes are processes (engine: process)")
    return ""


def chosen_nodes(inventory: Inventory, options: LaunchOptions, earlier: Plan | None) -> tuple[NodeSpec, ...]:
    """Return the chosen nodes, or those of the earlier attempt where none are chosen."""
    names = ",".join(part.node for part in earlier.nodes) if earlier else None
    return select_nodes(inventory, options.nodes or names)


def _offline(options: LaunchOptions, notify: Callable[[str], object]) -> Mapping[str, str]:
    """Variables that keep the libraries from asking a server; empty if they may."""
    if options.fetch_once and not options.offline:
        against = " ".join(f"--env {name}=0" for name in OFFLINE)
        notify(f"note: --fetch-once implies --offline\n  → {against}   # to ask the server all the same")
    return OFFLINE if options.offline or options.fetch_once else {}


def _with_content(
    request: LaunchRequest, data: Sequence[DataFolder], earlier: Plan | None, notify: Callable[[str], object]
) -> LaunchRequest:
    """Add content and folder of code and data: those given now, or those of the earlier attempt."""
    code = request.workdir
    if earlier:
        request = replace(request, code_digest=earlier.code_digest, code_origin=earlier.code_origin)
    beside = Path(request.code_origin) if request.code_origin else code
    given = [one for one in data if not one.digest]
    read = read_data(given, beside if request.program.trains_own_code else None, request.nodes, notify)
    new = {one.name: one for one in read}
    folders = {one.digest: Path(one.origin) for one in read}
    request = replace(request, data=tuple(new.get(one.name, one) for one in data))
    if code:
        digest = code_digest(code, in_code(request.data))
        folders[digest] = code
        request = replace(request, code_digest=digest, code_origin=str(code.resolve()))
    return replace(request, folders=folders)


def _divided(request: LaunchRequest, *, asked: bool) -> LaunchRequest:
    """Return the request with the nodes in the order of their parts of the data; each gets all of it if there are none.

    A resumed run keeps the parts of its earlier attempt while each of its nodes has one. UsageError, ConfigError: the
    data cannot be divided.
    """
    first = next(iter(request.data), None)
    names = tuple(sorted(spec.name for spec in request.nodes))
    recorded = first.parts if first else ()
    if not asked and set(recorded) >= set(names if recorded else ()):
        return request
    again = "launch without --shard: every node then gets all of the data"
    if request.program.trains_own_code:
        raise UsageError("--shard divides the data of a workload; code of yours reads its own", hint=again)
    if first is None or not first.origin:
        raise UsageError("--shard divides prepared data, and there is no ./Data", hint="give it: --data DIR")
    try:
        divide(json.loads((Path(first.origin) / MANIFEST).read_text("utf-8")), len(names))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{first.origin} cannot be divided among {len(names)} nodes: {error}", hint=again) from error
    return replace(request, data=(replace(first, parts=names if len(names) > 1 else ()), *request.data[1:]))


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


def new_identity(name: str = "", earlier: Plan | None = None) -> RunIdentity:
    """Return the identity of a new run, or of the next attempt of `earlier`. `name` begins the id.

    UsageError: a name with other characters than small letters, digits and `-`.
    """
    now = datetime.now(UTC)
    attempt = max(earlier.attempt + 1, RunRecord(earlier.run_id).journal.next_number) if earlier else 0
    if name and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise UsageError(f"--name {name}: small letters, digits and - only")
    fresh = f"{name or now.strftime('%m%d-%H%M')}-{secrets.token_hex(2)}"
    return RunIdentity(
        run_id=earlier.run_id if earlier else fresh,
        user=getpass.getuser(),
        started_at=now.isoformat(timespec="seconds"),
        attempt=attempt,
        claim=new_claim(),
    )
