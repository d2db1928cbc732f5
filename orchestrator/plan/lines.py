"""The plan as lines that a person can paste: `--dry-run` prints what a launch would do, `docker run …` with it."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.run_folder import AGENTS_TOKEN
from orchestrator.specs.container import MIB, ContainerSpec
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.secret import Secret, is_sensitive

Words = Callable[[Any], Iterable[str]]
"""Words of a command line for a value."""
_HOME = "\0"
"""Mark for a home that is not known: no word of a command line contains it."""


def plan_lines(plan: Plan, nodes: dict[str, NodeSpec]) -> Iterator[str]:
    """Comments and commands, node by node in order of rank."""
    yield f"# run {plan.run_id}: {plan.nnodes} nodes, {plan.world_size} ranks, {plan.backend}"
    yield f"# master {plan.master} {plan.master_addr}:{plan.master_port}"
    for note in plan.notes:
        yield f"# note: {note}"
    if hidden := sorted(name for name, value in plan.environment.items() if is_sensitive(name, value)):
        yield f"# values not shown, and taken from your shell by these lines: {', '.join(hidden)}"
    several = plan.nnodes > 1
    yield from _other_steps(plan, nodes.values())
    if several:
        yield "# the agents' token: new for each attempt, the same on all nodes"
        yield "token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')"
    for part in plan.nodes:
        way = f" by {part.interface}" if part.interface else ""
        yield f"# rank {part.first_rank}: {part.node} ({part.device}{way})"
        yield from node_lines(part, nodes[part.node], plan.run_id, plan.secrets, with_token=several)


def _other_steps(plan: Plan, nodes: Iterable[NodeSpec]) -> Iterator[str]:
    """Comments on what a launch does besides these lines; a path is written as a literal, so that it stays one line."""
    folder = f"runs/{plan.run_id}"
    yield f"# on each node, a launch also writes this plan to {folder}/plan.json (--dry-run --json prints it)"
    if plan.code_digest:
        yield f"# and copies code {plan.code_digest} from {plan.code_origin!r} to {folder}/code"
    for one in plan.data:
        name = one.digest if not one.parts else "NAME, its own part"
        yield f"# and copies data {one.digest} from {one.origin!r} to data/{name}, if missing"
        for link, target in one.links(plan.run_id, "").items():
            yield f"# and makes {link!r} a link to {target!r}"
    if plan.agent_digest:
        yield f"# and copies orch's agent to agent/{plan.agent_digest}, if missing: {plan.image} has none"
    if any(node.engine != "process" for node in nodes):
        name = plan.nodes[0].container.name
        yield f"# and renames a container {name} of an ended run to {name}-RUN.ATTEMPT-ID, and turns its restarts off"


def node_lines(
    part: NodePlan, node: NodeSpec, run_id: str, secrets: Sequence[Secret], *, with_token: bool
) -> Iterator[str]:
    """Yield the commands for one node. `with_token`: pass on the shell variable `token`."""
    folders = " ".join(_path(f"{part.folder}/{inner}") for inner in ("data", f"runs/{run_id}/code"))
    of_secrets = part.container.labels.get(LABEL_SECRETS, "")
    container = _marked(part)
    if node.engine == "process" or node.connection == "local":
        yield f"mkdir -p {folders}"
        yield from _token_lines(part, run_id, ["sh", "-c"] if with_token else [])
        yield from _secret_lines(secrets, of_secrets, ["sh", "-c"])
        is_process = node.engine == "process"
        yield _joined(process_words(container) if is_process else ["docker", *run_words(container)], "HOME")
        return
    # The inventory's own word: it may be a Host of ~/.ssh/config, with a port of its own.
    target = f"{node.user}@{node.address}" if node.user else node.address
    with_port = "port" in node.model_fields_set
    reach = [*(["-p", str(node.port)] if with_port else []), *(["-i", node.identity] if node.identity else [])]
    jump = ["-J", node.jump] if node.jump else []
    yield shlex.join(["ssh", *reach, *jump, target, f"mkdir -p {folders}"])
    yield from _token_lines(part, run_id, ["ssh", *reach, *jump, target] if with_token else [])
    yield from _secret_lines(secrets, of_secrets, ["ssh", *reach, *jump, target])
    if part.folder.startswith("~/"):  # this shell would put its own home in the place of the node's
        ask = shlex.join(["ssh", *reach, *jump, target, 'printf %s "$HOME"'])
        yield f"home=$({ask})"
    place = f"ssh://{target}:{node.port}" if with_port else f"ssh://{target}"
    yield _joined(["docker", "-H", place, *run_words(container)], "home")


def _token_lines(part: NodePlan, run_id: str, reach: Sequence[str]) -> Iterator[str]:
    """printf is a builtin of the shell: no list of processes shows what it prints."""
    if reach:
        file = _path(f"{part.folder}/runs/{run_id}/{AGENTS_TOKEN}")
        yield f'printf %s "$token" | {shlex.join([*reach, f"umask 077 && cat > {file}"])}'


def _secret_lines(secrets: Sequence[Secret], folder: str, reach: Sequence[str]) -> Iterator[str]:
    """The commands that write them on the node; `reach`: `ssh …`, or `sh -c` on this computer."""
    for secret in secrets:
        file = shlex.quote(f"{folder}/{secret.name}")
        keep = shlex.join([*reach, f"umask 077 && mkdir -p {shlex.quote(folder)} && cat > {file} && chmod 400 {file}"])
        yield f"{keep} < {shlex.quote(secret.file)}" if secret.file else f'printf %s "${secret.name}" | {keep}'


def process_words(spec: ContainerSpec) -> tuple[str, ...]:
    """The command of a node that is a process, with its folder and environment."""
    host = on_host(spec)
    return (
        "env",
        "-C",
        host.working_dir,
        *(f"{key}={value}" for key, value in host.environment.items() if not is_sensitive(key, value)),
        *host.command,
    )


def _marked(part: NodePlan) -> ContainerSpec:
    """Return the container with a mark for the home of its folders, where the node was not asked for its home."""
    if not part.folder.startswith("~/"):
        return part.container
    mounts = (
        replace(mount, source=_HOME + mount.source[1:]) if f"{mount.source}/".startswith(f"{part.folder}/") else mount
        for mount in part.container.mounts
    )
    return replace(part.container, mounts=tuple(mounts))


def _joined(words: Sequence[str], home: str) -> str:
    """One line for a shell, each word quoted; `home` names the variable that stands for the marked home."""
    split = (word.partition(_HOME) for word in words)
    return " ".join(
        f'{shlex.quote(before) if before else ""}"${home}"{shlex.quote(after)}' if mark else shlex.quote(before)
        for before, mark, after in split
    )


def _path(path: str) -> str:
    """Quoted, but with a leading `~` left for the node's shell."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def run_words(spec: ContainerSpec) -> tuple[str, ...]:
    """`docker run …` for `spec.create_arguments()`; docker takes sensitive values from its own environment.

    KeyError: the arguments have a key that no option is known for.
    """
    return ("run", "--detach", "--name", spec.name, *_option_words(spec))


def job_words(spec: ContainerSpec, variables: Sequence[str]) -> tuple[str, ...]:
    """Words after `run` for a job of a scheduler: in the foreground, without a name, which jobs on one machine would
    share, and without a log of its own. `variables`: those of the job that the container gets as they are."""
    passed = (word for name in variables for word in ("--env", name))
    return ("--interactive", "--log-driver", "none", *passed, *_option_words(spec, without=("LogConfig",)))


def _option_words(spec: ContainerSpec, *, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Options, image and command for `spec.create_arguments()`."""
    asked = spec.create_arguments()
    image, command, host = asked.pop("Image"), asked.pop("Cmd"), asked.pop("HostConfig")
    options = ((key, value) for key, value in (*host.items(), *asked.items()) if key not in without)
    return (*(word for key, value in options for word in _OPTIONS[key](value)), image, *command)


def _option(name: str) -> Words:
    return lambda value: (name, str(value))


def _switch(name: str) -> Words:
    return lambda value: (name,) if value else ()


def _mebibytes(name: str) -> Words:
    return lambda value: (name, f"{value // MIB}m")


def _restart(policy: Mapping[str, Any]) -> Sequence[str]:
    return () if policy["Name"] == "no" else ("--restart", f"{policy['Name']}:{policy['MaximumRetryCount']}")


def _each(name: str, text: Callable[[Any], str] = str) -> Words:
    """An option for each element of a list, or for each pair of a mapping."""
    return lambda values: (
        word for value in (values.items() if isinstance(values, Mapping) else values) for word in (name, text(value))
    )


def _variable(text: str) -> str:
    name, _, value = text.partition("=")
    return name if is_sensitive(name, value) else text


def _mount(mount: Mapping[str, Any]) -> str:
    """`--mount` takes a line of CSV: unlike `--volume`, as strict as the engine about a folder that does not exist."""
    line = io.StringIO()
    fields = ["type=bind", f"source={mount['Source']}", f"target={mount['Target']}"]
    csv.writer(line, lineterminator="").writerow([*fields, "readonly"] if mount["ReadOnly"] else fields)
    return line.getvalue()


_OPTIONS: Mapping[str, Words] = {
    "NetworkMode": _option("--network"),
    "Init": _switch("--init"),
    "ReadonlyRootfs": _switch("--read-only"),
    "Tmpfs": _each("--tmpfs", ":".join),
    "CapDrop": _each("--cap-drop"),
    "SecurityOpt": _each("--security-opt"),
    "Mounts": _each("--mount", _mount),
    "NanoCpus": lambda value: ("--cpus", f"{value / 1e9:.9f}".rstrip("0").rstrip(".")),
    "Memory": _mebibytes("--memory"),
    "MemoryReservation": _mebibytes("--memory-reservation"),
    "ShmSize": _mebibytes("--shm-size"),
    "PidsLimit": _option("--pids-limit"),
    "Ulimits": _each("--ulimit", lambda limit: f"{limit['Name']}={limit['Soft']}:{limit['Hard']}"),
    "RestartPolicy": _restart,
    "AutoRemove": _switch("--rm"),
    "LogConfig": lambda log: ("--log-driver", log["Type"], *_each("--log-opt", "=".join)(log["Config"])),
    "DeviceRequests": _each("--gpus", lambda _: "all"),
    "Entrypoint": lambda words: ("--entrypoint", " ".join(words)),
    "Env": _each("--env", _variable),
    "Labels": _each("--label", "=".join),
    "User": _option("--user"),
    "WorkingDir": _option("--workdir"),
    "StopTimeout": _option("--stop-timeout"),
}
"""Options of `docker run` for the keys of the Engine's `POST /containers/create`."""
