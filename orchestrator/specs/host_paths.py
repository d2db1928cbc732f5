"""Container paths translated to paths of the host, for a process without a container."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.specs.container import ContainerSpec, Mount


def on_host(spec: ContainerSpec) -> ContainerSpec:
    """The same spec for a plain process: paths under a mount's target become paths under its source.

    The working directory, the words of the command (`--option=PATH` too) and the values of the environment.
    """
    mounts = sorted(spec.mounts, key=lambda mount: len(mount.target), reverse=True)  # nested ones before their parents
    return replace(
        spec,
        command=tuple(_word(word, mounts) for word in spec.command),
        environment={key: host_path(value, mounts) for key, value in spec.environment.items()},
        working_dir=host_path(spec.working_dir, mounts),
    )


def host_path(text: str, mounts: list[Mount]) -> str:
    """A path under one of the mounts, longest target first; any other text as it is."""
    for mount in mounts:
        target = mount.target.rstrip("/")
        if text.rstrip("/") == target or text.startswith(f"{target}/"):
            return mount.source + text[len(target) :]
    return text


def _word(word: str, mounts: list[Mount]) -> str:
    option, equals, value = word.partition("=")
    return f"{option}={host_path(value, mounts)}" if equals and word.startswith("-") else host_path(word, mounts)
