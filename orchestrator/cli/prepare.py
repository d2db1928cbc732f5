"""`orch prepare`: text into tokens, once, for all nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_OK, ConfigError, PreflightError, UsageError
from orchestrator.specs.inventory import NodeSpec

EXAMPLES = """Examples:

orch prepare

orch prepare --text ./books --text ./articles.txt --vocab-size 32000
"""
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def register(app: typer.Typer) -> None:
    app.command("prepare", epilog=EXAMPLES, no_args_is_help=False)(prepare)


def prepare(
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="spanish|PATH", help="A file or folder of text; repeat for more."),
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Where the prepared data goes.")] = Path("Data"),
    vocab_size: Annotated[int | None, typer.Option("--vocab-size", min=300, help="Entries of the tokenizer.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="docker, or process: no container.")] = "docker",
    inventory: InventoryOption = None,
) -> int:
    """Train a tokenizer on text and turn it into memory-mapped tokens in ./Data, in the image that will train.

    Without --text it fetches real Spanish text from Debian's packages. `orch launch` copies ./Data to every node that
    lacks it. What is prepared already is kept.
    """
    from orchestrator.fleet.connect import connect
    from orchestrator.fleet.prepare import prepare as run_prepare
    from orchestrator.plan.prepare import NAMED_SOURCES, prepare_container
    from orchestrator.specs.request import LaunchRequest

    project = load_inventory(inventory).inventory.project
    texts = [source if source in NAMED_SOURCES else _existing(source) for source in text or NAMED_SOURCES]
    node = connect(NodeSpec(name="controller", address="127.0.0.1", connection="local", engine=_kind(engine)))
    tag = LaunchRequest(project=project, nodes=()).image_tag("cpu")
    image = None if engine == "process" else node.engine.image(tag)
    if image is None and engine != "process":
        raise PreflightError(f"this computer does not have the image {tag}", hint="orch build")
    data.mkdir(parents=True, exist_ok=True)
    spec = prepare_container(
        image=image.id if image else "",
        texts=texts,
        data_dir=str(data.resolve()),
        user=f"{os.getuid()}:{os.getgid()}",
        options=() if vocab_size is None else ("--vocab-size", str(vocab_size)),
        environment={name: os.environ[name] for name in PROXIES if os.environ.get(name)},
    )
    run_prepare(node.engine, spec, lambda line: say(line.text))
    say(f"  → orch launch --nodes 5 --data {data}")
    return EXIT_OK


def _kind(engine: str) -> Literal["docker", "process"]:
    if engine == "docker":
        return "docker"
    if engine == "process":
        return "process"
    raise UsageError(f"--engine {engine}: expected docker or process")


def _existing(source: str) -> str:
    path = Path(source).expanduser()
    if not path.exists():
        raise ConfigError(f"--text {source}: no such file or folder")
    return str(path.resolve())
