"""Layers of option values, first to last: command line, environment (`TRAINER_GRAD_ACCUM=2`), file of `--config`,
default of the workload (its preset), default in config.py. A run writes them to RUN/options.yaml, for `--config`.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainer.config import WORKLOAD, OptionValue, RankInfo, TrainOptions
from trainer.data.files import not_permitted, write_atomic
from trainer.errors import ConfigurationError, OptionError
from trainer.options import add_options, values_given

ENVIRONMENT = "TRAINER_"
COMMAND_LINE = "command line"
FILE_NAME = "options.yaml"
_NOT_SAVED = {"chosen", "run_dir", "resume", "config"}
"""Options that identify the run, not how it is trained."""


def add_train_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file of `option: value` lines; flags override it")
    add_options(parser, TrainOptions)


def train_options(given: argparse.Namespace, defaults: Mapping[str, Any], place: RankInfo) -> TrainOptions:
    """Build the options from the given values, the workload's `defaults`, and the defaults of TrainOptions."""
    values = {**defaults, "run_dir": Path(place.run_dir or "."), "backend": place.backend}
    values |= values_given(given, TrainOptions)
    if values.get("early_stopping") == "none":
        values["early_stopping"] = None
    chosen = {name: OptionValue(value, WORKLOAD) for name, value in defaults.items()}
    origins = getattr(given, "origins", {})
    chosen |= {name: OptionValue(getattr(given, name), origin) for name, origin in origins.items()}
    return TrainOptions(**values, chosen=chosen)


def layered(given: argparse.Namespace, declared: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Fill in values that the command line lacks, and set `given.origins`, the origin of each value."""
    by_name = {option.removeprefix("--"): action for action in declared._actions for option in action.option_strings}
    names = {action.dest for action in by_name.values()} - {"help"}
    origins = {name: COMMAND_LINE for name in names if getattr(given, name) is not None}
    layers = list(_from_environment(by_name, environ))
    config = given.config or environ.get(f"{ENVIRONMENT}CONFIG")
    if config:
        layers += _from_file(Path(config), by_name)
    wrong = []
    for origin, words in layers:
        try:
            layer = declared.parse_args(words)
        except OptionError as error:
            wrong.append(f"{origin}: {error}")
            continue
        for name in names:
            value = getattr(layer, name)
            if value is not None and getattr(given, name) is None:
                setattr(given, name, value)
                origins[name] = origin
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    given.origins = origins


def _from_environment(
    by_name: Mapping[str, argparse.Action], environ: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    from trainer.scalars import scalar

    for variable in sorted(environ):
        name = variable.removeprefix(ENVIRONMENT).lower().replace("_", "-")
        if not variable.startswith(ENVIRONMENT) or name == "config":
            continue
        if name not in by_name:
            raise ConfigurationError(f"{variable} in the environment: {_unknown(name, by_name)}")
        yield variable, _words(name, scalar(environ[variable]), by_name)


def _from_file(path: Path, by_name: Mapping[str, argparse.Action]) -> list[tuple[str, list[str]]]:
    """Return origin and words of each line `option: value`."""
    import yaml

    from trainer.scalars import Loader

    try:
        root = yaml.compose(path.read_text("utf-8"), Loader)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; --config takes a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}: expected lines of `option: value`")
    values = Loader("").construct_document(root)
    seen: dict[str, int] = {}
    found, wrong = [], []
    for key, _ in root.value:
        name, line = str(key.value).replace("_", "-"), key.start_mark.line + 1
        if name not in by_name or name in ("config", "help"):
            wrong.append(f"{path}:{line}: {_unknown(name, by_name)}")
        elif name in seen:
            wrong.append(f"{path}:{line}: {name} is given already in line {seen[name]}")
        else:
            found.append((f"{path}:{line}", _words(name, values[key.value], by_name)))
        seen.setdefault(name, line)
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return found


def _words(name: str, value: object, by_name: Mapping[str, argparse.Action]) -> list[str]:
    """Return the value as words of the command line."""
    if by_name[name].nargs in (0, "?") and isinstance(value, str):  # a switch
        value = {"yes": True, "on": True, "no": False, "off": False}.get(value.lower(), value)
    if value is True:
        return [f"--{name}"]
    if value is False:
        opposite = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
        # A switch without an opposite is off unless it is named.
        return [f"--{opposite}"] if opposite in by_name else []
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if by_name[name].nargs else [f"--{name}={item}" for item in value]
    return [f"--{name}={value}"]


def _unknown(name: str, by_name: Mapping[str, argparse.Action]) -> str:
    close = difflib.get_close_matches(name, by_name, 1)
    return f"unknown option {name!r}" + (f" (did you mean {close[0]!r}?)" if close else "; see --help")


# ── Options in the output of a run ────────────────────────────────────────────────────────────────────────────────────


def summary(options: TrainOptions) -> str:
    """Return one line with the values that the user gave."""
    words = []
    for name, chosen in options.chosen.items():
        if chosen.by_user and name not in _NOT_SAVED:
            origin = "" if chosen.origin == COMMAND_LINE else f" ({chosen.origin})"
            words.append(f"{name.replace('_', '-')} {_plain(chosen.value)}{origin}")
    return f"options: {', '.join(words) or 'none given'}; all of them in {options.run_dir / FILE_NAME}"


def in_use(options: TrainOptions) -> dict[str, OptionValue]:
    """Return all options that have a value, and do not identify the run, by name."""
    values = {field.name: OptionValue(getattr(options, field.name), "default") for field in fields(options)}
    for name, chosen in options.chosen.items():
        value = values[name].value if name in values else None
        values[name] = OptionValue(chosen.value if value is None else value, chosen.origin)  # `none` means None
    return {name: one for name, one in values.items() if name not in _NOT_SAVED and one.value is not None}


def as_rows(options: TrainOptions) -> tuple[tuple[str, str, str], ...]:
    """Return name, value and origin of all options that have a value."""
    return tuple((name.replace("_", "-"), str(_plain(one.value)), one.origin) for name, one in in_use(options).items())


def as_yaml(options: TrainOptions) -> str:
    """Return all options that have a value, each with its origin."""
    import yaml

    lines = ["# Options of this run; --config reads this file."]
    for name, chosen in in_use(options).items():
        text = yaml.safe_dump(_plain(chosen.value), default_flow_style=True, allow_unicode=True, width=1 << 20)
        lines.append(f"{name.replace('_', '-')}: {text.removesuffix('...' + chr(10)).rstrip()}  # {chosen.origin}")
    return "\n".join(lines) + "\n"


def keep(options: TrainOptions) -> None:
    """Write the options into the run's folder. ConfigurationError: this process may not write there."""
    try:
        options.run_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(options.run_dir / FILE_NAME, as_yaml(options).encode())
    except OSError as error:
        if refused := not_permitted(error):
            raise ConfigurationError(refused) from error
        raise


def _plain(value: object) -> object:
    """Convert a value to one that YAML can write."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return value
