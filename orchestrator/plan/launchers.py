"""Launchers in the words after `--`: orch starts torchrun on each node, so the user's own launcher is left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.specs.errors import UsageError
from orchestrator.specs.numbers import whole
from orchestrator.specs.program import SHELLS, Program


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"{text} is not one of {', '.join(known)}")
        return text.lower()

    return read


def _count(text: str) -> str:
    if not whole(text):
        raise ValueError(f"{text} is not a number from 1")
    return text


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
    "max-restarts": "--max-restarts of orch",
    "num-cpu-threads-per-process": "orch divides the cores; otherwise --env OMP_NUM_THREADS=N of orch",
    **dict.fromkeys(("rdzv-backend", "rdzv-conf", "monitor-interval", "tee", "log-dir", "role"), ""),
    "main-training-function": "",
}
_SWITCHES = ("standalone", "multi-gpu", "same-network", "quiet")
"""Switches of both launchers that orch decides as well, or that change no training."""
_TO_VARIABLES: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "mixed-precision": ("ACCELERATE_MIXED_PRECISION", _one_of("no", "fp16", "bf16")),
    "gradient-accumulation-steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", _count),
    "dynamo-backend": ("ACCELERATE_DYNAMO_BACKEND", str.upper),
    "dynamo-mode": ("ACCELERATE_DYNAMO_MODE", str),
}
"""Options that accelerate passes to its ranks as a variable (accelerate 1.x, utils/launch.py)."""
_SWITCHES_TO_VARIABLES: Mapping[str, tuple[str, str]] = {
    "cpu": ("ACCELERATE_USE_CPU", "true"),
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable-cpu-affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
    "dynamo-use-fullgraph": ("ACCELERATE_DYNAMO_USE_FULLGRAPH", "True"),
    "dynamo-use-dynamic": ("ACCELERATE_DYNAMO_USE_DYNAMIC", "True"),
    "dynamo-use-regional-compilation": ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "True"),
}
_SHARDS = "orch trains with DDP, which keeps the whole model on every rank"
_REFUSED: Sequence[tuple[str, str]] = (
    (
        "config-file",
        "it is not read: write its values as options, such as --mixed_precision bf16",
    ),
    ("use-deepspeed", f"{_SHARDS}; DeepSpeed divides it"),
    ("deepspeed", "DeepSpeed is not supported"),
    ("zero", "DeepSpeed is not supported"),
    ("offload", "DeepSpeed is not supported"),
    ("use-fsdp", f"{_SHARDS}; FSDP divides it"),
    ("fsdp", f"{_SHARDS}; FSDP divides it"),
    ("use-megatron-lm", f"{_SHARDS}; Megatron-LM divides it"),
    ("megatron-lm", f"{_SHARDS}; Megatron-LM divides it"),
    ("use-parallelism-config", f"{_SHARDS}; a parallelism config divides it"),
    ("parallelism-config", f"{_SHARDS}; a parallelism config divides it"),
    ("tpu", "orch starts ranks on CPUs and NVIDIA GPUs, not on TPUs"),
    ("downcast-bf16", "orch starts ranks on CPUs and NVIDIA GPUs, not on TPUs"),
    ("fp8", "fp8 needs packages that the image does not have"),
    ("gpu-ids", "a node's ranks use its first GPUs: set nproc_per_node in inventory.yaml"),
    ("gradient-clipping", "DeepSpeed is not supported; call accelerator.clip_grad_norm_ in the script"),
)
"""Options of accelerate by their beginning, with the reason."""
_SCRIPT_NOTE = (
    "note: a shell script runs once per node, and `torchrun train.py` in it needs no options: it finds nodes, ranks and"
    " addresses in its environment"
)
_LAUNCHERS: Sequence[tuple[tuple[str, ...], Mapping[str, str]]] = (
    (("torchrun",), _TORCHRUN),
    (("python", "-m", "torch.distributed.run"), _TORCHRUN),
    (("python", "-m", "torch.distributed.launch"), _TORCHRUN),
    (("accelerate", "launch"), _ACCELERATE),
    (("python", "-m", "accelerate.commands.launch"), _ACCELERATE),
)


@dataclass(frozen=True, kw_only=True)
class RankCommand:
    """Words that each rank runs, or a shell script once per node."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that stand for options of the launcher that was left out."""
    note: str = ""
    """A line on what was left out, for people."""


def without_launcher(command: Sequence[str]) -> RankCommand:
    """Leave a launcher out of a command.

    UsageError: a shell that the image lacks, or an option of a launcher that would change what runs.
    """
    words = list(command)
    if words and PYTHON.fullmatch(words[0]):
        words[0] = "python"  # the image has one
    elif words[:1] == ["-m"]:
        words.insert(0, "python")
    if words[:1] and words[0] in _OTHER_SHELLS:
        hint = shlex.join(["orch", "launch", "--", "bash", *words[1:]])
        raise UsageError(f"the image has no {words[0]}; it has bash and sh", hint=hint)
    if (program := Program.of(words)).is_shell:
        program.entry()  # a shell without a script is refused
        if "/" not in words[0] and words[0] not in SHELLS:
            words[0] = f"./{words[0]}"  # a plain name would be looked for in the PATH
        return RankCommand(words=tuple(words), note=_SCRIPT_NOTE)
    for launcher, known in _LAUNCHERS:
        if tuple(words[: len(launcher)]) == launcher:
            return _unwrapped(" ".join(launcher), words[len(launcher) :], known)
    return RankCommand(words=tuple(words))


def _unwrapped(launcher: str, words: list[str], known: Mapping[str, str]) -> RankCommand:
    dropped, variables, module = list[str](), dict[str, str](), False
    is_accelerate = known is _ACCELERATE
    while words and words[0].startswith("-"):
        word = words.pop(0)
        option, equals, value = word.partition("=")
        name = option.lstrip("-").replace("_", "-")
        if name in ("m", "module"):
            module = True
        elif name in _SWITCHES:
            dropped.append(word)
        elif is_accelerate and name in _SWITCHES_TO_VARIABLES:
            variable, variables[variable] = _SWITCHES_TO_VARIABLES[name]
        elif is_accelerate and name in _TO_VARIABLES and (equals or words):
            variable, read = _TO_VARIABLES[name]
            try:
                variables[variable] = read(value if equals else words.pop(0))
            except ValueError as error:
                hint = f"orch launch -- {launcher} {option} … train.py"
                raise UsageError(f"{launcher} {option}: {error}", hint=hint) from None
        elif name in known and (equals or words):
            typed = word if equals else f"{word} {words.pop(0)}"
            dropped.append(f"{typed} ({known[name]})" if known[name] else typed)
        else:
            raise _refusal(launcher, word, words, is_accelerate=is_accelerate)
    if not words:
        raise UsageError(f"`{launcher}` needs a script or a module", hint="orch launch -- python train.py")
    note = f"note: orch starts torchrun itself, so `{launcher}` is left out" + "".join(f", {part}" for part in dropped)
    if variables:
        note += "; its other options become " + shlex.join(f"{key}={text}" for key, text in variables.items())
    return RankCommand(words=("python", *(("-m",) if module else ()), *words), environment=variables, note=note)


def _refusal(launcher: str, word: str, words: Sequence[str], *, is_accelerate: bool) -> UsageError:
    script = next((word for word in words if word.endswith(".py")), "train.py")
    name = word.partition("=")[0].lstrip("-").replace("_", "-")
    reasons = [reason for beginning, reason in _REFUSED if name.startswith(beginning)] if is_accelerate else []
    why = reasons[0] if reasons else "orch starts torchrun itself, and does not know what this would change"
    keep = "accelerate launch --mixed_precision bf16" if name == "config-file" and is_accelerate else "python"
    return UsageError(
        f"{launcher} {word}: {why}",
        hint=f"orch launch -- {keep} {script}   # variables of the containers: --env KEY=VALUE",
    )
