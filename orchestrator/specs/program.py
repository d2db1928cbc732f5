"""The words of a run's command, classified once: a workload of the trainer, a Python script or a shell script.

A launcher such as `torchrun` is no kind of its own: it is left out where the words are typed (`plan/launchers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from orchestrator.specs.errors import UsageError
from orchestrator.specs.image import TRAINER_NEEDS
from orchestrator.specs.measurement import option, without_options

SHELLS = ("bash", "sh", "dash")
"""Shells of the image."""
PYTHONS = ("python", "python3")
FORECAST = "--forecast"
"""Option of the trainer: measure, predict, end."""
STEP, ACCUMULATION = ("--global-batch-size",), ("--grad-accum", "--gradient-accumulation-steps")


class ProgramKind(Enum):
    """Kind of a program, by which it is started."""

    WORKLOAD = "workload"
    """One of the trainer's: `python -m trainer`, by torchrun for each rank."""
    SCRIPT = "script"
    """The user's Python script or module, by torchrun for each rank."""
    SHELL = "shell"
    """The user's shell script, once per node; it starts torchrun itself."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Words of a command, and the kind of program that they start."""

    words: tuple[str, ...]
    kind: ProgramKind

    @classmethod
    def of(cls, words: Sequence[str]) -> Program:
        """Classify the words after `--`."""
        first = words[0] if words else ""
        if first in SHELLS or first.endswith((".sh", ".bash")):
            kind = ProgramKind.SHELL
        elif first in PYTHONS or first.endswith(".py"):
            kind = ProgramKind.SCRIPT
        else:
            kind = ProgramKind.WORKLOAD
        return cls(words=tuple(words), kind=kind)

    @property
    def is_own(self) -> bool:
        """True if the user wrote it, so that orch knows none of its options."""
        return self.kind is not ProgramKind.WORKLOAD

    @property
    def is_shell(self) -> bool:
        return self.kind is ProgramKind.SHELL

    @property
    def trains_own_code(self) -> bool:
        """True if a script of the user is trained, or the module of `custom`."""
        return self.is_own or self.words[:1] == ("custom",)

    @property
    def brings_own_code(self) -> bool:
        """True if a folder of the user is copied to the nodes: for what it trains, or for a reporter."""
        return self.trains_own_code or option(self.words, "--reporter") is not None

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules, besides torch, that an image must have for it; none for the user's own script."""
        if self.is_own:
            return ()
        return ("numpy",) if self.words[:1] == ("test-ddp",) else TRAINER_NEEDS

    def rank_words(self) -> tuple[str, ...]:
        """Return the words that torchrun starts for each rank: a script or `-m MODULE`, with its arguments.

        UsageError: there is none.
        """
        words = self.words
        if not words:
            raise UsageError("no command to run", hint="orch launch -- gpt2 --epochs 1")
        if not self.is_own:
            return ("-m", "trainer", *words)
        if words[0] in PYTHONS:
            words = words[1:]
        while words and words[0] == "-u":  # the image sets PYTHONUNBUFFERED
            words = words[1:]
        if words and words[0].startswith("-") and words[0] != "-m":
            raise UsageError(
                f"torchrun starts a script or a module, not `python {words[0]}`",
                hint="orch launch --workdir ./mine -- python train.py --lr 1e-3",
            )
        if not words or words == ("-m",):
            raise UsageError("`python` needs a script or `-m MODULE`", hint="orch launch -- python train.py")
        return words

    def entry(self) -> tuple[str, ...]:
        """Return the user's script, or `-m` and a module, with its arguments; empty for `bash -c`. UsageError: a shell
        without a script."""
        if not self.is_shell:
            return self.rank_words()
        if self.words[0] not in SHELLS:
            return self.words
        words = list(self.words[1:])
        while words and words[0][:1] in ("-", "+"):
            option = words.pop(0)
            if words and option != "--" and not option.startswith("--") and "c" in option:
                return ()
            if option[-1:] in ("o", "O") and not option.startswith("--"):  # such as -o pipefail
                words = words[1:]
        if not words:
            raise UsageError(
                f"`{' '.join(self.words)}` needs a script, or -c with commands", hint="orch launch -- bash run.sh"
            )
        return tuple(words)

    def measuring(self) -> tuple[str, ...]:
        """Return the workload's words with --forecast. UsageError: it is the user's own script."""
        if self.is_own:
            raise UsageError(
                f"--forecast measures workloads of the trainer, and `{' '.join(self.words[:2])}` is your own script",
                hint="orch launch --forecast -- gpt2 …, or your model: -- custom --module my_file.py:build",
            )
        return self.words if FORECAST in self.words else (*self.words, FORECAST)

    def with_step(self, samples: int | None) -> tuple[str, ...]:
        """Return the words with --global-batch-size: a fixed batch per rank would shrink the step with fewer nodes.

        Unchanged: the user's own script, words with their own --global-batch-size, any words if the size is unknown.
        """
        if not samples or self.is_own or option(self.words, *STEP):
            return self.words
        return (*without_options(self.words, ACCUMULATION), STEP[0], str(samples))
