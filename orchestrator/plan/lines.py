"""The plan as lines that a person can paste: `--dry-run` prints what a launch would do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from contract.run_folder import AGENTS_TOKEN
from orchestrator.plan.docker_run import run_words
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.secret import Secret, is_sensitive

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
        yield f"# rank {part.first_rank}: {part.node} ({part.device}{_by(part)})"
        yield from node_lines(part, nodes[part.node], plan.run_id, plan.secrets, with_token=several)


def _other_steps(plan: Plan, nodes: Iterable[NodeSpec]) -> Iterator[str]:
    """Comments on what a launch does besides these lines; a path is written as a literal, so that it stays one line."""
    folder = f"runs/{plan.run_id}"
    yield f"# on each node, a launch also writes this plan to {folder}/plan.json (--dry-run --json prints it)"
    if plan.code_digest:
        yield f"# and copies code {plan.code_digest} from {plan.code_origin!r} to {folder}/code"
    if plan.data_digest:
        yield f"# and copies data {plan.data_digest} from {plan.data_origin!r} to data/{plan.data_digest}, if missing"
    if any(node.engine != "process" for node in nodes):
        name = plan.nodes[0].container.name
        yield f"# and renames a container {name} of an ended run to {name}-RUN.ATTEMPT-ID, and turns its restarts off"


def node_lines(
    part: NodePlan, node: NodeSpec, run_id: str, secrets: Sequence[Secret], *, with_token: bool
) -> Iterator[str]:
    """Yield the commands for one node. `with_token`: pass on the shell variable `token`."""
    folders = " ".join(_path(f"{part.folder}/{inner}") for inner in ("Data", "data", f"runs/{run_id}/code"))
    of_secrets = part.container.labels.get(LABEL_SECRETS, "")
    container = _marked(part)
    if node.engine == "process" or node.connection == "local":
        yield f"mkdir -p {folders}"
        yield from _token_lines(part, run_id, ["sh", "-c"] if with_token else [])
        yield from _secret_lines(secrets, of_secrets, ["sh", "-c"])
        is_process = node.engine == "process"
        yield _joined(process_words(container) if is_process else ["docker", *run_words(container)], "HOME")
        return
    target = f"{node.user}@{part.address}" if node.user else part.address
    reach = [*(["-p", str(node.port)] if node.port != 22 else []), *(["-i", node.identity] if node.identity else [])]
    jump = ["-J", node.jump] if node.jump else []
    yield shlex.join(["ssh", *reach, *jump, target, f"mkdir -p {folders}"])
    yield from _token_lines(part, run_id, ["ssh", *reach, *jump, target] if with_token else [])
    yield from _secret_lines(secrets, of_secrets, ["ssh", *reach, *jump, target])
    if part.folder.startswith("~/"):  # this shell would put its own home in the place of the node's
        ask = shlex.join(["ssh", *reach, *jump, target, 'printf %s "$HOME"'])
        yield f"home=$({ask})"
    yield _joined(["docker", "-H", f"ssh://{target}:{node.port}", *run_words(container)], "home")


def _token_lines(part: NodePlan, run_id: str, reach: Sequence[str]) -> Iterator[str]:
    """printf is the shell's own, so that no list of processes shows what it prints."""
    if reach:
        file = _path(f"{part.folder}/runs/{run_id}/{AGENTS_TOKEN}")
        yield f'printf %s "$token" | {shlex.join([*reach, f"umask 077 && cat > {file}"])}'


def _secret_lines(secrets: Sequence[Secret], folder: str, reach: Sequence[str]) -> Iterator[str]:
    """The commands that hand them over, for a person to paste; `reach` brings the node's part there: `ssh …`, or `sh
    -c` here. printf is the shell's own, so that no list of processes shows what it prints."""
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


def _by(part: NodePlan) -> str:
    return f" by {part.interface}" if part.interface else ""


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
