"""The pod of a JobSet, and the notes at its top, from a plan. Pure.

Values are plain dictionaries and lists. `$` is doubled in words and values: Kubernetes replaces `$(NAME)` in them.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from contract import environment
from contract.failures.owners import EXIT_CODES
from contract.run_folder import AGENTS_TOKEN
from orchestrator.plan.command import CONTAINER_WORKSPACE
from orchestrator.plan.container import SECRETS_INSIDE
from orchestrator.plan.late_binding import late_bound, lost_variables, parts_of
from orchestrator.specs import labels
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import is_sensitive

JOB = CONTAINER = "node"
"""Name of the one job, and of the container of its pods."""
LABEL_OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
RESTARTS_LABEL = "jobset.sigs.k8s.io/restart-attempt"
NOT_RUN = "schema-checked, not run: no cluster has run this form yet"
FINAL_EXIT_CODES = tuple(sorted({2, *EXIT_CODES.values()} - {EXIT_CODES["done"], EXIT_CODES["stopped"]}))
"""Exit codes of an agent that has judged that another try does not help; 2 is that of words it does not take."""
USER = 1000
_OF_A_LAN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables of interfaces: a pod's only address is that of its name."""
WORKSPACE, SCRATCH, SHARED_MEMORY = "workspace", "tmp", "shm"


@dataclass(frozen=True, kw_only=True)
class ClusterPlace:
    """Names that a manifest takes from its cluster."""

    namespace: str = ""
    """Empty: that of the one who applies it."""
    claim: str = "orch-workspace"
    """Volume claim for data, code and checkpoints, which every pod mounts as /workspace: ReadWriteMany."""
    image: str = ""
    """Name by which the machines of the cluster pull the image; empty: that of the plan."""


def object_name(run_id: str) -> str:
    """Name of a run's JobSet and of its Secret: the id as a DNS-1035 label, a letter first, then small letters, digits
    and -. An id with other characters gets a digest of it: `a.b` and `a_b` are two runs, each with its Secret."""
    name = re.sub(r"[^a-z0-9-]+", "-", run_id.lower()).strip("-")
    if name != run_id:
        name = f"{name}-{hashlib.sha256(run_id.encode()).hexdigest()[:6]}"
    return name if name[:1].isalpha() else f"run-{name}"


def metadata(plan: Plan, place: ClusterPlace) -> dict[str, Any]:
    """Metadata of the object."""
    return {
        "name": object_name(plan.run_id),
        **({"namespace": place.namespace} if place.namespace else {}),
        "labels": run_labels(plan),
        "annotations": {labels.LABEL_COMMAND: shlex.join(plan.command)},
    }


def run_labels(plan: Plan) -> dict[str, str]:
    return {labels.LABEL_RUN: plan.run_id, labels.LABEL_PROJECT: plan.project}


def container_of(plan: Plan) -> ContainerSpec:
    """The container of every pod, bound by the agent in it: the machines of an export are equal. ConfigError: a value
    that no pod can get."""
    if problems := lost_variables(plan.environment):
        raise ConfigError(f"run {plan.run_id} cannot be a job of Kubernetes", problems=problems)
    own = plan.nodes[0].container
    here = {name: value for name, value in own.environment.items() if name not in _OF_A_LAN}
    options = ("--place", "kubernetes", "--port", str(plan.master_port), "--attempt-base", str(plan.attempt))
    spec = late_bound(replace(own, environment=here), *options)
    for where, text in (*(("the command", word) for word in spec.command), *spec.environment.items()):
        must_be_text(where, text)
    return spec


def command_and_args(spec: ContainerSpec) -> dict[str, list[str]]:
    """The agent as `command`, what it starts as `args`."""
    agent, started = parts_of(spec.command)
    return {"command": [_literal(word) for word in (*agent, "--")], "args": [_literal(word) for word in started]}


def variables(plan: Plan, spec: ContainerSpec) -> list[dict[str, Any]]:
    """Variables of the container; those with a name of a secret refer to the run's Secret."""
    return [
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": object_name(plan.run_id), "key": name}}}
            if is_sensitive(name, value)
            else {"name": name, "value": _literal(value)}
            for name, value in spec.environment.items()
        ),
        *([{"name": environment.TOKEN_FILE, "value": f"{SECRETS_INSIDE}/{AGENTS_TOKEN}"}] if plan.nnodes > 1 else []),
        {"name": environment.PEERS, "value": ",".join(peers(plan))},
        {
            "name": environment.RESTART_COUNT,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{RESTARTS_LABEL}']"}},
        },
    ]


def peers(plan: Plan) -> Iterator[str]:
    """DNS names of the pods by rank: JobSet gives a pod the same name at each restart."""
    name = object_name(plan.run_id)
    return (f"{name}-{JOB}-0-{rank}.{name}" for rank in range(plan.nnodes))


def resources(plan: Plan, spec: ContainerSpec) -> dict[str, Any]:
    """Requests equal to limits: a pod that uses more than it has requested is the first to be evicted."""
    part, cpus = plan.nodes[0], round(spec.cpus * 1000)
    amounts = {
        "cpu": str(cpus // 1000) if cpus % 1000 == 0 else f"{cpus}m",
        "memory": f"{spec.memory_mib}Mi",
        **({"nvidia.com/gpu": str(part.nproc_per_node)} if part.device == "cuda" else {}),
    }
    return {"requests": amounts, "limits": dict(amounts)}


def security_context() -> dict[str, Any]:
    """Least privilege, as on a LAN; Kubernetes' `restricted` profile admits it."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def volumes(plan: Plan, spec: ContainerSpec, place: ClusterPlace) -> list[dict[str, Any]]:
    """Volumes of the pod: the claim, scratch space, shared memory, and one for each file of the Secret."""
    secret = {"secretName": object_name(plan.run_id), "defaultMode": 0o440}
    return [
        {"name": WORKSPACE, "persistentVolumeClaim": {"claimName": place.claim}},
        {"name": SCRATCH, "emptyDir": {}},
        {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": f"{spec.shm_mib}Mi"}},
        *(
            {"name": name, "secret": {**secret, "items": [{"key": key, "path": key}]}}
            for name, key in _files(plan).items()
        ),
    ]


def volume_mounts(plan: Plan) -> list[dict[str, Any]]:
    """Secrets file by file: a folder over /run/secrets would hide the place of a service account's token."""
    files = (
        {"name": name, "mountPath": f"{SECRETS_INSIDE}/{key}", "subPath": key, "readOnly": True}
        for name, key in _files(plan).items()
    )
    return [
        {"name": WORKSPACE, "mountPath": CONTAINER_WORKSPACE},
        {"name": SCRATCH, "mountPath": "/tmp"},  # noqa: S108  # a path inside the container
        {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},  # noqa: S108
        *files,
    ]


def cluster_notes(plan: Plan, place: ClusterPlace, file: str) -> Iterator[str]:
    """Notes for whoever applies the manifest; lines that begin with two spaces are commands."""
    spec = container_of(plan)
    yield NOT_RUN
    kubectl = f"kubectl --namespace {place.namespace}" if place.namespace else "kubectl"
    if command := _secret_command(plan, spec, kubectl):
        yield "first make the Secret that it refers to (bash; no value is on a command line):"
        yield f"  {command}"
    yield "then:"
    yield f"  {kubectl} apply -f {shlex.quote(file)}"
    yield f"the claim {place.claim} has to be ReadWriteMany: every pod writes to it; data of workloads: folder Data"
    yield f"every machine pulls {place.image or spec.image}, which has to hold orch's agent (orch build)"
    if place.image == "":
        yield "that name is known where it was built alone: push it to a registry, and export with --image"
    if spec.ulimits:
        yield f"dropped: ulimits ({', '.join(spec.ulimits)}), which a pod cannot set; the container runtime can"
    yield "dropped: the limit on processes, which the kubelet has (podPidsLimit)"


def _secret_command(plan: Plan, spec: ContainerSpec, kubectl: str) -> str:
    """One line that makes the run's Secret; empty where it needs none."""
    files = {secret.name: secret.file for secret in plan.secrets}
    sensitive = {name: "" for name, value in spec.environment.items() if is_sensitive(name, value)}
    given = [
        f"--from-file={shlex.quote(f'{name}={file}')}" if file else f'--from-file={name}=<(printf %s "${name}")'
        for name, file in sorted({**sensitive, **files}.items())
    ]
    if plan.nnodes > 1:
        given.append(f"--from-file={AGENTS_TOKEN}=<(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')")
    return " ".join([kubectl, "create secret generic", object_name(plan.run_id), *given]) if given else ""


def _files(plan: Plan) -> dict[str, str]:
    """Keys of the Secret that are files in the container, by the name of the volume."""
    keys = {*(secret.name for secret in plan.secrets), *([AGENTS_TOKEN] if plan.nnodes > 1 else [])}
    return {f"secret-{number}": key for number, key in enumerate(sorted(keys))}


def _literal(text: str) -> str:
    return text.replace("$", "$$")


def must_be_text(where: str, text: str) -> None:
    """ConfigError: bytes that are no UTF-8, or a zero, which no process takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: {text!r} is not UTF-8, and a manifest is") from None
    if "\0" in text:
        raise ConfigError(f"{where}: {text!r} has a zero byte, which no process takes")
