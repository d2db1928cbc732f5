"""One module per command: parse, call, render, exit code. It is imported when it is called: help stays quick."""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from logging import getLogger
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from orchestrator import __version__
from orchestrator.cli.completion import as_typed, completed_command
from orchestrator.cli.flags import CommandGroup
from orchestrator.cli.help import plain_help, width
from orchestrator.cli.inventory_place import inventory_place
from orchestrator.cli.options import OnlyJson, note_output
from orchestrator.cli.report import Invocation, invocation, report_error, say_once, write_line
from orchestrator.specs.errors import EXIT_INTERRUPTED, OrchError
from orchestrator.store.run_names import telling_by

GROUPS = {
    "Prepare the machines": {
        "lab": "Simulated machines on this computer, to try everything",
        "init": "Write inventory.yaml for your machines, and copy your key",
        "inventory": "List, show, validate and import the machines",
        "trust": "Accept a node's SSH host key, after showing its fingerprint",
        "setup": "Install Docker and NVIDIA's toolkit on Debian or Ubuntu nodes",
        "firewall": "Allow TCP between the nodes in their firewalls",
    },
    "Prepare image and data": {
        "build": "Build the CPU or CUDA image and copy it to every node",
        "prepare": "Turn text into training data, once for all nodes",
        "data": "List and remove the data of runs on the nodes",
    },
    "Check and predict": {
        "doctor": "Find everything that would break a run, and how to fix it",
        "check-gpus": "Compare nvidia-smi on every node and inside its container",
        "test": "Test every collective and every link, as a launch uses them",
        "bench": "Measure a training step on every node, and the links",
        "plan": "Predict how long a training takes, and on which nodes",
        "explain": "Explain a finding: what it means and how to fix it",
    },
    "Start and change runs": {
        "launch": "Start a training run on several nodes and follow it",
        "stop": "Stop a run on all its nodes, after a last checkpoint",
        "resume": "Resume a run that ended, from its newest checkpoint",
        "restart": "Stop a run with a checkpoint and resume it from there",
        "supervise": "Watch a run without a terminal and restart what fails",
        "adopt": "Take over a run whose launch was interrupted",
        "export": "Write a launch as a file for Kubernetes",
    },
    "Watch runs": {
        "status": "Show the state of a run and its nodes",
        "monitor": "Watch the nodes and their run, live",
        "dashboard": "Show nodes, runs, curves and logs on a local web page",
        "logs": "Show what the ranks of a run wrote, merged",
        "why": "Say why a run failed or what it waits for, and what to do",
        "runs": "List runs, compare two of them, or start one again",
        "search": "Search the log lines of all runs on record",
        "report": "Write one HTML file about a run, or about several",
        "wait": "Wait until a run has ended; exit with its code",
        "tensorboard": "Show the TensorBoard files of runs in your browser",
        "metrics": "Write or serve figures for Prometheus",
    },
    "Work on the nodes": {
        "exec": "Run a command in the containers of a run, or on nodes",
        "shell": "Log in to a node",
    },
    "Use what a run made": {
        "pull": "Copy the files that a run wrote to this computer",
        "sample": "Let the model of a run write text",
        "predict": "Let the model of a run predict for your files",
        "evaluate": "Evaluate the model of a run on its validation data",
        "checkpoints": "List, verify, pull, push, prune and export checkpoints",
    },
    "Clean up": {
        "clean": "Remove the containers of ended runs from the nodes",
        "uninstall": "Remove what orch has left on the nodes and here",
    },
    "About orch": {
        "docs": "Open the documentation in a browser, without a network",
        "version": "Show the version of orch",
    },
}
"""Commands by purpose, in the order of use, with their summaries."""
MAIN = ("init", "build", "launch", "status", "logs", "monitor", "why", "pull")
"""Commands of the first day: the help shows their summaries, and the names alone of the others."""
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
_WITHOUT_INVENTORY = ("lab", "explain", "docs", "init", "inventory", "report", "search", "version")
_MODULES = {"report": "run_report", "sample": "model_use", "predict": "model_use", "evaluate": "model_use"}
"""Modules of commands that do not have the command's name."""
ALL = "all"
"""Word after `help` for the help of every command."""
WATCH_EVERY_S = 2
_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")

EPILOG = """\b
Begin with simulated machines:
  orch lab up --nodes 5
or with your own, and your script:
  orch init 192.168.1.11 192.168.1.12
  orch launch -- python train.py"""

# Typer brings its own copy of click since 0.16 and exports only some of its exceptions: this is ClickException in both.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def run() -> NoReturn:
    """Run the command line of this process, and exit.

    `os._exit`: the interpreter's own shutdown takes 0.12 s and waits for threads that wait for silent nodes.
    """
    gc.set_threshold(50_000)  # importing makes many objects and no garbage
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for plugins takes 12 ms; we use none
    for stream in (sys.stdout, sys.stderr):  # characters that a terminal lacks are escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader of a pipe has ended
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Every error becomes a message, never a traceback."""
    arguments = _current_names(sys.argv[1:] if argv is None else argv)
    commands = tuple(name for name in COMMANDS if name not in _WITHOUT_INVENTORY)
    with invocation(Invocation(words=tuple(arguments), commands=commands)), telling_by(say_once):
        if os.environ.get("ORCH_DEBUG", "0") not in ("", "0"):
            _set_common("debug")
        try:
            words = completed_command()
            if {"-it", "-ti", "-np", "-v", "resume"} & set(arguments) and (answer := _in_other_words(arguments, "")):
                raise answer
            program = build_app(_named_command(arguments if words is None else words), alone=not arguments)
            outcome = program.main(args=list(arguments), prog_name="orch", standalone_mode=False, obj=arguments)
        except OrchError as error:
            return report_error(error)
        except (typer.Abort, KeyboardInterrupt):
            from orchestrator.cli.interrupted import after_interrupt

            left = after_interrupt(invocation.current.command)
            sys.stderr.write(f"interrupted{f': {left}' if left else ''}\n")
            return EXIT_INTERRUPTED
        except SystemExit as ended:  # of a completion
            return ended.code if isinstance(ended.code, int) else 0
        except BrokenPipeError:  # `orch logs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except _ClickError as error:
            if answer := _in_other_words(arguments, getattr(error, "option_name", None)):
                return report_error(answer)
            error.message = error.message.replace("Value error, ", "")  # type: ignore[attr-defined]  # as below
            error.show()  # type: ignore[attr-defined]  # ClickException, whose type depends on Typer's version
            return int(error.exit_code)  # type: ignore[attr-defined]
        except Exception as error:
            from orchestrator.fleet.faults import as_error

            getLogger("orch").info("unexpected error", exc_info=True)
            return report_error(as_error(error))
        return outcome if isinstance(outcome, int) else 0


def _in_other_words(arguments: Sequence[str], option: str | None) -> OrchError | None:
    """Return the answer to a command or an option of another tool; `option`: the unknown one, "" for one that would be
    misread, None where it is not an option that is wrong. None: no other tool has it, or it is right."""
    from orchestrator.cli import foreign_words

    named = _named_command(arguments)
    if named is None:
        return None
    place = list(arguments).index(named)
    if option:
        return foreign_words.option_answer(arguments, place, option, _options_of)
    if option is not None:
        return foreign_words.misread_option(arguments, place, _options_of)
    return foreign_words.answer_to(arguments, place, COMMANDS, _options_of)


def _options_of(command: str) -> dict[str, bool]:
    """Return the options of a command, each with whether a value follows it."""
    if command not in COMMANDS:
        return {}
    params = build_app(command).commands[command].params
    return {name: not getattr(one, "is_flag", False) for one in params for name in one.opts if name.startswith("-")}


class _GroupedHelp(TyperGroup):
    """The program, whose help begins with its commands; `orch help all` shows the summaries of all of them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # Typer would end silently
            raise typer.Abort from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        everything, shown = ALL in (ctx.obj or ()), {"-i", "--version", "-q", "-v", "--debug", "-h"}
        options = [one for one in self.get_params(ctx) if everything or {*one.opts} & shown]
        with formatter.section("Options"):
            formatter.write_dl([record for one in options if (record := one.get_help_record(ctx))])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        everything = ALL in (ctx.obj or ())
        with formatter.section("Commands"):
            for title, group in GROUPS.items() if everything else ():
                with formatter.section(title):
                    formatter.write_dl(list(group.items()))
            if not everything:
                formatter.write_dl([(name, COMMANDS[name]) for name in MAIN])
        if everything:
            return
        others = {title: "  ".join(name for name in group if name not in MAIN) for title, group in GROUPS.items()}
        with formatter.section("More (orch help all)"):
            formatter.write_dl(list(others.items()))


def build_app(wanted: str | None, *, alone: bool = False) -> Any:
    """Return the program, a click Group, with the wanted command loaded (all of them to print a completion script).

    `alone`: for `orch` without any word, which shows the overview where there is one, otherwise the help.
    """
    app = CommandGroup(
        name="orch",
        cls=_GroupedHelp,
        help="Train a PyTorch model on all the machines of a LAN.",
        epilog=EPILOG,
        no_args_is_help=not (alone and _has_overview()),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": width()},
    )
    app.callback(invoke_without_command=True)(_root)
    for name, summary in COMMANDS.items():
        if name == "version":
            app.command(name, help=summary, epilog="orch version")(_show_version)
        elif name == wanted or (wanted is None and "_ORCH_COMPLETE" in os.environ and completed_command() is None):
            module = import_module(f"orchestrator.cli.{_MODULES.get(name, name).replace('-', '_')}")
            if hasattr(module, "GROUP"):
                app.add_typer(module.GROUP, name=name)
            else:
                settings = getattr(module, "SETTINGS", None)
                function = getattr(module, name.replace("-", "_"))
                cls = getattr(module, "COMMAND_CLASS", None)
                examples = module.EXAMPLES if isinstance(module.EXAMPLES, str) else module.EXAMPLES[name]
                app.command(name, cls=cls, epilog=examples, context_settings=settings)(function)
        else:
            app.command(name, help=summary)(lambda: None)
    program = typer.main.get_command(app)
    _add_common_options(program)
    return program


def _root(
    context: typer.Context,
    inventory: Path | None = typer.Option(None, "-i", "--inventory", metavar="FILE", help="Inventory file."),
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> int | None:
    invocation.current.inventory = inventory
    if version:
        _show_version()
        raise typer.Exit
    if context.invoked_subcommand is None and _has_overview():
        from orchestrator.cli.overview import overview

        return overview()
    return None


def _has_overview() -> bool:
    """Return whether there is an inventory, and a terminal to show runs and nodes on."""
    return sys.stdout.isatty() and inventory_place(None)[0].is_file()


def _show_version() -> None:
    write_line(f"orch {__version__}")


def _add_common_options(program: Any) -> None:
    """Add the options that may precede and follow every command; they also note which command runs."""

    def note(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
        invocation.current.command = context.command_path.partition(" ")[2]
        if value:
            _set_common(str(parameter.name))

    option = partial(typer.Option, False, callback=note, expose_value=False)

    def options(
        quiet: bool = option("-q", "--quiet", help="Print errors and data only."),
        verbose: bool = option("-v", "--verbose", help="Show calls to nodes with their times."),
        debug: bool = option("--debug", help="Write a file for a bug report."),
    ) -> None: ...

    def json_only(
        output: OnlyJson | None = typer.Option(
            None, "-o", "--output", metavar="json", callback=note_output, expose_value=False, help="As --json."
        ),
    ) -> None: ...

    def parameters(function: Callable[..., None]) -> list[Any]:
        template = typer.Typer(add_completion=False)
        template.command()(function)
        return [one for one in typer.main.get_command(template).params if one.name != "help"]

    common, forms = parameters(options), parameters(json_only)

    def add(command: Any) -> None:
        plain_help(command)
        names = {name for one in command.params for name in one.opts}
        command.params.extend([*(forms if "--json" in names and "-o" not in names else ()), *common])
        if completed_command() is not None:
            as_typed(command)
        for inner in getattr(command, "commands", {}).values():
            add(inner)

    add(program)


def _set_common(option: str) -> None:
    if option == "quiet":
        invocation.current.quiet = True
    else:
        from orchestrator.cli import debug

        (debug.begin_file if option == "debug" else debug.show_calls)(invocation.current)


def _current_names(arguments: Sequence[str]) -> list[str]:
    """Replace `help COMMAND`, and a `--watch` without its value."""
    words, named = list(arguments), _named_command(arguments)
    if named == "help":
        words.remove("help")
        return ["--help", ALL] if words == [ALL] else [*words, "--help"]
    if named == "status" and "--watch" in words:  # its value may be left out
        place = words.index("--watch")
        given = words[place + 1] if place + 1 < len(words) and _SECONDS.fullmatch(words[place + 1]) else ""
        words[place : place + 2 if given else place + 1] = [f"--watch={given or WATCH_EVERY_S}"]
    return words


def _named_command(arguments: Sequence[str]) -> str | None:
    """Return the first word that is neither an option nor the inventory's file."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if not word.startswith("-") and before not in ("-i", "--inventory"):
            return word
    return None
