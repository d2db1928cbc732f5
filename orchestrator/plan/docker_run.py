"""The `docker run` line of a container, made from what the engine is asked for."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.specs.container import MIB, ContainerSpec
from orchestrator.specs.secret import is_sensitive


def run_words(spec: ContainerSpec) -> tuple[str, ...]:
    """`docker run …` for `spec.create_arguments()`; docker takes sensitive values from its own environment.

    KeyError: the arguments have a key that no option is known for.
    """
    asked = spec.create_arguments()
    image, command, host = asked.pop("Image"), asked.pop("Cmd"), asked.pop("HostConfig")
    words = [word for key, value in (*host.items(), *asked.items()) for word in OPTIONS[key](value)]
    return ("run", "--detach", "--name", spec.name, *words, image, *command)


def _option(name: str) -> Callable[[Any], Iterator[str]]:
    def words(value: Any) -> Iterator[str]:
        yield from (name, str(value))

    return words


def _switch(name: str) -> Callable[[Any], Iterator[str]]:
    def words(value: Any) -> Iterator[str]:
        if value:
            yield name

    return words


def _each(name: str, text: Callable[[Any], str] = str) -> Callable[[Any], Iterator[str]]:
    """An option for each element of a list, or for each pair of a mapping."""

    def words(values: Any) -> Iterator[str]:
        for value in values.items() if isinstance(values, Mapping) else values:
            yield from (name, text(value))

    return words


def _mebibytes(name: str) -> Callable[[Any], Iterator[str]]:
    return lambda value: iter((name, f"{value // MIB}m"))


def _pair(pair: Sequence[str]) -> str:
    return "=".join(pair)


def _variable(text: str) -> str:
    name, _, value = text.partition("=")
    return name if is_sensitive(name, value) else text


def _mount(mount: Mapping[str, Any]) -> str:
    """`--mount` takes a line of CSV: unlike `--volume`, as strict as the engine about a folder that does not exist."""
    line = io.StringIO()
    fields = ["type=bind", f"source={mount['Source']}", f"target={mount['Target']}"]
    csv.writer(line, lineterminator="").writerow([*fields, "readonly"] if mount["ReadOnly"] else fields)
    return line.getvalue()


def _restart(policy: Mapping[str, Any]) -> Iterator[str]:
    if policy["Name"] != "no":
        yield from ("--restart", f"{policy['Name']}:{policy['MaximumRetryCount']}")


def _log(config: Mapping[str, Any]) -> Iterator[str]:
    yield from ("--log-driver", config["Type"], *_each("--log-opt", _pair)(config["Config"]))


def _gpus(requests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for _ in requests:
        yield from ("--gpus", "all")


OPTIONS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "NetworkMode": _option("--network"),
    "Init": _switch("--init"),
    "ReadonlyRootfs": _switch("--read-only"),
    "Tmpfs": _each("--tmpfs", ":".join),
    "CapDrop": _each("--cap-drop"),
    "SecurityOpt": _each("--security-opt"),
    "Mounts": _each("--mount", _mount),
    "NanoCpus": lambda value: iter(("--cpus", f"{value / 1e9:.9f}".rstrip("0").rstrip("."))),
    "Memory": _mebibytes("--memory"),
    "MemoryReservation": _mebibytes("--memory-reservation"),
    "ShmSize": _mebibytes("--shm-size"),
    "PidsLimit": _option("--pids-limit"),
    "Ulimits": _each("--ulimit", lambda limit: f"{limit['Name']}={limit['Soft']}:{limit['Hard']}"),
    "RestartPolicy": _restart,
    "AutoRemove": _switch("--rm"),
    "LogConfig": _log,
    "DeviceRequests": _gpus,
    "Env": _each("--env", _variable),
    "Labels": _each("--label", _pair),
    "User": _option("--user"),
    "WorkingDir": _option("--workdir"),
    "StopTimeout": _option("--stop-timeout"),
}
"""Options of `docker run` for the keys of the Engine's `POST /containers/create`."""
