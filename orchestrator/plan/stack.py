"""A plan as a stack file of Docker Swarm: one service for each node, on its machine and its network. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from contract import environment
from contract.run_folder import AGENTS_TOKEN
from orchestrator.plan.container import SECRETS_INSIDE
from orchestrator.plan.pod import NOT_RUN, must_be_text
from orchestrator.specs.container import MIB, ContainerSpec
from orchestrator.specs.labels import LABEL_SECRETS, LABEL_STARTED
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.specs.secret import is_sensitive

HOST_NETWORK = "hostnet"
_OF_A_LAUNCH = (LABEL_STARTED, LABEL_SECRETS)
"""Labels of a container that orch itself has started."""
MINIMUM_OF_ENGINE = "20.10"


def stack(plan: Plan, images: Mapping[str, str], hostnames: Mapping[str, str]) -> dict[str, Any]:
    """The stack of `docker stack deploy`. `images`: name of the image by node, `hostnames`: the machine by node.

    `$` is doubled wherever Docker would replace a variable. ConfigError: a value that no container can get.
    """
    services = {
        f"rank{part.node_rank}": _service(plan, part, images[part.node], hostnames[part.node]) for part in plan.nodes
    }
    secrets = {name: {"external": True, "name": _secret(plan, name)} for name in _files(plan)}
    return {
        "version": "3.9",
        "services": services,
        "networks": {HOST_NETWORK: {"external": True, "name": "host"}},
        **({"secrets": secrets} if secrets else {}),
    }


def _service(plan: Plan, part: NodePlan, image: str, hostname: str) -> dict[str, Any]:
    spec = part.container
    for where, text in (*(("the command", word) for word in spec.command), *spec.environment.items()):
        must_be_text(where, text)
    uid, gid = spec.user.split(":")
    secrets = [{"source": name, "target": name, "uid": uid, "gid": gid, "mode": 0o400} for name in _files(plan)]
    token = {environment.TOKEN_FILE: f"{SECRETS_INSIDE}/{AGENTS_TOKEN}"} if plan.nnodes > 1 else {}
    service = {
        "image": image,
        "command": list(spec.command),
        "environment": {**spec.environment, **token, **({"NVIDIA_VISIBLE_DEVICES": "all"} if spec.gpus else {})},
        "working_dir": spec.working_dir,
        "user": spec.user,
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "stop_grace_period": f"{spec.stop_timeout_s}s",
        "networks": [HOST_NETWORK],
        "volumes": list(_volumes(spec)),
        **({"secrets": secrets} if secrets else {}),
        **({"ulimits": dict(spec.ulimits)} if spec.ulimits else {}),
        "labels": {name: value for name, value in spec.labels.items() if name not in _OF_A_LAUNCH},
        "logging": {
            "driver": "json-file",
            "options": {"max-size": spec.log_max_size, "max-file": str(spec.log_max_files)},
        },
        "deploy": {
            "replicas": 1,
            "placement": {"constraints": [f"node.hostname == {hostname}"]},
            "restart_policy": {"condition": "on-failure", "max_attempts": spec.restart_on_failure},
            "resources": {
                "limits": {"cpus": f"{spec.cpus:g}", "memory": f"{spec.memory_mib}M", "pids": spec.pids_limit},
                "reservations": {"memory": f"{spec.memory_reservation_mib}M"},
            },
        },
    }
    written: dict[str, Any] = _literal(service)
    for name, value in spec.environment.items():
        if is_sensitive(name, value):
            written["environment"][name] = f"${{{name}:?}}"  # from the environment of the one who deploys
    return written


def _volumes(spec: ContainerSpec) -> Iterator[dict[str, Any]]:
    """Long form: Swarm ignores `tmpfs:` and `shm_size:` of a service, and then nothing can be written to /tmp."""
    for mount in spec.mounts:
        if not mount.target.startswith(f"{SECRETS_INSIDE}/"):
            yield {"type": "bind", "source": mount.source, "target": mount.target, "read_only": mount.read_only}
    for target, size_mib in (("/tmp", spec.memory_mib), ("/dev/shm", spec.shm_mib)):  # noqa: S108  # in the container
        yield {"type": "tmpfs", "target": target, "tmpfs": {"size": size_mib * MIB}}


def stack_notes(plan: Plan, file: str) -> Iterator[str]:
    """Notes for whoever deploys the stack; lines that begin with two spaces are commands."""
    yield NOT_RUN
    yield f"for engines from {MINIMUM_OF_ENGINE} on that are one swarm; on a manager of it (bash):"
    for secret in plan.secrets:
        value = f"cat {shlex.quote(secret.file)}" if secret.file else f'printf %s "${secret.name}"'
        yield f"  {value} | docker secret create {_secret(plan, secret.name)} -"
    if plan.nnodes > 1:
        yield f"  od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' | docker secret create {_secret(plan, AGENTS_TOKEN)} -"
    yield f"  docker stack deploy --resolve-image never --compose-file {shlex.quote(file)} {plan.run_id}"
    yield "every machine has the image and the folder of the project (orch build, orch launch); Swarm copies neither"
    yield "Swarm drops: no-new-privileges; executable files in /tmp, which it mounts noexec"
    yield "Swarm drops: the lock that prevents two runs on one node"
    yield "Swarm restarts a run that failed by an error of its own code, too, as often as --max-restarts says"
    yield "docker stack rm removes the containers with their logs: docker service logs first"
    if any(part.container.gpus for part in plan.nodes):
        yield "Swarm drops: --gpus; the default runtime of each engine has to be nvidia"


def _files(plan: Plan) -> Iterator[str]:
    yield from (secret.name for secret in plan.secrets)
    if plan.nnodes > 1:
        yield AGENTS_TOKEN


def _secret(plan: Plan, name: str) -> str:
    """Name of a secret of the swarm, whose secrets all stacks share."""
    return f"{plan.run_id}-{name}"


def _literal(value: Any) -> Any:
    """The same data with each `$` doubled."""
    if isinstance(value, dict):
        return {key: _literal(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_literal(one) for one in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
