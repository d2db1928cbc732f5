"""`orch prepare`: convert text, pictures or traces to training data, once for all nodes."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.completion import workloads
from orchestrator.cli.consent import agreed
from orchestrator.cli.context import load_inventory
from orchestrator.cli.launching.command_words import WORDS_LAST, look_at, rank_command
from orchestrator.cli.options import InventoryOption, YesOption
from orchestrator.cli.report import say
from orchestrator.plan.prepare import SourcePath
from orchestrator.specs.errors import EXIT_OK, ConfigError, ConflictError, OrchError, PreflightError, UsageError
from orchestrator.specs.launch_options import DEFAULT_DATA

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Engine

EXAMPLES = """\
orch prepare
orch prepare --text ./books --text ./articles.txt --vocab-size 32000
orch prepare -- vision --images ./photos --image-size 128
orch prepare -- text --csv ./failures.csv --model-name random:small
"""
SETTINGS = WORDS_LAST
NAMED_SOURCES = ("spanish",)
HUB = "hf:"
"""Texts that the trainer fetches itself, by name or prefix; anything else is a file or folder of the user's."""
UNFINISHED = ".preparing.json"
"""File in a folder of data by which the trainer continues an interrupted preparation."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def prepare(
    context: typer.Context,
    command: list[str] | None = typer.Argument(
        None,
        metavar="[-- WORKLOAD...]",
        autocompletion=workloads,
        help="A workload with the options of its `prepare` (default: gpt2).",
    ),
    text: list[str] | None = typer.Option(
        None, metavar="spanish|FILE|DIR|hf:NAME", help="File or folder of text. Repeatable."
    ),
    text_key: str | None = typer.Option(
        None, metavar="NAME", help="Field of a JSON line, or column of a table, with the text (default: text)."
    ),
    data: Path = typer.Option(DEFAULT_DATA, metavar="DIR", help="Folder for the prepared data."),
    vocab_size: int | None = typer.Option(None, min=300, metavar="N", help="Vocabulary size of the tokenizer."),
    engine: str = typer.Option(
        "", metavar="docker|process", help="process: without a container (default: as all nodes, else docker)."
    ),
    inventory: InventoryOption = None,
    yes: YesOption = False,
) -> int:
    """Convert text to memory-mapped tokens in ./Data, or other data for another workload after `--`.

    Reads plain text, .jsonl and .parquet of any size, also .gz and .zst, and data sets of Hugging Face. Runs in the
    training image. Without --text, Spanish text is downloaded from Debian packages. After `--`, give a
    workload and the options of its `prepare`; files and folders among them are mounted read-only. `orch launch` copies
    ./Data to nodes without it. Prepared data is kept; data of another workload is replaced only if you agree.
    """
    words = list(rank_command(context, command).words)
    if words and (text or vocab_size or text_key):
        raise UsageError("--text, --text-key and --vocab-size are gpt2's: after `--` give the workload's own options")
    workload, *rest = words or ["gpt2"]
    rest = rest[1:] if rest[:1] == ["prepare"] else rest
    for source in [] if words else text or NAMED_SOURCES:
        if source not in NAMED_SOURCES and not source.startswith(HUB) and not Path(source).expanduser().exists():
            raise ConfigError(f"--text {source}: no such file or folder")
        rest += ["--text", source]
    if vocab_size is not None:
        rest += ["--vocab-size", str(vocab_size)]
    if text_key is not None:
        rest += ["--text-key", text_key]
    sources = with_sources(rest)
    if engine not in ("", "docker", "process"):
        raise UsageError(f"--engine {engine}: expected docker or process")
    loaded = load_inventory(inventory).inventory
    engine = engine or ("process" if {node.engine for node in loaded.nodes} == {"process"} else "docker")
    checked = look_at([workload, "prepare", *rest], prog="orch prepare --", data=data)
    if checked.replaces:
        say(f"{data} holds {checked.replaces}, which would be removed\n  → --data OTHER   # keeps both")
        if not agreed(f"Replace what {data} holds?", yes=yes):
            raise typer.Abort
    _run(sources, workload, data, project=loaded.project, engine=engine)
    chosen = [] if data == DEFAULT_DATA else ["--data", str(data)]
    after = ["--", workload] if words else []
    say(f"  → {shlex.join(['orch', 'launch', '--nodes', str(len(loaded.nodes)), *chosen, *after])}")
    return EXIT_OK


def _run(words: Sequence[str | SourcePath], workload: str, data: Path, *, project: str, engine: str) -> None:
    """Run the container. If it fails, a folder that was made for it is removed, unless the next try continues there."""
    from orchestrator.fleet.connect import connect
    from orchestrator.fleet.downloads import run_to_end
    from orchestrator.plan.prepare import prepare_container, user_paths
    from orchestrator.specs.inventory import NodeSpec
    from orchestrator.specs.request import LaunchRequest

    node = connect(
        NodeSpec.model_validate({"name": "controller", "address": "127.0.0.1", "connection": "local", "engine": engine})
    )
    tag = LaunchRequest(project=project, nodes=()).image_tag("cpu")
    image = None if engine == "process" else node.engine.image(tag)
    if image is None and engine != "process":
        raise PreflightError(f"this computer does not have the image {tag}", hint="orch build")
    made = not data.exists()
    data.mkdir(parents=True, exist_ok=True)
    spec = prepare_container(
        image=image.id if image else "",
        workload=workload,
        words=words,
        data_dir=str(data.resolve()),
        user=f"{os.getuid()}:{os.getgid()}",
        environment={name: os.environ[name] for name in PROXIES if os.environ.get(name)},
    )
    try:
        must_be_alone(node.engine, spec.name)
        run_to_end(node.engine, spec, lambda text: say(user_paths(text, spec, data, words)))
    except BaseException as error:
        if made and not (data / UNFINISHED).exists():
            shutil.rmtree(data, ignore_errors=True)
        if isinstance(error, OrchError):
            error.message = user_paths(error.message, spec, data, words)
            if (data / UNFINISHED).exists():
                error.hint = error.hint or "the same command continues where this one has ended"
        raise


def must_be_alone(engine: Engine, name: str) -> None:
    """Remove the container of a preparation that was cut off. ConflictError: one is active."""
    from orchestrator.specs.run import State

    if (held := engine.container(name)) is None:
        return
    if held.state is State.RUNNING:
        raise ConflictError(
            "another `orch prepare` runs on this computer",
            hint=f"wait for it, then run this again; if no terminal shows it: docker rm -f {name}",
        )
    engine.remove(held.id)


def with_sources(words: Sequence[str]) -> list[str | SourcePath]:
    """Return the words, those that name an existing path, alone or after `--option=`, as paths to be mounted."""
    found: list[str | SourcePath] = []
    for word in words:
        if word.partition("=")[0] == "--data-dir":
            raise UsageError(f"{word}: the folder of prepared data belongs before `--`: orch prepare --data DIR -- …")
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value).expanduser()
        here = bool(value) and path.exists()
        found.append(SourcePath(path=str(path.resolve()), option=option + equals, typed=value) if here else word)
    return found
