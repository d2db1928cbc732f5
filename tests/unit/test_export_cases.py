"""Options in, manifest out: the whole text of each format, and what an API server would refuse.

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

import jsonschema
import pytest
import yaml

from orchestrator.checks.manifest import KINDS, facts_of_kind, manifest_problems
from orchestrator.checks.manifest_rules import LONGEST_TEXT
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


def kind_of(case: str) -> str:
    return case.partition("-")[0]


ON_KUBERNETES = [case for case in WORDS if kind_of(case) in KINDS]


@pytest.mark.parametrize("case", ON_KUBERNETES)
def test_golden_texts_are_valid_by_both_readers(case: str) -> None:
    assert manifest_problems(kind_of(case), golden(case)) == ()
    assert list(oracle(kind_of(case)).iter_errors(golden(case))) == []


def oracle(kind: str) -> jsonschema.Draft202012Validator:
    """The facts are a JSON Schema, but for lists whose elements differ in a field."""
    return jsonschema.Draft202012Validator(facts_of_kind(kind).schema)


# ── What is refused ───────────────────────────────────────────────────────────────────────────────────────────────────

JOB = "spec.replicatedJobs[0].template.spec"
POD = f"{JOB}.template.spec"
NODE = f"{POD}.containers[0]"
LONG = "x" * 64
GONE = type("Gone", (), {"__str__": lambda _: "without"})()

BROKEN_TYPES = [
    ("jobset", "spec.failurePolicy.maxRestarts", "3"),
    ("jobset", "spec.failurePolicy.maxRestarts", True),
    ("jobset", "spec.failurePolicy.maxRestarts", 2**31),
    ("jobset", "spec.failurePolicy.restartStrategy", "Blocking"),
    ("jobset", "spec.failurePolicy.rules[0].action", "FailJob"),
    ("jobset", "spec.replicatedJobs[0].name", GONE),
    ("jobset", "spec.replicatedJobs[0].replicas", -1),
    ("jobset", f"{JOB}.paralelism", 3),
    ("jobset", f"{JOB}.parallelism", 3.5),
    ("jobset", f"{JOB}.template", GONE),
    ("jobset", f"{JOB}.podFailurePolicy.rules[0].onExitCodes.values", ["1"]),
    ("jobset", f"{POD}.containers", GONE),
    ("jobset", f"{POD}.restartPolice", "Never"),
    ("jobset", f"{POD}.volumes[1].emptyDir", None),
    ("jobset", f"{NODE}.name", GONE),
    ("jobset", f"{NODE}.command", "python"),
    ("jobset", f"{NODE}.args[1]", 3),
    ("jobset", f"{NODE}.env[0].value", 3),
    ("jobset", f"{NODE}.env[0].values", "3"),
    ("jobset", f"{NODE}.resources.limits.memory", "4 GB"),
    ("jobset", f"{NODE}.resources.limits.cpu", 0.5),
    ("jobset", f"{NODE}.securityContext.capabilities.drop", {"ALL": True}),
    ("jobset", f"{NODE}.securityContext.runAsUser", "1000"),
    ("jobset", "metadata.name", GONE),
    ("jobset", "metadata.annotations", {"a": 1}),
    ("jobset", "apiVersion", "jobset.x-k8s.io/v1"),
    ("jobset", "kind", "Jobset"),
    ("jobset", "specs", {}),
]
"""Field, and a value that its type forbids."""
BROKEN_RULES = [
    ("jobset", "metadata.name", "1122-first", "spec.replicatedJobs[0].name"),
    ("jobset", "metadata.name", "x" * 50, "spec.replicatedJobs[0].name"),
    ("jobset", "metadata.name", LONG, "spec.replicatedJobs[0].name"),
    ("jobset", "metadata.namespace", "Ml", ""),
    ("jobset", "metadata.labels", {"orch.run_id": "a b"}, "metadata.labels[orch.run_id]"),
    ("jobset", "metadata.annotations", {"a": "x" * 262144}, ""),
    ("jobset", "spec.replicatedJobs[0].name", "Node", ""),
    ("jobset", "spec.replicatedJobs[0].groupName", "", ""),
    ("jobset", "spec.replicatedJobs[0].replicas", 2**31 - 1, ""),
    ("jobset", "spec.replicatedJobs[0].dependsOn", [{"name": "node", "status": "Ready"}], ""),
    ("jobset", "spec.network.subdomain", "9lives", ""),
    ("jobset", "spec.failurePolicy.rules[0].name", "1st", ""),
    ("jobset", "spec.failurePolicy.rules[0].onJobFailureReasons", ["Bored"], ""),
    ("jobset", "spec.failurePolicy.rules[0].targetReplicatedJobs", ["other"], ""),
    ("jobset", "spec.failurePolicy.rules[0].action", "RestartJob", ""),
    ("jobset", "spec.failurePolicy.restartStrategy", "InPlaceRestart", ""),
    ("jobset", f"{JOB}.completionMode", "indexed", ""),
    ("jobset", f"{JOB}.backoffLimit", -1, ""),
    ("jobset", f"{JOB}.podFailurePolicy.rules[0].action", "Fail", ""),
    ("jobset", f"{JOB}.podFailurePolicy.rules[0].onExitCodes.operator", "in", ""),
    ("jobset", f"{JOB}.podFailurePolicy.rules[0].onExitCodes.values", [0, 1], ""),
    ("jobset", f"{JOB}.podFailurePolicy.rules[0].onExitCodes.containerName", "other", ""),
    ("jobset", f"{POD}.restartPolicy", "Always", ""),
    ("jobset", f"{POD}.restartPolicy", "OnFailure", f"{JOB}.podFailurePolicy"),
    ("jobset", f"{POD}.volumes[0].persistentVolumeClaim.claimName", "my claim", f"{POD}.volumes[0].claimName"),
    ("jobset", f"{POD}.volumes[2].emptyDir.medium", "memory", ""),
    ("jobset", f"{POD}.volumes[2].hostPath", {"path": "/"}, f"{POD}.volumes[2]"),
    ("jobset", f"{POD}.volumes[1].name", "tmp.", ""),
    ("jobset", f"{NODE}.volumeMounts[0].name", "work", ""),
    ("jobset", f"{NODE}.volumeMounts[1].mountPath", "/workspace", f"{NODE}.volumeMounts"),
    ("jobset", f"{NODE}.name", "Node", ""),
    ("jobset", f"{NODE}.env[0].name", "1=x", ""),
    ("jobset", f"{NODE}.env[0].value", "x" * LONGEST_TEXT, ""),
    ("jobset", f"{NODE}.env[0].valueFrom", {"fieldRef": {"fieldPath": "spec.nodeName"}}, f"{NODE}.env[0]"),
    ("jobset", f"{NODE}.args[1]", "x" * (LONGEST_TEXT + 1), ""),
    ("jobset", f"{NODE}.resources.requests.memory", "5Gi", f"{NODE}.resources.requests[memory]"),
    ("jobset", f"{NODE}.resources.requests.cpu", "-1", f"{NODE}.resources[cpu]"),
]
"""Field, a value of its type that a rule forbids, and the field that is named where it is another one."""


def broken(kind: str, path: str, value: object) -> Any:
    """The golden manifest with this value of the field."""
    manifest = copy.deepcopy(golden(f"{kind}-cpu"))
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


@pytest.mark.parametrize(("kind", "path", "value"), BROKEN_TYPES, ids=str)
def test_a_wrong_type_is_refused_with_its_field(kind: str, path: str, value: object) -> None:
    manifest = broken(kind, path, value)
    problems = manifest_problems(kind, manifest)
    assert [problem for problem in problems if problem.startswith(path)], problems
    assert list(oracle(kind).iter_errors(manifest))


@pytest.mark.parametrize(("kind", "path", "value", "named"), BROKEN_RULES, ids=lambda value: str(value)[:60])
def test_a_broken_rule_is_refused_with_its_field(kind: str, path: str, value: object, named: str) -> None:
    manifest = broken(kind, path, value)
    problems = manifest_problems(kind, manifest)
    assert [problem for problem in problems if problem.startswith(f"{named or path}: ")], problems
    assert list(oracle(kind).iter_errors(manifest)) == []


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
def test_what_needs_two_fields_is_refused(change: Callable[[Any], None], problem: str) -> None:
    manifest = golden("jobset-cpu")
    change(manifest)
    assert manifest_problems("jobset", manifest) == (problem,)


# ── Where the facts are from ──────────────────────────────────────────────────────────────────────────────────────────

DIGESTS_OF_RULES = {"jobset": "e82b8fb5466d"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_rule_in_cel_is_written_in_python(kind: str) -> None:
    """Facts of a newer definition with other rules fail here: write these in manifest_rules.py, each with a mutant."""
    rules = json.dumps(facts_of_kind(kind).rules, sort_keys=True)
    assert hashlib.sha256(rules.encode()).hexdigest()[:12] == DIGESTS_OF_RULES[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_facts_name_their_source_and_hold_no_text_of_it(kind: str) -> None:
    schema = facts_of_kind(kind).schema
    assert len(schema["commit"]) == 40
    assert schema["licence"] == "Apache-2.0"
    assert '"description"' not in json.dumps(schema)
    assert facts_of_kind(kind).source.startswith(f"{schema['source']}, {schema['file']} of ")


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
