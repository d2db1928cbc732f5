"""Launchers in the words after `--`: orch starts torchrun on each node, so the user's own launcher is left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from orchestrator.plan.command import SHELLS, is_shell_script, script_of
from orchestrator.specs.errors import UsageError

PYTHON = re.compile(r"python(3(\.\d+)?)?")
_OTHER_SHELLS = ("zsh", "fish", "ksh", "csh", "tcsh")
"""Shells that the image does not have."""
_TORCHRUN: Mapping[str, str] = {
    "nnodes": "--nodes of orch",
    "nproc-per-node": "nproc_per_node in inventory.yaml",
    "node-rank": "the order of --nodes",
    "master-addr": "--master of orch",
    "master-port": "--master-port of orch",
    "max-restarts": "--max-restarts of orch",
    **dict.fromkeys(("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "monitor-interval"), ""),
}
"""Options of torchrun that say what orch decides, and where to say it; empty: nowhere, orch sets it."""
_ACCELERATE: Mapping[str, str] = {
    "num-machines": "--nodes of orch",
    "num-processes": "nproc_per_node in inventory.yaml",
    "machine-rank": "the order of --nodes",
    "main-process-ip": "--master of orch",
    "main-process-port": "--master-port of orch",
    **dict.fromkeys(("num-cpu-threads-per-process", "rdzv-backend"), ""),
}
_SCRIPT_NOTE = (
    "note: a shell script runs once per node, and `torchrun train.py` in it needs no options: it finds nodes, ranks and"
    " addresses in its environment"
)
_SWITCHES = ("standalone", "multi-gpu")
"""Switches of both launchers that orch decides as well."""
_LAUNCHERS: Sequence[tuple[tuple[str, ...], Mapping[str, str]]] = (
    (("torchrun",), _TORCHRUN),
    (("python", "-m", "torch.distributed.run"), _TORCHRUN),
    (("python", "-m", "torch.distributed.launch"), _TORCHRUN),
    (("accelerate", "launch"), _ACCELERATE),
    (("python", "-m", "accelerate.commands.launch"), _ACCELERATE),
)


def without_launcher(command: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The command that each rank runs, and a note on what was left out; an empty one where nothing was.

    UsageError: a shell, or an option of a launcher that would change what runs.
    """
    words = list(command)
    if words and PYTHON.fullmatch(words[0]):
        words[0] = "python"  # the image has one
    elif words[:1] == ["-m"]:
        words.insert(0, "python")
    if words[:1] and words[0] in _OTHER_SHELLS:
        hint = shlex.join(["orch", "launch", "--", "bash", *words[1:]])
        raise UsageError(f"the image has no {words[0]}; it has bash and sh", hint=hint)
    if is_shell_script(words):
        if "/" not in words[0] and words[0] not in SHELLS:
            words[0] = f"./{words[0]}"  # a plain name would be looked for in the PATH
        script_of(words)
        return tuple(words), _SCRIPT_NOTE
    for launcher, known in _LAUNCHERS:
        if tuple(words[: len(launcher)]) == launcher:
            return _unwrapped(" ".join(launcher), words[len(launcher) :], known)
    return tuple(words), ""


def _unwrapped(launcher: str, words: list[str], known: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    dropped, module = [], False
    while words and words[0].startswith("-"):
        word = words.pop(0)
        option, equals, _ = word.partition("=")
        name = option.lstrip("-").replace("_", "-")
        if name in ("m", "module"):
            module = True
        elif name in _SWITCHES:
            dropped.append(word)
        elif name in known and (equals or words):
            said = word if equals else f"{word} {words.pop(0)}"
            dropped.append(f"{said} ({known[name]})" if known[name] else said)
        else:
            script = next((word for word in words if word.endswith(".py")), "train.py")
            raise UsageError(
                f"{launcher} {word}: orch starts torchrun itself, and does not know what this would change",
                hint=f"orch launch -- python {script}   # variables of the containers: --env KEY=VALUE",
            )
    if not words:
        raise UsageError(f"`{launcher}` needs a script or a module", hint="orch launch -- python train.py")
    note = f"note: orch starts torchrun itself, so `{launcher}` is left out" + "".join(f", {part}" for part in dropped)
    return ("python", *(("-m",) if module else ()), *words), note
