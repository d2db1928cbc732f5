"""Input of JobSet's API: the types of its definition, closed, and the rules of webhooks, of CEL and of pods.

Types: the JSON Schema tests/cases/export/jobset.schema.json, made by scripts/crd_facts.py; a field that it lacks
is a problem, which an API server would drop silently. Rules: JobSet's webhook (kubernetes-sigs/jobset,
pkg/webhooks/jobset_webhook.go) at the commit that the schema names; the validation of pods as Kubernetes documents it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema

Problem = tuple[str, str]
SCHEMA = json.loads((Path(__file__).parent / "cases" / "export" / "jobset.schema.json").read_text("utf-8"))
LONGEST_LABEL = 63
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASONS = (
    "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy",
)  # fmt: skip
_MOST = 2**31 - 1
_POD_SUFFIX = "-abcde"
"""Random suffix of a pod's name, as the webhook takes it."""
LONGEST_TEXT = 131071
"""Bytes of one argument or variable of a process on Linux (MAX_ARG_STRLEN, with its closing zero)."""
MOST_ANNOTATIONS = 256 * 1024
"""Bytes of all annotations of an object."""
_SCALE = {
    **{unit: 10.0 ** (3 * power) for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)},
    **{unit: 2.0 ** (10 * power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
"""Factors of the suffixes of a quantity."""


def api_problems(manifest: Mapping[str, Any]) -> list[str]:
    """Every problem as `field: text`; rules are checked where the types are right. Empty: it is valid."""
    wrong = [f"{_path(error.absolute_path)}: {error.message}" for error in _TYPES.iter_errors(manifest)]
    if wrong:
        return wrong
    return [f"{path}: {text}" for path, text in (*_metadata(manifest["metadata"]), *_jobset(manifest))]


def _unique_by(_: object, keys: Sequence[str], items: Any, __: object) -> Iterator[jsonschema.ValidationError]:
    """Two elements of a list with the same values under these keys: a fact of definitions that JSON Schema has not."""
    seen = Counter(tuple(item.get(key) for key in keys) for item in items if isinstance(item, dict))
    for values in (values for values, count in seen.items() if count > 1):
        yield jsonschema.ValidationError(f"{', '.join(keys)} {', '.join(map(str, values))} occurs twice")


_TYPES = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"uniqueBy": _unique_by})(SCHEMA)


def _path(places: Iterable[int | str]) -> str:
    """Field path as Kubernetes writes it: `spec.replicatedJobs[0].name`."""
    return "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places).lstrip(".")


def _metadata(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    if "namespace" in metadata:
        yield from _label_1123("metadata.namespace", metadata["namespace"])
    for key, value in metadata.get("labels", {}).items():
        if not _LABEL.fullmatch(value):
            yield f"metadata.labels[{key}]", f"{value!r} is no value of a label: at most 63 letters, digits, - _ ."
    annotations = metadata.get("annotations", {})
    if (size := sum(len(part.encode()) for pair in annotations.items() for part in pair)) > MOST_ANNOTATIONS:
        yield "metadata.annotations", f"{size} bytes, more than {MOST_ANNOTATIONS}"


def _jobset(manifest: Mapping[str, Any]) -> Iterator[Problem]:
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    jobs = spec.get("replicatedJobs", [])
    for index, job in enumerate(jobs):
        yield from _replicated_job(f"spec.replicatedJobs[{index}]", name, job)
    if jobs and "dependsOn" in jobs[0]:
        yield "spec.replicatedJobs[0].dependsOn", "the first job cannot depend on another"
    if spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder" and any("dependsOn" in one for one in jobs):
        yield "spec.startupPolicy", "InOrder and dependsOn exclude each other"
    for index, policy in enumerate(spec.get("volumeClaimPolicies", [])):
        if any(one.get("metadata", {}).get("namespace") for one in policy.get("templates", [])):
            yield f"spec.volumeClaimPolicies[{index}].templates", "a template has no namespace"
    if subdomain := spec.get("network", {}).get("subdomain"):
        yield from _label_1035("spec.network.subdomain", subdomain)
    yield from _failure_policy(spec.get("failurePolicy", {}), {job["name"] for job in jobs})


def _replicated_job(path: str, jobset: str, job: Mapping[str, Any]) -> Iterator[Problem]:
    """Names of its jobs and pods, and its size. Kubernetes makes the names, with the largest index the longest."""
    replicas, spec = job.get("replicas", 1), job["template"].get("spec", {})
    yield from _label_1035(f"{path}.groupName", job.get("groupName", "default"))
    longest = f"{jobset}-{job['name']}-{replicas - 1}"
    if problem := _not_1035(longest):
        yield f"{path}.name", f"its jobs are called {longest}: {problem}"
    elif "completions" in spec and (problem := _not_1035(f"{longest}-{spec['completions'] - 1}{_POD_SUFFIX}")):
        yield f"{path}.name", f"its pods are called {longest}-{spec['completions'] - 1}{_POD_SUFFIX}: {problem}"
    if spec.get("parallelism", 1) * replicas > _MOST:
        yield f"{path}.replicas", f"replicas × parallelism is more than {_MOST}"
    yield from _job(f"{path}.template.spec", spec)


def _job(path: str, job: Mapping[str, Any]) -> Iterator[Problem]:
    """A Job of batch/v1."""
    mode, pod = job.get("completionMode", "Indexed"), job.get("template", {}).get("spec", {})
    if mode not in ("Indexed", "NonIndexed"):
        yield f"{path}.completionMode", f"{mode!r} is neither Indexed nor NonIndexed"
    for key in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        if job.get(key, 0) < 0:
            yield f"{path}.{key}", f"{job[key]} is less than 0"
    policy = pod.get("restartPolicy", "OnFailure")
    if policy not in ("Never", "OnFailure"):
        yield f"{path}.template.spec.restartPolicy", f"{policy!r}: a job's pods have Never or OnFailure"
    rules = job.get("podFailurePolicy", {}).get("rules", [])
    if rules and policy != "Never":
        yield f"{path}.podFailurePolicy", "it needs restartPolicy Never"
    names = {one["name"] for one in pod.get("containers", [])}
    for index, rule in enumerate(rules):
        yield from _exit_rule(f"{path}.podFailurePolicy.rules[{index}]", rule, names)
    yield from _pod(f"{path}.template.spec", pod)


def _exit_rule(path: str, rule: Mapping[str, Any], containers: set[str]) -> Iterator[Problem]:
    codes = rule.get("onExitCodes", {})
    if rule["action"] not in ("FailJob", "FailIndex", "Ignore", "Count"):
        yield f"{path}.action", f"{rule['action']!r} is no action"
    if codes and codes["operator"] not in ("In", "NotIn"):
        yield f"{path}.onExitCodes.operator", f"{codes['operator']!r} is neither In nor NotIn"
    if codes and (not codes["values"] or (codes["operator"] == "In" and 0 in codes["values"])):
        yield f"{path}.onExitCodes.values", "expected exit codes other than 0"
    if codes.get("containerName", next(iter(containers), "")) not in containers:
        yield f"{path}.onExitCodes.containerName", f"no container {codes['containerName']}"


def _pod(path: str, pod: Mapping[str, Any]) -> Iterator[Problem]:
    volumes = {one["name"] for one in pod.get("volumes", [])}
    for index, volume in enumerate(pod.get("volumes", [])):
        place = f"{path}.volumes[{index}]"
        yield from _label_1123(f"{place}.name", volume["name"])
        if len(volume) != 2:
            yield place, "expected one source"
        claim, secret = volume.get("persistentVolumeClaim", {}), volume.get("secret", {})
        for key, value in (("claimName", claim.get("claimName")), ("secretName", secret.get("secretName"))):
            if value is not None:
                yield from _name_1123(f"{place}.{key}", value)
        if volume.get("emptyDir", {}).get("medium", "") not in ("", "Memory"):
            yield f"{place}.emptyDir.medium", f"{volume['emptyDir']['medium']!r} is not Memory"
    for index, container in enumerate(pod.get("containers", [])):
        yield from _container(f"{path}.containers[{index}]", container, volumes)


def _container(path: str, container: Mapping[str, Any], volumes: set[str]) -> Iterator[Problem]:
    yield from _label_1123(f"{path}.name", container["name"])
    for index, mount in enumerate(container.get("volumeMounts", [])):
        if mount["name"] not in volumes:
            yield f"{path}.volumeMounts[{index}].name", f"no volume {mount['name']!r}"
    yield from _twice(f"{path}.volumeMounts", (one["mountPath"] for one in container.get("volumeMounts", [])))
    yield from _variables(f"{path}.env", container.get("env", []))
    yield from _words(path, container)
    yield from _resources(f"{path}.resources", container.get("resources", {}))


def _words(path: str, container: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("command", "args"):
        for index, word in enumerate(container.get(key, [])):
            if len(word.encode()) > LONGEST_TEXT:
                yield f"{path}.{key}[{index}]", f"longer than {LONGEST_TEXT} bytes, the most that a process takes"


def _variables(path: str, variables: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, variable in enumerate(variables):
        name = variable["name"]
        if not _VARIABLE.fullmatch(name):
            yield f"{path}[{index}].name", f"{name!r} is no name of a variable: letters of ASCII, digits, - _ ."
        if len(f"{name}={variable.get('value', '')}".encode()) > LONGEST_TEXT:
            yield f"{path}[{index}].value", f"longer than {LONGEST_TEXT} bytes, the most that a process takes"
        if "value" in variable and "valueFrom" in variable:
            yield f"{path}[{index}]", "either value or valueFrom"


def _resources(path: str, resources: Mapping[str, Any]) -> Iterator[Problem]:
    limits = resources.get("limits", {})
    for key, value in chain(limits.items(), resources.get("requests", {}).items()):
        if _amount(value) < 0:
            yield f"{path}[{key}]", f"{value} is less than 0"
    for key, value in resources.get("requests", {}).items():
        if key in limits and _amount(value) > _amount(limits[key]):
            yield f"{path}.requests[{key}]", f"{value} is more than the limit of {limits[key]}"


def _amount(quantity: int | str) -> float:
    number, unit = re.fullmatch(r"([-+.0-9eE]*[0-9.])([A-Za-z]*)", str(quantity)).groups()  # type: ignore[union-attr]
    return float(number) * _SCALE[unit]


def _failure_policy(policy: Mapping[str, Any], jobs: set[str]) -> Iterator[Problem]:
    rules = policy.get("rules", [])
    for index, rule in enumerate(rules):
        path = f"spec.failurePolicy.rules[{index}]"
        if not _RULE_NAME.fullmatch(rule["name"]) or len(rule["name"]) > 128:
            yield f"{path}.name", f"{rule['name']!r} is no name of a rule"
        if rule["action"].startswith("RestartJob") and not rule["action"].startswith("RestartJobSet"):
            yield f"{path}.action", "RestartJob needs a feature gate that clusters do not have by default"
        for job in rule.get("targetReplicatedJobs", []):
            if job not in jobs:
                yield f"{path}.targetReplicatedJobs", f"no job {job!r}"
        for reason in rule.get("onJobFailureReasons", []):
            if reason not in _REASONS:
                yield f"{path}.onJobFailureReasons", f"{reason!r} is no reason of a failed job"
    yield from _twice("spec.failurePolicy.rules", (rule["name"] for rule in rules))
    if policy.get("restartStrategy") == "InPlaceRestart":
        yield "spec.failurePolicy.restartStrategy", "InPlaceRestart needs a feature gate and another agent"


def _twice(path: str, names: Iterable[str]) -> Iterator[Problem]:
    for name, count in Counter(names).items():
        if count > 1:
            yield path, f"{name} occurs {count} times"


def _label_1035(path: str, name: str) -> Iterator[Problem]:
    if problem := _not_1035(name):
        yield path, problem


def _not_1035(name: str) -> str:
    """Return why the name is no label of RFC 1035; empty if it is one."""
    if not DNS_1035.fullmatch(name):
        return f"{name!r} is no DNS-1035 label: small letters, digits and -, a letter first"
    return f"{name!r} has {len(name)} characters, and a label at most {LONGEST_LABEL}" * (len(name) > LONGEST_LABEL)


def _label_1123(path: str, name: str) -> Iterator[Problem]:
    if not DNS_1123.fullmatch(name) or "." in name or len(name) > LONGEST_LABEL:
        yield path, f"{name!r} is no DNS label: at most {LONGEST_LABEL} small letters, digits and -"


def _name_1123(path: str, name: str) -> Iterator[Problem]:
    if not DNS_1123.fullmatch(name) or len(name) > 253:
        yield path, f"{name!r} is no DNS name: small letters, digits, - and ."
