"""One module per command: parse, call, render, exit code.

Commands load when they are called, so that `orch --help` stays quick: this table is all that help needs.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import typer

from orchestrator.cli.report import report_error
from orchestrator.specs.errors import EXIT_INTERRUPTED, OrchError

COMMANDS = {
    "inventory": "List, show, validate and import the machines",
    "trust": "Accept a node's SSH host key, after showing its fingerprint",
    "setup": "Install Docker and NVIDIA's toolkit on Debian or Ubuntu nodes",
    "firewall": "Open the nodes' firewalls to each other, and to nobody else",
    "build": "Build the CPU or CUDA image and bring it to every node",
    "prepare": "Turn text into training data, once for all nodes",
    "check-gpus": "Compare nvidia-smi on every node and inside its container",
    "explain": "Explain a finding: what it means and how to fix it",
    "doctor": "Find what would keep a run from working, and how to fix it",
    "test": "Test every collective and every link, as a launch would",
    "bench": "Measure a training step on every node, and the links",
    "plan": "Say how long a training would take, on which nodes",
    "launch": "Start a training run on several nodes and follow it",
    "logs": "Show what the ranks of a run wrote, merged",
    "why": "Say why a run failed, or what it waits for, and what to do",
    "status": "Show how a run and its nodes are",
    "runs": "List the runs that the nodes know of",
    "checkpoints": "List, verify, fetch, bring back, prune and export checkpoints",
    "wait": "Wait for a run's end; its exit code",
    "watch": "Stay with a run and mend what breaks, without a terminal",
    "resume": "Go on with a run that ended, from its last checkpoint",
    "restart": "Stop a run with a checkpoint and go on from there",
    "adopt": "Take over a run whose launch was cut short",
    "stop": "Stop a run on all its nodes, after a last checkpoint",
    "clean": "Remove what ended runs left on the nodes",
    "lab": "A LAN in a box: simulated machines on this computer",
}
"""Name of a command (its module has the same, with `_`) and what it does, in order of use."""

EPILOG = "Begin with `orch lab up --nodes 5`, or write inventory.yaml and run `orch build`, `orch launch --nodes 5`."

# Typer brings its own copy of click since 0.16 and exports only some of its exceptions: this is ClickException in both.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def run() -> NoReturn:
    """The program: one command line, then gone.

    Taking the interpreter down module by module costs 0.12 s, and threads that wait for a node which does not answer
    are to die with the process, not to be waited for.
    """
    gc.set_threshold(50_000)  # importing makes many objects and no garbage
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some takes 12 ms; we use none
    for stream in (sys.stdout, sys.stderr):  # a terminal that is not UTF-8 gets what it lacks escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # its reader has gone
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code. Every error ends here as a message, never as a traceback."""
    arguments = _without_old_names(sys.argv[1:] if argv is None else argv)
    try:
        outcome = build_app(_named_command(arguments))(
            args=arguments, prog_name="orch", standalone_mode=False, obj=arguments
        )
    except OrchError as error:
        return report_error(error)
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `orch logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _ClickError as error:
        error.show()  # type: ignore[attr-defined]  # ClickException, whose type depends on Typer's version
        return int(error.exit_code)  # type: ignore[attr-defined]
    except Exception as error:
        from orchestrator.fleet.faults import as_error

        return report_error(as_error(error))
    return outcome if isinstance(outcome, int) else 0


def build_app(wanted: str | None) -> typer.Typer:
    """The application with one command loaded (all of them for shell completion)."""
    app = typer.Typer(
        name="orch",
        help="Train together on all the machines of a LAN.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    everything = "_ORCH_COMPLETE" in os.environ
    for name, summary in COMMANDS.items():
        if everything or name == wanted:
            module = import_module(f"orchestrator.cli.{name.replace('-', '_')}")
            module.register(app)
        else:
            app.command(name, help=summary)(_not_loaded)
    return app


def _root(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            typer.echo(f"orch {installed('orch')}")
        except PackageNotFoundError:
            typer.echo("orch, not installed: run from its source")
        raise typer.Exit


def _not_loaded() -> None:
    """Stand-in that gives a command its line in `--help`."""


def _without_old_names(arguments: Sequence[str]) -> list[str]:
    """`--node` of `doctor` and `logs` is an undocumented alias of `--nodes`."""
    if _named_command(arguments) not in ("doctor", "logs"):
        return list(arguments)
    return ["--nodes" + word[6:] if word.partition("=")[0] == "--node" else word for word in arguments]


def _named_command(arguments: Sequence[str]) -> str | None:
    return next((argument for argument in arguments if not argument.startswith("-")), None)
