"""Command parameters from the fields of a dataclass: an option is declared there, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import CommandFunctionType

from orchestrator.cli.completion import cluster_names, node_names, run_ids
from orchestrator.cli.options import EngineOption, NodesOption
from orchestrator.specs.launch_options import Flag

SHARED = {"nodes": NodesOption, "engine": EngineOption}
"""Options that commands without a launch have, too, by the name of the field that takes them."""

COMPLETED: dict[str, Callable[..., list[str]]] = {"RUN": run_ids, "NODE": node_names, "CLUSTER": cluster_names}
"""Functions that complete the value of an option, by its metavar."""

Command = Callable[..., int | None]


class CommandGroup(typer.Typer):
    """A group of commands. Their parameters that have a dataclass as their type are expanded to its options."""

    def command(self, *args: Any, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        declare = super().command(*args, **settings)

        def add(command: CommandFunctionType) -> CommandFunctionType:
            declare(expand()(command))
            return command

        return add


def expand(*, only: Collection[str] = (), omit: Collection[str] = (), **instead: Any) -> Callable[[Command], Command]:
    """Replace each parameter that has a dataclass as its type by parameters for the fields of that dataclass.

    `only`: names of the fields that are options of this command (default: all); `omit`: names of those that are not.
    `instead`: by name, annotations of options that this command has in another form.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters: dict[str, inspect.Parameter] = {}
        groups: dict[str, type] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            if is_dataclass(cls := hints[name]) and isinstance(cls, type):
                groups[name] = cls
                options = dict(_parameters(cls, {**SHARED, **instead}))
                parameters |= {one: options[one] for one in options if one in (only or options) and one not in omit}
            else:
                parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])

        def run(**typed: Any) -> int | None:
            values = {name: typed[name] for name in hints if name in typed}
            for name, cls in groups.items():
                values[name] = _instance(cls, typed)
            return command(**values)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]  # as inspect says
        return run

    return decorate


def _parameters(cls: type, shared: Mapping[str, Any]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield a parameter for each field with an option, inherited fields last."""
    hints = get_type_hints(cls, include_extras=True)
    for each in sorted(fields(cls), key=lambda each: each.name not in cls.__annotations__):
        annotation = shared.get(each.name) or hints[each.name]
        default = False if annotation is bool or bool in get_args(annotation) else None
        if flag := each.metadata.get("flag"):
            annotation = _annotation(each, flag, annotation)
        if get_origin(annotation) is Annotated:
            kind = inspect.Parameter.KEYWORD_ONLY
            yield each.name, inspect.Parameter(each.name, kind, annotation=annotation, default=default)
        if flag and flag.off:
            off = Annotated[bool, typer.Option(flag.off, help=f"Turn --{flag.off.removeprefix('--no-')} off.")]
            yield _off(flag), inspect.Parameter(_off(flag), kind, annotation=off, default=False)


def _off(flag: Flag) -> str:
    """Name of the parameter of the option that turns a field off."""
    return flag.off.removeprefix("--").replace("-", "_")


def _annotation(each: Field[Any], flag: Flag, hint: Any) -> Any:
    kinds = (str,) if flag.parse else (bool, int, Path, str)  # a text that is parsed has any field
    kind = list[str] if flag.repeated else next(one for one in kinds if one is str or one in (hint, *get_args(hint)))
    default = "" if each.default is MISSING or not each.default else f" (default: {each.default})"
    text = flag.help.removesuffix(".") + default + "." if default else flag.help
    if kind is bool:
        return Annotated[bool, typer.Option(flag.name, help=text)]
    most = flag.most if each.default is None else None  # any other number is bounded where a plan is read
    metavar = flag.metavar or flag.name.lstrip("-").upper()
    option = typer.Option(
        flag.name, metavar=metavar, min=flag.least, max=most, help=text, show_default=False,
        autocompletion=COMPLETED.get(metavar),
    )  # fmt: skip
    return Annotated[kind | None, option]


def _instance(cls: type, typed: dict[str, Any]) -> Any:
    """Return the dataclass with the values that were typed; its field `given`, if any, names these fields."""
    values = {}
    for each in fields(cls):
        value = typed.get(each.name)
        if not (value is None or value is False or value in ([], "")):  # 0 is a value
            flag = each.metadata.get("flag")
            parsed = flag.parse(value) if flag and flag.parse else value
            values[each.name] = tuple(parsed) if isinstance(parsed, list) else parsed
        if (flag := each.metadata.get("flag")) and flag.off and typed.get(_off(flag)):
            values[each.name] = "off"
    if any(each.name == "given" for each in fields(cls)):
        values["given"] = frozenset(values)
    return cls(**values)
