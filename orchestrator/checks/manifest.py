"""Values of a user that Kubernetes would refuse in a JobSet. Pure.

The form of a manifest is this project's own: tests compare it with the definition of the API. What a user gives, names
and texts, is checked here, before a file is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LONGEST_TEXT = 131071
"""Bytes of one argument or variable of a process on Linux (MAX_ARG_STRLEN, with its closing zero)."""
MOST_ANNOTATIONS = 256 * 1024
"""Bytes of all annotations of an object."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_TOO_LONG = f"longer than {LONGEST_TEXT} bytes, the most that a process takes"
_POD = "spec.replicatedJobs[0].template.spec.template.spec"


def refused_values(jobset: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every problem as `field: text`. Empty: there is none."""
    return tuple(f"{field}: {text}" for field, text in _problems(jobset))


def _problems(jobset: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    metadata = jobset["metadata"]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    namespace = metadata.get("namespace")
    if namespace is not None and not _LABEL.fullmatch(namespace):
        yield "metadata.namespace", f"{namespace!r} is no DNS label: at most 63 small letters, digits and -"
    if (
        size := sum(len(text.encode()) for pair in metadata["annotations"].items() for text in pair)
    ) > MOST_ANNOTATIONS:
        yield "metadata.annotations", f"{size} bytes, more than {MOST_ANNOTATIONS}"
    for index, volume in enumerate(pod["volumes"]):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and not _NAME.fullmatch(claim):
            field = f"{_POD}.volumes[{index}].persistentVolumeClaim.claimName"
            yield field, f"{claim!r} is no DNS name: small letters, digits, - and ."
    (container,) = pod["containers"]
    for index, word in enumerate(container["args"]):
        if len(word.encode()) > LONGEST_TEXT:
            yield f"{_POD}.containers[0].args[{index}]", _TOO_LONG
    yield from _variables(f"{_POD}.containers[0].env", container["env"])


def _variables(field: str, variables: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for index, variable in enumerate(variables):
        name = variable["name"]
        if not _VARIABLE.fullmatch(name):
            yield f"{field}[{index}].name", f"{name!r} is no name of a variable: letters of ASCII, digits, - _ ."
        if len(f"{name}={variable.get('value', '')}".encode()) > LONGEST_TEXT:
            yield f"{field}[{index}].value", _TOO_LONG
    for name, count in Counter(variable["name"] for variable in variables).items():
        if count > 1:
            yield field, f"name {name} occurs twice"
