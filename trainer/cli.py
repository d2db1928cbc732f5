"""The command line: parse, call, exit code. Commands that need torch import it when they run."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from trainer import workloads
from trainer.config import BACKENDS, RankInfo
from trainer.data.files import not_permitted
from trainer.errors import ConfigurationError, OptionError, TrainerError
from trainer.option_layers import layered

TOOLS = ("test-ddp", "monitor", "verify", "export")
"""Commands other than the workloads: each is `run` of the module of that name in trainer/tools."""


def main(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a container without a UTF-8 locale must not die of an emoji
            stream.reconfigure(errors="replace", line_buffering=True)
    # libgomp's threads spin while they wait, at the cost of whoever else wants the cores: five ranks on two
    # cores took 221 s for what they do in 17 s when threads sleep. libgomp reads it once, as torch loads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Segments of GPU memory that grow leave no gaps between batches of several sizes ("CUDA semantics" of PyTorch).
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    given = argparse.Namespace()
    try:
        given = parse(argv, os.environ)
        tool = f"trainer.tools.{given.command.replace('-', '_')}"
        run = import_module(tool).run if given.command in TOOLS else given.run
        return int(run(given, RankInfo.from_environ(os.environ)))
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno == errno.ENOSPC and getattr(given, "action", "") == "prepare":
            print(f"error: {given.data_dir}: no space left on its disk", file=sys.stderr)
        elif refused := not_permitted(error):
            print(f"error: {refused}", file=sys.stderr)
        else:
            raise
        return ConfigurationError.exit_code
    except KeyboardInterrupt:
        return 130


def parse(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, *, prog: str = "python -m trainer"
) -> argparse.Namespace:
    """Parse the options; with `environ`, a training takes further values from it and from a configuration file."""
    words = list(argv)
    # `gpt2 --epochs 1` means `gpt2 train --epochs 1`: training is what a workload is for.
    if words and words[0] in workloads.WORKLOADS and (len(words) == 1 or words[1].startswith("-")):
        words.insert(1, "train")
    known = (*workloads.WORKLOADS, *TOOLS)
    if words and not words[0].startswith("-") and words[0] not in known:
        raise OptionError(f"no workload {words[0]!r}{_meant(words[0], known)}; there are {', '.join(known)}")
    given, unknown = build_parser(words[0] if words else "", prog).parse_known_args(words)
    if unknown:
        raise OptionError(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], given.options)}")
    if given.command in workloads.WORKLOADS and given.action == "train" and environ is not None:
        layered(given, workloads.train_parser(given.command, Parser), environ)
    return given


class Parser(argparse.ArgumentParser):
    """argparse ends the program with a sentence; here the sentence may still need its place (a file, a variable)."""

    def error(self, message: str) -> NoReturn:
        if refused := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += _meant(refused[1], re.findall(r"[\w.+-]+", refused[2]))
        elif message.startswith("the following arguments are required"):
            options = list(self._option_string_actions)
            strange = [word for word in self._words if word.startswith("--") and word.partition("=")[0] not in options]
            message += "".join(f"; unknown is {word}{_meant(word, options)}" for word in strange)
        raise OptionError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Note which options there are: what a mistyped one can have meant. The innermost parser speaks last."""
        self._words = list(args or ())
        given, unknown = super().parse_known_args(args, namespace)
        if getattr(given, "options", None) is None:
            given.options = list(self._option_string_actions)
        return given, unknown


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word.partition("=")[0], known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def build_parser(command: str, prog: str = "python -m trainer") -> argparse.ArgumentParser:
    """All commands by name; the options of a workload only if it is the one asked for."""
    parser = Parser(prog=prog, description="Train a workload, alone or as one rank of many.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_text in workloads.WORKLOADS.items():
        workload = commands.add_parser(name, help=help_text, allow_abbrev=False)
        actions = workload.add_subparsers(dest="action", metavar="ACTION", required=True)
        if name == command:
            workloads.add_commands(name, actions)

    check = commands.add_parser("test-ddp", help="do all ranks reach each other?", allow_abbrev=False)
    check.add_argument("--backend", choices=BACKENDS, default="auto")

    monitor = commands.add_parser("monitor", help="CPU, memory and GPU in use", allow_abbrev=False)
    monitor.add_argument("--interval", type=_seconds, default=5.0, metavar="SECONDS")
    monitor.add_argument("--count", type=_lines, metavar="N", help="stop after N lines (default: never)")
    monitor.add_argument("--json", action="store_true", help="one JSON object a line")
    monitor.add_argument("--machine", action="store_true", help="the whole machine, not this container")

    verify = commands.add_parser("verify", help="are the checkpoints sound?", allow_abbrev=False)
    verify.add_argument("checkpoints", type=Path, metavar="CHECKPOINT_DIR")
    verify.add_argument("--json", action="store_true")

    export = commands.add_parser("export", help="a checkpoint's model as safetensors", allow_abbrev=False)
    export.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run, a checkpoint, or best.json")
    export.add_argument("--to", type=Path, required=True, metavar="FILE.safetensors")
    return parser


def _seconds(text: str) -> float:
    if not float(text) > 0:
        raise ValueError(text)
    return float(text)


def _lines(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


_seconds.__name__ = "number of seconds"  # argparse names the type in its message: invalid number of seconds value
_lines.__name__ = "number of lines"
