"""Options in, manifest out: the whole text of each case, and what an API server would refuse.

ORCH_WRITE_CASES=1 writes the texts again: read them before you commit.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.jobset_api import LONGEST_TEXT, SCHEMA, api_problems
from tests.unit.conftest import Orch

CASES = Path(__file__).parents[1] / "cases" / "export"
WORDS: dict[str, tuple[str, ...]] = {
    "jobset-cpu": ("jobset", "--nodes", "3", "--name", "first", "--", "gpt2", "--max-steps", "100"),
    "jobset-gpu": (
        "jobset", "--nodes", "2", "--cpus", "7.5", "--memory", "64g", "--gpus", "4", "--namespace", "ml",
        "--claim", "shared", "--image", "registry.example:5000/team/orch:cuda", "--name", "1122-gpu", "--attempt", "4",
        "--secret", "HF_TOKEN", "--secret", "DEPLOY=/home/ana/my key", "--env", "API_KEY=hush", "--env", "NOTE=a $(b)",
        "--hang-timeout", "10m", "--max-restarts", "5", "--", "python", "mine/train.py", "--text", "$HOME: 'no'",
    ),
    "jobset-one": ("jobset", "--nodes", "1", "--name", "alone", "--", "vision", "--epochs", "1"),
}  # fmt: skip


@pytest.mark.parametrize("case", WORDS)
def test_the_text_is_the_same_to_the_byte(orch: Orch, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    ran = orch("export", *WORDS[case])
    assert ran.code == 0, ran.err
    file = CASES / f"{case}.yaml"
    if os.environ.get("ORCH_WRITE_CASES"):
        file.write_text(ran.out)
    assert ran.out == file.read_text()
    assert "hush" not in ran.out


def golden(case: str) -> Any:
    return yaml.safe_load((CASES / f"{case}.yaml").read_text())


@pytest.mark.parametrize("case", WORDS)
def test_golden_texts_are_valid(case: str) -> None:
    assert api_problems(golden(case)) == []


# ── What the API refuses ──────────────────────────────────────────────────────────────────────────────────────────────

JOB = "spec.replicatedJobs[0].template.spec"
POD = f"{JOB}.template.spec"
NODE = f"{POD}.containers[0]"
LONG = "x" * 64
GONE = type("Gone", (), {"__str__": lambda _: "without"})()

BROKEN_TYPES = [
    ("spec.failurePolicy.maxRestarts", "3"),
    ("spec.failurePolicy.maxRestarts", True),
    ("spec.failurePolicy.maxRestarts", 2**31),
    ("spec.failurePolicy.restartStrategy", "Blocking"),
    ("spec.failurePolicy.rules[0].action", "FailJob"),
    ("spec.replicatedJobs[0].name", GONE),
    ("spec.replicatedJobs[0].replicas", -1),
    (f"{JOB}.paralelism", 3),
    (f"{JOB}.parallelism", 3.5),
    (f"{JOB}.template", GONE),
    (f"{JOB}.podFailurePolicy.rules[0].onExitCodes.values", ["1"]),
    (f"{POD}.containers", GONE),
    (f"{POD}.restartPolice", "Never"),
    (f"{POD}.volumes[1].emptyDir", None),
    (f"{NODE}.name", GONE),
    (f"{NODE}.command", "python"),
    (f"{NODE}.args[1]", 3),
    (f"{NODE}.env[0].value", 3),
    (f"{NODE}.env[0].values", "3"),
    (f"{NODE}.resources.limits.memory", "4 GB"),
    (f"{NODE}.resources.limits.cpu", 0.5),
    (f"{NODE}.securityContext.capabilities.drop", {"ALL": True}),
    (f"{NODE}.securityContext.runAsUser", "1000"),
    ("metadata.name", GONE),
    ("metadata.annotations", {"a": 1}),
    ("apiVersion", "jobset.x-k8s.io/v1"),
    ("kind", "Jobset"),
    ("specs", {}),
]
"""Field, and a value that its type forbids."""
BROKEN_RULES = [
    ("metadata.name", "1122-first", "spec.replicatedJobs[0].name"),
    ("metadata.name", "x" * 50, "spec.replicatedJobs[0].name"),
    ("metadata.name", LONG, "spec.replicatedJobs[0].name"),
    ("metadata.namespace", "Ml", ""),
    ("metadata.labels", {"orch.run_id": "a b"}, "metadata.labels[orch.run_id]"),
    ("metadata.annotations", {"a": "x" * 262144}, ""),
    ("spec.replicatedJobs[0].name", "Node", ""),
    ("spec.replicatedJobs[0].groupName", "", ""),
    ("spec.replicatedJobs[0].replicas", 2**31 - 1, ""),
    ("spec.replicatedJobs[0].dependsOn", [{"name": "node", "status": "Ready"}], ""),
    ("spec.network.subdomain", "9lives", ""),
    ("spec.failurePolicy.rules[0].name", "1st", ""),
    ("spec.failurePolicy.rules[0].onJobFailureReasons", ["Bored"], ""),
    ("spec.failurePolicy.rules[0].targetReplicatedJobs", ["other"], ""),
    ("spec.failurePolicy.rules[0].action", "RestartJob", ""),
    ("spec.failurePolicy.restartStrategy", "InPlaceRestart", ""),
    (f"{JOB}.completionMode", "indexed", ""),
    (f"{JOB}.backoffLimit", -1, ""),
    (f"{JOB}.podFailurePolicy.rules[0].action", "Fail", ""),
    (f"{JOB}.podFailurePolicy.rules[0].onExitCodes.operator", "in", ""),
    (f"{JOB}.podFailurePolicy.rules[0].onExitCodes.values", [0, 1], ""),
    (f"{JOB}.podFailurePolicy.rules[0].onExitCodes.containerName", "other", ""),
    (f"{POD}.restartPolicy", "Always", ""),
    (f"{POD}.restartPolicy", "OnFailure", f"{JOB}.podFailurePolicy"),
    (f"{POD}.volumes[0].persistentVolumeClaim.claimName", "my claim", f"{POD}.volumes[0].claimName"),
    (f"{POD}.volumes[2].emptyDir.medium", "memory", ""),
    (f"{POD}.volumes[2].hostPath", {"path": "/"}, f"{POD}.volumes[2]"),
    (f"{POD}.volumes[1].name", "tmp.", ""),
    (f"{NODE}.volumeMounts[0].name", "work", ""),
    (f"{NODE}.volumeMounts[1].mountPath", "/workspace", f"{NODE}.volumeMounts"),
    (f"{NODE}.name", "Node", ""),
    (f"{NODE}.env[0].name", "1=x", ""),
    (f"{NODE}.env[0].value", "x" * LONGEST_TEXT, ""),
    (f"{NODE}.env[0].valueFrom", {"fieldRef": {"fieldPath": "spec.nodeName"}}, f"{NODE}.env[0]"),
    (f"{NODE}.args[1]", "x" * (LONGEST_TEXT + 1), ""),
    (f"{NODE}.resources.requests.memory", "5Gi", f"{NODE}.resources.requests[memory]"),
    (f"{NODE}.resources.requests.cpu", "-1", f"{NODE}.resources[cpu]"),
]
"""Field, a value of its type that a rule forbids, and the field that is named where it is another one."""


def broken(path: str, value: object) -> Any:
    """The golden manifest with this value of the field."""
    manifest = copy.deepcopy(golden("jobset-cpu"))
    *places, last = path.replace("[", ".").replace("]", "").split(".")
    part: Any = manifest
    for place in places:
        part = part[int(place)] if isinstance(part, list) else part.setdefault(place, {})
    if value is GONE:
        del part[last]
    elif isinstance(part, list):
        part[int(last)] = value
    else:
        part[last] = value
    return manifest


@pytest.mark.parametrize(("path", "value"), BROKEN_TYPES, ids=str)
def test_a_wrong_type_is_found(path: str, value: object) -> None:
    assert api_problems(broken(path, value))


@pytest.mark.parametrize(("path", "value", "named"), BROKEN_RULES, ids=lambda value: str(value)[:60])
def test_a_broken_rule_is_found_with_its_field(path: str, value: object, named: str) -> None:
    problems = api_problems(broken(path, value))
    assert [problem for problem in problems if problem.startswith(f"{named or path}: ")], problems


def _both_orders(manifest: Any) -> None:
    manifest["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    second = {**manifest["spec"]["replicatedJobs"][0], "name": "second"}
    second["dependsOn"] = [{"name": "node", "status": "Ready"}]
    manifest["spec"]["replicatedJobs"].append(second)


def _claim_elsewhere(manifest: Any) -> None:
    manifest["spec"]["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": "a", "namespace": "b"}}]}]


def _variable_twice(manifest: Any) -> None:
    env = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    env.append(env[0])


def _rule_twice(manifest: Any) -> None:
    rules = manifest["spec"]["failurePolicy"]["rules"]
    rules.append(rules[0])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_both_orders, "spec.startupPolicy: InOrder and dependsOn exclude each other"),
        (_claim_elsewhere, "spec.volumeClaimPolicies[0].templates: a template has no namespace"),
        (_variable_twice, f"{NODE}.env: name NNODES occurs twice"),
        (_rule_twice, "spec.failurePolicy.rules: final occurs 2 times"),
    ],
)
def test_what_needs_two_fields_is_found(change: Callable[[Any], None], problem: str) -> None:
    manifest = golden("jobset-cpu")
    change(manifest)
    assert api_problems(manifest) == [problem]


# ── Where the facts are from ──────────────────────────────────────────────────────────────────────────────────────────

DIGEST_OF_RULES = "e82b8fb5466d"


def test_each_rule_in_cel_is_written_in_python() -> None:
    """Facts of a newer definition with other rules fail here: write these in jobset_api.py, each with a mutant."""
    rules = json.dumps(SCHEMA["rules"], sort_keys=True)
    assert hashlib.sha256(rules.encode()).hexdigest()[:12] == DIGEST_OF_RULES


def test_the_facts_name_their_source_and_hold_no_text_of_it() -> None:
    assert len(SCHEMA["commit"]) == 40
    assert SCHEMA["licence"] == "Apache-2.0"
    assert '"description"' not in json.dumps(SCHEMA)


SMALL = {
    "spec": {
        "group": "example.org",
        "names": {"kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "A thing.",
                        "properties": {
                            "apiVersion": {"type": "string"},
                            "kind": {"type": "string"},
                            "metadata": {"type": "object"},
                            "status": {"type": "object"},
                            "spec": {
                                "type": "object",
                                "x-kubernetes-validations": [{"rule": "self == oldSelf"}, {"rule": "has(self.size)"}],
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "format": "int32", "minimum": 1, "description": "Mm."},
                                    "memory": {
                                        "x-kubernetes-int-or-string": True,
                                        "anyOf": [{"type": "integer"}, {"type": "string"}],
                                        "pattern": "^[0-9]+Gi$",
                                    },
                                    "parts": {
                                        "type": "array",
                                        "maxItems": 2,
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                                    },
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                },
                            },
                        },
                    }
                },
            }
        ],
    }
}


def test_facts_of_a_definition() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "crd_facts.py"))
    facts = script["facts_of"](copy.deepcopy(SMALL), "v1")
    assert facts["rules"] == {"spec": [hashlib.sha256(b"has(self.size)").hexdigest()[:12]]}
    assert facts["properties"]["spec"] == {
        "type": "object",
        "required": ["size"],
        "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "memory": {"type": ["integer", "string"], "pattern": "^[0-9]+Gi$"},
            "parts": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False},
                "uniqueBy": ["name"],
            },
            "size": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        },
        "additionalProperties": False,
    }
    assert facts["properties"]["kind"] == {"const": "Thing"}
    assert "status" not in facts["properties"]
    written = json.loads(script["written"](facts, {"source": "example"}))
    assert written == {"source": "example", **facts}
